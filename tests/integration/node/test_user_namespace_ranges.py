"""The range of host IDs of a node's pods: user kubelet's, the default one, or none at all; and what moves with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from node.test_image_volume_gate import container_of, reasons, restart
from node.test_user_namespace_docs import table
from node.test_user_namespace_gate import OFF, is_block, mapping_of, runs

from podkeep.kernel.mount import mounts
from support.daemon import Daemon
from support.processes import write_script
from support.running_node import RunningNode, own_base
from support.waiting import TIMEOUT_S

Put = Callable[[str, str], None]
RANGE = "kubelet:3276800:7208960\n"
USER = "kubelet:x:64990:64990::/nonexistent:/usr/sbin/nologin\n"
REFUSED = "the ID range could not be retrieved: "


@pytest.fixture
def etc(scratch_machine: None, tmp_path: Path) -> Iterator[Put]:
    """Puts a text over passwd, subuid or subgid of the machine; it has a user kubelet without a range."""
    names = ("passwd", "subuid", "subgid")
    for name in names:
        (tmp_path / name).write_text("")
        mounts.bind(tmp_path / name, Path("/etc") / name)
    put = Path.write_text
    passwd = "root:x:0:0::/root:/bin/sh\n"
    put(tmp_path / "passwd", passwd + USER)

    def replace(name: str, text: str) -> None:
        put(tmp_path / name, passwd + text if name == "passwd" else text)

    yield replace
    for name in names:
        mounts.unmount(Path("/etc") / name)


def give(etc: Put, text: str) -> None:
    """Give users the same ranges of users and of groups."""
    etc("subuid", text)
    etc("subgid", text)


def recorded(node: RunningNode) -> dict[str, dict[str, Any]]:
    """Return what ``podkeep userns ls`` says, by the names of pods."""
    done = node.daemon.run(*given(node), "userns", "ls", "-o", "json", check=True)
    return {row["name"]: row for row in json.loads(done.stdout)}


def given(node: RunningNode) -> list[str]:
    return [part for setting in node.settings for part in ("--set", setting)]


@pytest.mark.requirement("U34", "U38", "U41")
def test_pods_stay_inside_of_a_range_that_moves(own_node: RunningNode, etc: Put, image: str) -> None:
    """What a user has in it is left out. A pod that runs keeps its block when the range moves, and is told of."""
    give(etc, "kubelet:3276800:14417920\nalice:3276800:65536\n")
    with own_node as node:
        assert "pods get IDs 3276800-17694719, which " in "".join(node.log)
        node.apply(runs(image, "first", hostUsers=False), runs(image, "second", hostUsers=False))
        starts = {name: mapping_of(node, image, name)[1] for name in ("first", "second")}
        assert set(starts.values()) == {"3342336", "3407872"}
        before = {name: container_of(node, name) for name in starts}
        node.end_agent()
        give(etc, "kubelet:19660800:7208960\n")
        node.start_agent()
        node.apply(runs(image, "third", hostUsers=False))
        assert mapping_of(node, image, "third") == ["0", "19660800", "65536"]
        assert {name: mapping_of(node, image, name)[1] for name in starts} == starts
        assert {name: container_of(node, name) for name in starts} == before
        rows = recorded(node)
        assert {name: str(row["first"]) for name, row in rows.items()} == {**starts, "third": "19660800"}
        assert {row["state"] for row in rows.values()} == {"running"}
        assert [problem["kind"] for problem in rows["first"]["problems"]] == ["outside"]
        assert rows["third"]["problems"] == []
        done = node.daemon.run("userns", "check")
        assert done.returncode == 0
        assert "warning: pod default/first (" in done.stdout
        node.delete("first")
        node.gone("first")
        assert set(recorded(node)) == {"second", "third"}


@pytest.mark.requirement("U39", "U36")
@pytest.mark.parametrize("missing", ["user", "program"])
def test_without_user_or_program_there_is_the_default_range(
    own_node: RunningNode, etc: Put, image: str, missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no error, and logged."""
    if missing == "user":
        etc("passwd", "")
        give(etc, RANGE)
        said = "there is no user kubelet: the default range of IDs is used"
    else:
        monkeypatch.setenv("PATH", path_without(tmp_path, "getsubids"))
        said = "getsubids is not installed: the default range of IDs is used"
    with own_node as node:
        assert said in "".join(node.log)
        node.apply(runs(image, "own", hostUsers=False))
        assert mapping_of(node, image, "own") == ["0", "65536", "65536"]


def path_without(tmp_path: Path, missing: str) -> str:
    """Return a PATH of all programs of this machine but one."""
    directory = tmp_path / "programs"
    directory.mkdir()
    for place in ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"):
        for program in Path(place).glob("*"):
            link = directory / program.name
            if program.name != missing and not link.is_symlink():
                link.symlink_to(program)
    return str(directory)


@pytest.mark.requirement("U40", "U109")
def test_a_range_that_cannot_be_retrieved_keeps_the_agent_from_starting(
    own_node: RunningNode, etc: Put, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names user and cause. Pods run on; once the range is right, or the gate off, the agent starts."""
    give(etc, RANGE)
    with own_node as node:
        node.apply(runs(image, "own", hostUsers=False))
        before = mapping_of(node, image, "own"), container_of(node, "own")
        node.end_agent()

        def refuses(why: str) -> None:
            node.log.clear()
            with pytest.raises(AssertionError) as caught:
                node.start_agent()
            assert node.agent is not None
            assert node.agent.wait(TIMEOUT_S) == 1
            assert REFUSED in str(caught.value)
            assert why in str(caught.value)
            assert "kubelet" in str(caught.value)
            assert "hint: " in str(caught.value)
            assert "give user `kubelet` one range" in table(REFUSED)

        etc("subgid", "kubelet:3276800:3604480\n")
        refuses("user kubelet has other subordinate user IDs")
        give(etc, RANGE + "kubelet:20971520:65536\n")
        refuses("printed 2 lines")
        give(etc, "kubelet:3276800:65535\n")
        refuses("has 65535 IDs, which is not a multiple of 65536")
        give(etc, "kubelet:3276801:7208960\n")
        refuses("does not begin at a multiple of 65536")
        give(etc, "kubelet:3276800:7143424\n")
        refuses("has 109 blocks of 65536 IDs, and agent.max_pods is 110")
        give(etc, "")
        refuses("`getsubids kubelet` failed with status 1: Error fetching ranges")
        wrapper = tmp_path / "wrapper"
        wrapper.mkdir()
        write_script(wrapper / "getsubids", "#!/bin/sh\necho broken >&2\nexit 1\n")
        with monkeypatch.context() as patched:
            patched.setenv("PATH", f"{wrapper}:{path_without(tmp_path, 'getsubids')}")
            refuses("`getsubids kubelet` failed with status 1: broken")
        assert node.daemon.run("doctor").stdout.count(REFUSED) == 1
        restart(node, (OFF,))
        give(etc, RANGE)
        restart(node, ())
        assert (mapping_of(node, image, "own"), container_of(node, "own")) == before


@pytest.mark.requirement("U31", "U34")
def test_longer_blocks(own_node: RunningNode, etc: Put, image: str) -> None:
    """A pod has users beyond 65535 then. Pods that run keep their length when the setting changes."""
    give(etc, "kubelet:13107200:14417920\n")
    long = "agent.user_namespaces.ids_per_pod=131072"
    own_node.settings = (long,)
    with own_node as node:
        user = {"securityContext": {"runAsUser": 100000, "runAsGroup": 100000}}
        node.apply(runs(image, "long", hostUsers=False, **user))
        assert mapping_of(node, image, "long") == ["0", "13107200", "131072"]
        before = container_of(node, "long")
        restart(node, ())
        node.apply(runs(image, "short", hostUsers=False))
        assert mapping_of(node, image, "short") == ["0", "13238272", "65536"]
        assert mapping_of(node, image, "long") == ["0", "13107200", "131072"]
        assert container_of(node, "long") == before
        restart(node, (long,))
        node.apply(runs(image, "next", hostUsers=False))
        assert mapping_of(node, image, "next") == ["0", "13369344", "131072"]
        assert mapping_of(node, image, "short") == ["0", "13238272", "65536"]
        assert {name: row["last"] - row["first"] + 1 for name, row in recorded(node).items()} == {
            "long": 131072,
            "short": 65536,
            "next": 131072,
        }


def test_a_kubelet_configuration_sets_the_length(own_node: RunningNode, etc: Put, image: str, tmp_path: Path) -> None:
    file = tmp_path / "kubelet.yaml"
    head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
    file.write_text(f"{head}userNamespaces: {{idsPerPod: 196608}}\nmaxPods: 20\n")
    etc("passwd", "")
    own_node.options = ("--config", str(file))
    with own_node as node:
        node.apply(runs(image, "own", hostUsers=False))
        assert mapping_of(node, image, "own") == ["0", "196608", "196608"]
        node.end_agent()
        file.write_text(f"{head}userNamespaces: {{idsPerPod: 65537}}\n")
        with pytest.raises(AssertionError, match="ids_per_pod: 65537 is not a multiple of 65536"):
            node.start_agent()


@pytest.mark.requirement("U43", "U109")
def test_damaged_records_are_repaired(own_node: RunningNode, etc: Put, image: str) -> None:
    """That of a pod that runs is written anew; without the runtime nothing is changed. Then the agent starts."""
    etc("passwd", "")
    with own_node as node:
        node.apply(runs(image, "own", hostUsers=False), runs(image, "other", hostUsers=False))
        before = {name: (mapping_of(node, image, name), container_of(node, name)) for name in ("own", "other")}
        node.end_agent()
        uid = node.running("own")["metadata"]["uid"]
        record = node.daemon.base / "kubelet" / "pods" / uid / "userns"
        content = record.read_bytes()
        record.write_bytes(b"{garbage")
        with pytest.raises(AssertionError, match="podkeep userns check --repair"):
            node.start_agent()
        assert node.daemon.run("userns", "ls").returncode == 0
        done = node.daemon.run("userns", "check")
        assert done.returncode == 1
        assert f"wrong: pod default/own ({record}): invalid user namespace mappings file" in done.stdout
        node.daemon.stop()
        done = node.daemon.run("userns", "check", "--repair")
        assert done.returncode == 1
        assert "no runtime answers" in done.stderr
        assert record.read_bytes() == b"{garbage"
        node.daemon.start()
        done = node.daemon.run("userns", "check", "--repair")
        assert done.returncode == 0, done
        assert f"repaired {record}: invalid user namespace mappings file" in done.stdout
        assert record.read_bytes() == content
        assert record.with_name("userns.damaged").read_bytes() == b"{garbage"
        node.start_agent()
        node.apply(runs(image, "third", hostUsers=False))
        assert is_block(mapping_of(node, image, "third"))
        assert {name: (mapping_of(node, image, name), container_of(node, name)) for name in before} == before
        for name in (*before, "third"):
            node.delete(name)
            node.gone(name)
        node.until(lambda: node.left_behind() == [], "nothing left")


@pytest.mark.requirement("U46")
def test_two_nodes_with_ranges_and_handlers_of_their_own(
    own_node: RunningNode,
    etc: Put,
    image: str,
    tmp_path: Path,
    open_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same pod has on each the IDs of that node's range; its runtime applies what it is given."""
    first = own_node
    handler = '[runtime.handlers.second]\npath = "/usr/bin/crun"\noptions = ["--log-format=text"]\n'
    daemon = Daemon(own_base(open_directory), extra=first.daemon.extra + handler, mounts=first.daemon.mounts)
    daemon.settings = ("runtime.default_handler=second",)
    second = RunningNode(daemon, name="node-2")
    path = path_without(tmp_path, "getsubids")
    for node, start in ((first, 3276800), (second, 13107200)):
        programs = node.daemon.base / "bin"
        programs.mkdir()
        write_script(programs / "getsubids", f'#!/bin/sh\necho "0: kubelet {start} 7208960"\n')
        monkeypatch.setenv("PATH", f"{programs}:{path}")
        node.__enter__()
    try:
        for node, start in ((first, "3276800"), (second, "13107200")):
            node.apply(runs(image, "own", hostUsers=False))
            assert mapping_of(node, image, "own") == ["0", start, "65536"]
            uid = node.running("own")["metadata"]["uid"]
            record = json.loads((node.daemon.base / "kubelet" / "pods" / uid / "userns").read_bytes())
            assert record["uidMappings"] == [{"hostId": int(start), "containerId": 0, "length": 65536}]
            (pod,) = json.loads(node.daemon.run("ps", "-o", "json", check=True).stdout)
            assert pod["uids"] == f"{start}-{int(start) + 65535}"
    finally:
        second.end()


@pytest.mark.requirement("U44")
def test_a_record_that_cannot_be_written_or_read_is_an_event(own_node: RunningNode, etc: Put, image: str) -> None:
    """The event that a client reads has the error, and the pod starts with the block that it would have had before.

    What was in the way of the first one is unmounted with what was made of the pod, before it is tried again.
    """
    etc("passwd", "")
    with own_node as node:
        node.end_agent()
        node.apply(runs(image, "full", hostUsers=False))
        found = node.get("full")
        assert found is not None
        directory = node.daemon.base / "kubelet" / "pods" / found["metadata"]["uid"]
        directory.mkdir(parents=True)
        # Room for the directory and the file that says whose it is, and none for the record.
        mounts.tmpfs(directory, "nr_inodes=2")
        try:
            node.start_agent()
            assert "No space left on device" in failed(node, "full")
        finally:
            mounts.unmount(directory)
        assert mapping_of(node, image, "full") == ["0", "65536", "65536"]

        record = directory / "userns"
        record.rename(record.with_name("kept"))
        record.mkdir()
        node.apply(runs(image, "second", hostUsers=False))
        message = f"user namespace of pod {directory.name}: {record}: invalid user namespace mappings file"
        assert message in failed(node, "second")
        done = node.daemon.run("userns", "check", "--repair")
        assert done.returncode == 0, done
        assert record.read_bytes() == record.with_name("kept").read_bytes()
        assert mapping_of(node, image, "second") == ["0", "131072", "65536"]


def failed(node: RunningNode, name: str) -> str:
    """Return the message of the warning that a pod's sandbox cannot be made."""
    node.until(lambda: "FailedCreatePodSandBox" in reasons(node, name), "the event")
    types = {event["type"] for event in node.events(name) if event["reason"] == "FailedCreatePodSandBox"}
    assert types == {"Warning"}
    message = reasons(node, name)["FailedCreatePodSandBox"]
    assert message.startswith("Failed to create pod sandbox: ")
    return message
