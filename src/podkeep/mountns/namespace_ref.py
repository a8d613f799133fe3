"""Which container mount namespace a daemon belongs in. Pure: what is pinned where is asked through a function.

Called by the entry points of daemons (``cli``); ``membership`` goes there.

The order: the command line (``--mount-namespace``, ``--mount-namespace-pid``), ``KUBENSMNT`` (the variable of CRI-O and
of OpenShift's kubensenter), ``mountns.pin``, what is pinned at ``/run/kubens/mnt`` (OpenShift's kubens.service), and at
last podkeep's own ``/run/container-mount-namespace/mnt`` (OpenShift enhancement "hide container mount points").
``mountns.enabled = false`` goes before all of them: one switch turns the hiding off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from podkeep.base.config import MountnsConfig
from podkeep.base.errors import FailedPrecondition, InvalidArgument
from podkeep.base.frozen import FrozenStruct

DEFAULT_PIN = Path("/run/container-mount-namespace/mnt")
KUBENS_PIN = Path("/run/kubens/mnt")
"""Where kubens.service pins the namespace of CRI-O and the kubelet; podkeep never makes or removes it."""
UNIT = "container-mount-namespace.service"
KUBENSMNT = "KUBENSMNT"
"""Environment variable with the path of the pinned namespace (kubensmnt, environment of crio.service)."""


class NamespaceRef(FrozenStruct, kw_only=True):
    """A mount namespace, by the file it is pinned on or by a process in it: exactly one of ``pin`` and ``pid``."""

    pin: Path | None = None
    pid: int | None = None
    may_make: bool = False
    """Whether podkeep makes the namespace, on demand, where none is pinned; otherwise it must be there."""
    source: str
    """What named it, for messages: ``--mount-namespace``, ``KUBENSMNT``, ``mountns.pin``, ``kubens``, ``default``."""

    def __str__(self) -> str:
        return f"{self.pin}" if self.pid is None else f"process {self.pid}"


def resolve(
    config: MountnsConfig,
    *,
    environ: Mapping[str, str],
    pin: Path | None = None,
    pid: int | None = None,
    is_pinned: Callable[[Path], bool],
) -> NamespaceRef | None:
    """Return where a daemon belongs; None: hiding is off, it stays where it is.

    :param pin: what ``--mount-namespace`` gave.
    :param pid: what ``--mount-namespace-pid`` gave.
    :param is_pinned: says whether a mount namespace is pinned at a path.
    :raises InvalidArgument: if what was given cannot be a place.
    :raises FailedPrecondition: if nothing was given and two namespaces are there to choose from.
    """
    if pin is not None and pid is not None:
        raise InvalidArgument(
            "--mount-namespace and --mount-namespace-pid name two namespaces", hint="give one of the two"
        )
    if pid is not None and pid < 1:
        raise InvalidArgument(f"--mount-namespace-pid: {pid} is no process ID")
    if not config.enabled:
        return None
    if pid is not None:
        return NamespaceRef(pid=pid, source="--mount-namespace-pid")
    if pin is not None:
        return NamespaceRef(pin=_absolute("--mount-namespace", pin), source="--mount-namespace")
    if environ.get(KUBENSMNT):
        return NamespaceRef(pin=_absolute(KUBENSMNT, Path(environ[KUBENSMNT])), source=KUBENSMNT)
    if config.pin:
        configured = _absolute("mountns.pin", Path(config.pin))
        # kubens.service makes and removes its own.
        return NamespaceRef(pin=configured, may_make=configured != KUBENS_PIN, source="mountns.pin")
    if not is_pinned(KUBENS_PIN):
        return NamespaceRef(pin=DEFAULT_PIN, may_make=True, source="default")
    # Not guessed: daemons that chose differently would mount volumes that the others do not see.
    if is_pinned(DEFAULT_PIN):
        raise FailedPrecondition(
            f"mount namespaces are pinned at {KUBENS_PIN} and at {DEFAULT_PIN}: daemons could end up in different ones",
            hint=f"set mountns.pin to the one that the kubelet is in, or remove the other: `systemctl stop {UNIT}`, "
            f"`podkeep --set mountns.pin={DEFAULT_PIN} mountns stop` or `systemctl stop kubens`",
        )
    return NamespaceRef(pin=KUBENS_PIN, source="kubens")


def candidates(config: MountnsConfig) -> tuple[Path, ...]:
    """Return every path at which a container mount namespace may be pinned, as far as ``config`` tells."""
    configured = (Path(config.pin),) if config.pin else ()
    return tuple(dict.fromkeys((*configured, KUBENS_PIN, DEFAULT_PIN)))


def _absolute(source: str, path: Path) -> Path:
    if not path.is_absolute() or "\0" in str(path):
        raise InvalidArgument(f"{source}: {str(path)!r} is not an absolute path", hint="begin it with /")
    return path
