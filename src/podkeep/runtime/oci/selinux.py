"""SELinux labels of containers. Pure: whether SELinux is on, and what its policy says, come in as values.

A label is ``user:role:type:level``. Containers of one pod share a level with two categories that no other pod has, so
that the policy keeps pods apart; the level is chosen with the sandbox and kept in its record (``SandboxStatus``).

Rules: CRI, SELinuxOption; the contexts of the policy's ``lxc_contexts``; where SELinux is off a request's options are
checked and then left alone, as every CRI runtime does (an OCI runtime refuses labels there).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Mapping

from podkeep.base.errors import InvalidArgument, ResourceExhausted
from podkeep.base.frozen import FrozenStruct
from podkeep.runtime.model.records import SELinuxOptions

CATEGORIES = 1024
"""Categories of the targeted policy: c0 to c1023."""
PROCESS_CONTEXT = "system_u:system_r:container_t:s0"
FILE_CONTEXT = "system_u:object_r:container_file_t:s0"
PRIVILEGED_TYPE = "spc_t"
"""The type of a "super privileged container", which the policy does not confine."""
MAX_PART_LENGTH = 255
_PART = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_CATEGORY = re.compile(r"c(0|[1-9][0-9]{0,3})(?:\.c(0|[1-9][0-9]{0,3}))?")
_SENSITIVITY = re.compile(r"s(0|[1-9][0-9]?)")


class SELinux(FrozenStruct, kw_only=True):
    """Whether labels are written, and from which contexts they are made."""

    enabled: bool = False
    process: str = PROCESS_CONTEXT
    file: str = FILE_CONTEXT

    @classmethod
    def from_policy(cls, contexts: Mapping[str, str]) -> SELinux:
        """Return SELinux, on, with the contexts of the machine's policy; what it lacks is as in the targeted one."""
        return cls(
            enabled=True,
            process=contexts.get("process", PROCESS_CONTEXT),
            file=contexts.get("file", FILE_CONTEXT),
        )


class Labels(FrozenStruct, kw_only=True):
    """``process.selinuxLabel`` and ``linux.mountLabel`` of the OCI configuration; empty: not written."""

    process: str = ""
    mount: str = ""


def check(field: str, options: SELinuxOptions) -> None:
    """Check the syntax of a request's options.

    :raises InvalidArgument: naming the part that is not one of a label.
    """
    for name in ("user", "role", "type"):
        text = getattr(options, name)
        if text and (len(text) > MAX_PART_LENGTH or not _PART.fullmatch(text)):
            raise InvalidArgument(f"{field}.{name}: {text[:64]!r} cannot be part of an SELinux label")
    if options.level:
        _check_level(f"{field}.level", options.level)


def _check_level(field: str, level: str) -> None:
    """Check ``s0``, ``s0:c1,c2``, ``s0:c0.c1023``, ``s0-s0:c0.c1023``."""
    if len(level) > MAX_PART_LENGTH:
        raise InvalidArgument(f"{field}: {level[:64]!r}... has more than {MAX_PART_LENGTH} characters")
    for part in level.split("-", 1):
        sensitivity, separator, categories = part.partition(":")
        good = _SENSITIVITY.fullmatch(sensitivity) is not None
        if separator:
            good = good and all(_is_category(item) for item in categories.split(","))
        if not good:
            raise InvalidArgument(f"{field}: {level!r} is not an SELinux level", hint="write it like s0:c1,c2")


def _is_category(text: str) -> bool:
    found = _CATEGORY.fullmatch(text)
    return found is not None and all(int(number) < CATEGORIES for number in found.groups() if number)


def allocate(used: Collection[str]) -> str:
    """Return a level with two categories that is in none of ``used``.

    :raises ResourceExhausted: if every pair is taken.
    """
    taken = set(used)
    for _ in range(256):
        # At random first: while few pairs are taken, that finds a free one at once.
        level = _level(*secrets.SystemRandom().sample(range(CATEGORIES), 2))
        if level not in taken:
            return level
    for first in range(CATEGORIES):
        for second in range(first + 1, CATEGORIES):
            if (level := _level(first, second)) not in taken:
                return level
    raise ResourceExhausted("every pair of SELinux categories belongs to a pod", hint="remove pods")


def _level(one: int, other: int) -> str:
    low, high = sorted((one, other))
    return f"s0:c{low},c{high}"


def container_labels(
    selinux: SELinux, *, container: SELinuxOptions, sandbox: SELinuxOptions, pod_level: str, privileged: bool
) -> Labels:
    """Return a container's labels.

    What the container's options leave out comes from the sandbox's, then from the policy; the level from the pod's. A
    privileged container is not confined, unless its own options name a type.

    :param pod_level: the level that was chosen for the pod; empty if its options name one.
    """
    if not selinux.enabled:
        return Labels()
    process, mount = selinux.process.split(":", 3), selinux.file.split(":", 3)
    user, role = container.user or sandbox.user, container.role or sandbox.role
    kind = container.type or (PRIVILEGED_TYPE if privileged else sandbox.type)
    level = container.level or sandbox.level or pod_level
    # A file has its maker's user and level; its role and type are the policy's.
    confined_level = "s0" if privileged and not container.level else level
    return Labels(
        process=_label(process, user=user, role=role, kind=kind, level=confined_level),
        mount=_label(mount, user=user, role="", kind="", level=level),
    )


def _label(context: list[str], *, user: str, role: str, kind: str, level: str) -> str:
    default_user, default_role, default_type, *default_level = context
    return ":".join(
        (user or default_user, role or default_role, kind or default_type, level or "".join(default_level) or "s0")
    )
