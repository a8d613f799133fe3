"""Which user a container's first process is. Pure: works on the texts of the image's passwd and group files.

Rules: CRI, LinuxContainerSecurityContext (run_as_user, run_as_group, run_as_username, supplemental_groups and its
policy); OCI image-spec, config.md, ``User``. IDs are those inside the container (KEP-127, support for pods).
"""

from __future__ import annotations

from collections.abc import Iterator

from podkeep.base.errors import InvalidArgument
from podkeep.base.frozen import FrozenStruct
from podkeep.kernel.namespace.idmap import MAX_ID, MAX_USER
from podkeep.runtime.model.records import GroupsPolicy, Security

MAX_GROUPS = 65_536
"""Groups of a process (linux/limits.h, NGROUPS_MAX)."""
_SHOWN = 80


class User(FrozenStruct, kw_only=True):
    """UID, GID, all supplementary GIDs (the primary one first) and the home directory."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


class _Account(FrozenStruct, kw_only=True):
    name: str
    uid: int
    gid: int
    home: str


def resolve(security: Security, image_user: str, *, passwd: str, group: str) -> User:
    """Return the user that a request and an image ask for; root if neither does.

    :param image_user: the image's ``User``: ``user``, ``uid``, ``user:group``, ``uid:gid`` or a mixture, or empty.
    :param passwd: content of the image's /etc/passwd, empty if it has none.
    :param group: content of the image's /etc/group, empty if it has none.
    :raises InvalidArgument: if a name is not in its file, a group is given without a user, or there are too many.
    """
    wanted, wanted_group = _wanted(security, image_user)
    account = _find_account(passwd, wanted)
    if account is None:
        uid = number_of(wanted)
        if uid is None:
            raise InvalidArgument(
                f"user {wanted[:_SHOWN]!r} is not in the image's /etc/passwd",
                hint="name a user of the image, or a number",
            )
        account = _Account(name="", uid=uid, gid=0, home="/")
    if account.uid > MAX_USER:
        raise InvalidArgument(
            f"user {wanted[:_SHOWN]!r} of the image has the ID {account.uid}, and no container runs as it",
            hint=f"0 to {MAX_USER} are IDs of users",
        )
    gid = account.gid if wanted_group == "" else _find_group(group, wanted_group)
    groups = [gid, *security.supplemental_groups]
    if security.groups_policy is GroupsPolicy.MERGE and account.name:
        groups += _memberships(group, account.name)
    groups = list(dict.fromkeys(groups))
    if len(groups) > MAX_GROUPS:
        raise InvalidArgument(
            f"user {wanted[:_SHOWN]!r} has {len(groups)} groups, of the request and of the image's /etc/group;"
            f" a process has at most {MAX_GROUPS}"
        )
    return User(uid=account.uid, gid=gid, groups=tuple(groups), home=account.home or "/")


def number_of(text: str) -> int | None:
    """Return the ID that a user or group of an image is, if it is written as a number; None for a name.

    What is told of an image (CRI: Image.uid) and what becomes of it must be the same: whoever refuses to run an image
    as root believes what is told.

    :raises InvalidArgument: if it is a number and no ID.
    """
    if not text.isascii() or not text.isdigit():
        return None
    if not _is_id(text) or int(text) > MAX_USER:
        raise InvalidArgument(f"{text[:40]!r} is a number, but no ID of a user or group", hint=f"0 to {MAX_USER} are")
    return int(text)


def _wanted(security: Security, image_user: str) -> tuple[str, str]:
    image_name, _, image_group = image_user.partition(":")
    group = "" if security.run_as_group is None else str(security.run_as_group)
    if security.run_as_user is not None:
        return str(security.run_as_user), group
    if security.run_as_username:
        return security.run_as_username, group
    if group and not image_name:
        raise InvalidArgument(
            "run_as_group is given without a user, and the image names none", hint="set run_as_user as well"
        )
    return image_name or "0", group or image_group


def _find_account(passwd: str, wanted: str) -> _Account | None:
    # A number is never looked up as a name: an account that the image named "1000" would turn UID 1000 into its own.
    uid = number_of(wanted)
    # Of a number as it is in any spelling of it (0001).
    for fields in _lines(passwd, wanted if uid is None else str(uid)):
        if len(fields) < 6 or not _is_id(fields[2]) or not _is_id(fields[3]):
            continue
        if fields[0] == wanted if uid is None else int(fields[2]) == uid:
            return _Account(name=fields[0], uid=int(fields[2]), gid=int(fields[3]), home=fields[5])
    return None


def _lines(text: str, part: str) -> Iterator[list[str]]:
    """Yield the fields of each line that has ``part`` in it: an image may have a hundred thousand others."""
    # Not by splitlines(), which also ends a line at a carriage return and at separators of Unicode.
    return (line.split(":") for line in text.split("\n") if part in line)


def _find_group(group: str, wanted: str) -> int:
    number = number_of(wanted)
    if number is not None:
        return number
    for fields in _lines(group, wanted):
        if fields[0] == wanted and len(fields) >= 4 and _is_id(fields[2]):
            return int(fields[2])
    raise InvalidArgument(f"group {wanted[:_SHOWN]!r} is not in the image's /etc/group")


def _memberships(group: str, user: str) -> list[int]:
    return [
        int(fields[2])
        for fields in _lines(group, user)
        if len(fields) >= 4 and _is_id(fields[2]) and user in fields[3].split(",")
    ]


def _is_id(text: str) -> bool:
    # The length comes first: int() refuses texts of thousands of digits.
    return text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= MAX_ID
