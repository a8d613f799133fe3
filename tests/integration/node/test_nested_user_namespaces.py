"""User namespaces inside of a pod's own: a sandbox of bubblewrap, made by a user of the pod without any capability."""

from __future__ import annotations

from typing import Any

from agent.manifests import mount, pod
from node.test_pod_volumes import log_of

from support.running_node import RunningNode

SANDBOX = (
    "bwrap --unshare-all --uid 0 --ro-bind / / --dev /dev --proc /proc --tmpfs /tmp sh -c".split(),
    "id -u; cat /proc/1/comm; echo text >/tmp/file; cat /tmp/file",
)


def sandbox(image: str, name: str, **security: Any) -> dict[str, Any]:
    """Return a pod whose user 1000 makes a sandbox with the machine's bubblewrap."""
    paths = {"usr": "/usr", "lib": "/lib", "lib64": "/lib64"}
    volumes = [{"name": name, "hostPath": {"path": path}} for name, path in paths.items()]
    words, script = SANDBOX
    container = {
        "name": "main",
        "image": image,
        "command": [*words, script],
        "env": [{"name": "PATH", "value": "/usr/bin:/bin"}],
        "volumeMounts": [mount(path, name, readOnly=True) for name, path in paths.items()],
        "securityContext": {"runAsUser": 1000, "runAsGroup": 1000} | security,
    }
    return pod(container, name=name, volumes=volumes, hostUsers=False)


def test_a_sandbox_in_a_pod(node: RunningNode, image: str) -> None:
    """It needs a /proc that nothing covers, as the kernel lets nobody mount another one that shows more."""
    node.apply(sandbox(image, "masked"), sandbox(image, "unmasked", procMount="Unmasked"))
    node.phase("unmasked", "Succeeded")
    assert log_of(node, "unmasked").splitlines() == ["0", "bwrap", "text"]
    node.phase("masked", "Failed")
    assert log_of(node, "masked") == "bwrap: Can't mount proc on /newroot/proc: Operation not permitted"
