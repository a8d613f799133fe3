"""Whether the daemons that mount things for containers are in one mount namespace, and what to do when they are not.

Owns: the comparison, and the words for it: both inodes, who is who, what does not work, what fixes it. Does not own:
finding the daemons (``daemons``), joining (``membership``). Called by the runtime for its Status, by the agent before
it starts a pod, and by ``podkeep doctor``. It only reads, and it blocks: not for the event loop.

How they come apart (OpenShift, hide container mount points, drawbacks): the namespace is made anew while a daemon that
lives in the old one runs on; a kubelet is started without being put into it; somebody unmounts the pin.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from podkeep.base.errors import FailedPrecondition
from podkeep.base.frozen import FrozenStruct
from podkeep.mountns import daemons, unitfiles, units
from podkeep.mountns import pin as pins
from podkeep.mountns.daemons import AGENT, KUBELET, RUNTIME, Daemon
from podkeep.mountns.membership import Membership
from podkeep.mountns.pin import label as label

CONDITION = "MountNamespaceInSync"
"""Type of the runtime's condition (CRI: RuntimeCondition); a kubelet leaves conditions that it does not know alone."""
REASON = "MountNamespaceMismatch"

_LOST_UPWARDS = (
    "the kubelet does not see what containers mount in Bidirectional volumes, as CSI drivers do: a subPath in them is "
    "an empty directory"
)
_LOST_BOTH_WAYS = (
    "what the kubelet mounts (Secrets, ConfigMaps, projected volumes, emptyDirs in memory, subPaths) is an empty "
    "directory for containers, and the kubelet does not see what containers mount"
)


class Mismatch(FrozenStruct, kw_only=True):
    """Two mount namespaces that should be one. ``theirs`` is 0 where there is none; ``who`` names who is in ``theirs``.

    ``message`` says what does not work, with both inodes; ``hint`` is what fixes it.
    """

    mine: int
    theirs: int
    who: str
    message: str
    hint: str


class Situation(FrozenStruct, kw_only=True):
    """What was found, for :func:`judge`.

    ``pin`` is None in a namespace that was joined by a process ID; ``pinned`` is None if no mount namespace is pinned
    there. ``service`` is the systemd service that pins it, empty if there is none. Those in ``upstream`` are process
    IDs of daemons whose mounts reach ours.
    """

    me: Daemon
    pin: Path | None
    pinned: int | None
    service: str = ""
    kubelets: tuple[Daemon, ...] = ()
    upstream: frozenset[int] = frozenset()


def check(
    membership: Membership, *, socket: str = "", found: Sequence[Daemon], me: Daemon | None = None
) -> list[Mismatch]:
    """Compare a runtime with the pin and with the kubelets of this machine.

    :param socket: the CRI socket that the runtime serves; a kubelet that was told to use another one is no business of
        it.
    :param found: what :func:`podkeep.mountns.daemons.find` returned.
    :param me: the runtime; None: the calling process, whose membership it is.
    :returns: nothing if all is well, or if mounts are not hidden.
    """
    if membership.place is None:
        return []
    pin = membership.place.pin
    kubelets = tuple(item for item in found if item.name == KUBELET and _uses(item, socket))
    apart = [item for item in kubelets if item.inode != membership.inode]
    situation = Situation(
        me=daemons.itself(RUNTIME) if me is None else me,
        pin=pin,
        pinned=None if pin is None else _pinned(pin, membership),
        service="" if pin is None else service_of(pin),
        kubelets=kubelets,
        upstream=frozenset(item.pid for item in apart if daemons.reaches(item.pid, None if me is None else me.pid)),
    )
    return judge(situation)


def _uses(kubelet: Daemon, socket: str) -> bool:
    return not (socket and kubelet.endpoint) or Path(kubelet.endpoint).resolve() == Path(socket).resolve()


def _pinned(pin: Path, membership: Membership) -> int | None:
    try:
        return pins.pinned(pin, membership.host)
    except FailedPrecondition:
        return None  # what is there is no mount namespace


def service_of(pin: Path, directories: Iterable[Path] = tuple(map(Path, unitfiles.SEARCHED))) -> str:
    """Return the installed systemd service that pins the namespace at ``pin``, or an empty text."""
    unit = units.service_of(pin)
    return unit if any((directory / unit).exists() for directory in directories) else ""


def judge(situation: Situation) -> list[Mismatch]:
    """Say what is wrong, if anything: the pin first, then each kubelet. Pure."""
    mine, pin = situation.me.inode, situation.pin
    wrong: list[tuple[int, str, str]] = []
    here = f"{situation.me} is in {label(mine)}"
    if pin is not None and situation.pinned is None:
        said = f"no mount namespace is pinned at {pin} any more; {here}, which nobody else can join"
        wrong.append((0, str(pin), said))
    elif pin is not None and situation.pinned is not None and situation.pinned != mine:
        said = f"{label(situation.pinned)} is pinned at {pin}, but {here}: who joins the pin does not see its mounts"
        wrong.append((situation.pinned, str(pin), said))
    for kubelet in situation.kubelets:
        if kubelet.inode != mine:
            lost = _LOST_UPWARDS if kubelet.pid in situation.upstream else _LOST_BOTH_WAYS
            wrong.append((kubelet.inode, str(kubelet), f"{kubelet} is in {label(kubelet.inode)}, but {here}: {lost}"))
    hint = fix(situation) if wrong else ""
    return [Mismatch(mine=mine, theirs=theirs, who=who, message=said, hint=hint) for theirs, who, said in wrong]


def fix(situation: Situation) -> str:
    """Return what brings all of them into one namespace, in the order in which it works.

    Pods go first: their mounts are in the namespace they were made in and do not come along.
    """
    # The pin decides and not the runtime: whoever is started from now on joins what is pinned.
    target = situation.me.inode if situation.pin is None else situation.pinned
    outside = [item for item in (situation.me, *situation.kubelets) if item.inode != target]
    steps = ["remove the pods of this machine (drain the node)"]
    pin = situation.pin or Path(f"/proc/{situation.me.pid}/ns/mnt")
    # A kubelet whose mounts reach ours is on the host: its unit does not enter the namespace yet.
    if any(item.unit and item.pid in situation.upstream for item in outside):
        steps.append("podkeep mountns install")
    units = [item.unit for item in outside if item.unit]
    if situation.pin is not None and target is None:
        if situation.service:
            units.insert(0, situation.service)
        else:
            # One whose pin is gone may still be mounted over, or half there: stopping sets that right.
            steps.append("podkeep mountns start")
    if units:
        steps.append(f"systemctl restart {' '.join(dict.fromkeys(units))}")
    for item in (item for item in outside if not item.unit):
        if item.name == RUNTIME:
            steps.append("podkeep runtime stop, and start it again")
        else:
            steps.append(f"end {item}, and start it again with `nsenter --mount={pin}` before its command line")
    return "; then ".join(steps)


def require_same(mine: int, theirs: int, *, hidden: bool | None, who: str = AGENT) -> None:
    """Refuse to go on in a mount namespace that is not the runtime's.

    :param mine: inode of the caller's namespace; ``theirs`` that of the runtime.
    :param hidden: whether the runtime hides its mounts; None: it does not say.
    :param who: the caller's name, for the message.
    :raises FailedPrecondition: naming both inodes and what fixes it.
    """
    if mine == theirs:
        return
    where = {True: "hides its mounts in", False: "hides no mounts and is in", None: "is in"}[hidden]
    raise FailedPrecondition(
        f"{who} is in {label(mine)}, but the runtime {where} {label(theirs)}: volumes that one of them mounts are "
        "empty directories for the other",
        hint=f"was the runtime restarted just now? Start {who} again, and it goes where the runtime is",
    )
