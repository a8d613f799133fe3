"""What the machine says of itself: for ``status.nodeInfo``. Blocking, and read once, but for what can change."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import podkeep
from podkeep.kernel.process import procfs, totals

KUBERNETES = "1.36.0"
"""The version of Kubernetes whose kubelet this agent is like."""
_BYTES = 64 * 1024


def kubelet_version() -> str:
    """Return the version in the form that Kubernetes' components can compare."""
    return f"v{KUBERNETES}+podkeep-{podkeep.__version__}"


def node_info(runtime: str, architecture: str) -> dict[str, Any]:
    """Return v1.NodeSystemInfo.

    :param runtime: name and version of the container runtime, as ``podkeep://0.1``.
    :param architecture: in Go's words.
    """
    info: dict[str, Any] = {
        "machineID": _text("/etc/machine-id") or _text("/var/lib/dbus/machine-id"),
        "systemUUID": _text("/sys/class/dmi/id/product_uuid") or _text("/etc/machine-id"),
        "bootID": procfs.boot_id(),
        "kernelVersion": os.uname().release,
        "osImage": _os_image(_text("/etc/os-release")),
        "containerRuntimeVersion": runtime,
        "kubeletVersion": kubelet_version(),
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": architecture,
    }
    if swap := totals.memory().get("SwapTotal", 0):
        info["swap"] = {"capacity": swap}
    return info


def _text(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            return file.read(_BYTES).decode(errors="replace").strip()
    except OSError:
        return ""


def _os_image(text: str) -> str:
    """Return ``PRETTY_NAME`` of os-release(5)."""
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key == "PRETTY_NAME":
            return value.strip().strip("\"'")
    return "Linux"
