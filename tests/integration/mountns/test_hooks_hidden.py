"""OCI hooks that mount: where each of them runs, who sees it, and that one can take away what another made."""

from __future__ import annotations

from pathlib import Path

import pytest

from podkeep.cri.v1 import api_pb2 as api
from support.cdi import Spec, hook
from support.cri import BLOCK, Triple, bind, namespaces, pod
from support.propagation import Node, mount_namespace, read_in, run_in
from support.waiting import wait_for

OF_THE_RUNTIME = ("prestart", "createRuntime", "poststart", "poststop")
"""Hooks that the OCI runtime-spec (config.md, POSIX-platform Hooks) has run in the runtime's namespaces."""
USERS = pytest.mark.parametrize("user", [None, BLOCK], ids=["host users", "own users"])


def mounting(place: Path) -> str:
    """Return a script that mounts and notes in which mount namespace it did.

    It reads the state that it is given: crun 1.8 dies of SIGPIPE if a hook has ended before that is written.
    """
    note = f"stat -Lc %i /proc/self/ns/mnt >{place}.note"
    return f"cat >/dev/null; {note}; mount -t tmpfs hook {place}; echo hook >{place}/file"


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@USERS
@pytest.mark.parametrize("name", OF_THE_RUNTIME)
@pytest.mark.requirement("M20")
def test_hooks_run_where_the_runtime_is(node: Node, user: Triple | None, name: str) -> None:
    place = node.volume / name
    place.mkdir()
    with Spec(node.daemon.base / "cdi", hook(name, mounting(place))) as device:
        sandbox = node.pods.run(pod(options=namespaces(user=user)))
        container = node.pods.launch(sandbox, CDI_devices=[device])
        node.pods.stop(container)
        node.pods.remove_container(container)
    try:
        assert int((node.volume / f"{name}.note").read_text()) == mount_namespace(node.runtime)
        assert read_in(node.runtime, place / "file") == "hook\n"
        assert (place / "file").exists() is (node.mode == "shown")
    finally:
        assert run_in(node.runtime, "umount", place).returncode == 0


@pytest.mark.requirement("M20")
def test_a_hook_takes_away_what_another_made(node: Node) -> None:
    """The container in between has it: hooks before its start mount, the last one unmounts in the same namespace."""
    place = node.volume / "made"
    place.mkdir()
    # -l: the kernel says EBUSY while a copy of the mount is in a mount namespace that is about to end.
    hooks = (hook("createRuntime", mounting(place)), hook("poststop", f"umount -l {place}"))
    with Spec(node.daemon.base / "cdi", *hooks) as device:
        sandbox = node.pods.run(pod())
        mount = bind(node.volume, "/volume", propagation=api.PROPAGATION_HOST_TO_CONTAINER)
        container = node.pods.launch(sandbox, mounts=[mount], CDI_devices=[device])
        assert node.pods.read(container, "cat /volume/made/file") == "hook"
        assert (place / "file").exists() is (node.mode == "shown")
        node.pods.stop(container)
        node.pods.remove_container(container)
    assert read_in(node.runtime, place / "file") is None
    assert not (place / "file").exists()


@pytest.mark.parametrize("propagation", [api.PROPAGATION_PRIVATE, api.PROPAGATION_BIDIRECTIONAL], ids=["none", "both"])
@pytest.mark.parametrize("name", ["createContainer", "startContainer"])
@pytest.mark.requirement("M20")
def test_hooks_of_the_container_mount_in_it(node: Node, name: str, propagation: api.MountPropagation) -> None:
    """Those run in the container's mount namespace, before it has its own root, and afterwards while it starts.

    What they mount leaves it only by a Bidirectional volume, as what the container mounts.
    """
    place = node.volume / "made"
    place.mkdir()
    note = "/volume/made.note" if name == "startContainer" else f"{place}.note"
    where = "/volume/made" if name == "startContainer" else str(place)
    script = f"mount -t tmpfs hook {where}; echo hook >{where}/file; stat -Lc %i /proc/self/ns/mnt >{note}"
    with Spec(node.daemon.base / "cdi", hook(name, script)) as device:
        mount = bind(node.volume, "/volume", propagation=propagation)
        config = pod()
        config.linux.security_context.privileged = True
        security = {"privileged": True}
        container = node.pods.launch(node.pods.run(config), mounts=[mount], security=security, CDI_devices=[device])
    noted = wait_for(lambda: text_of(node.volume / "made.note"), "the end of the hook")
    both_ways = propagation == api.PROPAGATION_BIDIRECTIONAL
    try:
        assert int(noted) == mount_namespace(node.pods.host_pid(container))
        assert read_in(node.runtime, place / "file") == ("hook\n" if both_ways else None)
        assert (place / "file").exists() is (both_ways and node.mode == "shown")
    finally:
        assert run_in(node.runtime, "umount", place).returncode == (0 if both_ways else 32)
