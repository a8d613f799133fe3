"""Which AppArmor profile a container runs under. Pure: what the kernel has loaded comes in as a value.

Rules: CRI, LinuxContainerSecurityContext (apparmor, and apparmor_profile, its deprecated text); a container that says
nothing gets the default profile where AppArmor is on, as in every CRI runtime; a profile that is named and cannot be
applied is an error, because the container would run without it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from podkeep.base.errors import FailedPrecondition, InvalidArgument
from podkeep.base.frozen import FrozenStruct
from podkeep.runtime.model.records import AppArmor, ProfileKind

DEFAULT_PROFILE = "podkeep-default"
UNCONFINED = "unconfined"
MAX_NAME_LENGTH = 4096


def check_name(field: str, name: str) -> str:
    """Return the name of a profile that a request names.

    :raises InvalidArgument: if it cannot be the name of one.
    """
    # A colon begins the name of a policy namespace, in which the profile would be looked for.
    if not name or len(name) > MAX_NAME_LENGTH or not name.isprintable() or name.startswith((" ", ":")):
        raise InvalidArgument(f"{field}: {name[:64]!r} is not the name of an AppArmor profile")
    return name


class AppArmorSupport(FrozenStruct, kw_only=True):
    """What this machine can do. Both are empty where it can."""

    why_not: str = "this kernel does not enforce AppArmor profiles"
    """Why no profile is enforced here."""
    why_no_default: str = ""
    """Why the default profile is not loaded."""


def profile(
    asked: AppArmor | None, support: AppArmorSupport, *, privileged: bool, loaded: Callable[[], Collection[str]]
) -> str:
    """Return ``process.apparmorProfile``, empty for none.

    :param asked: None: the request says nothing.
    :param loaded: returns the profiles that the kernel knows; called only for a profile that the request names.
    :raises FailedPrecondition: if a profile is asked for and cannot be enforced.
    """
    why_not = support.why_not
    if asked is not None and asked.kind is ProfileKind.LOCALHOST:
        if why_not:
            raise FailedPrecondition(
                f"AppArmor profile {asked.profile!r} cannot be enforced: {why_not}",
                hint="run the pod on a machine with AppArmor, or leave the profile out",
            )
        if asked.profile not in loaded():
            raise FailedPrecondition(
                f"AppArmor profile {asked.profile!r} is not loaded", hint="load it with `apparmor_parser -r FILE`"
            )
        return asked.profile
    if why_not:
        return ""
    if privileged or (asked is not None and asked.kind is ProfileKind.UNCONFINED):
        return UNCONFINED
    if not support.why_no_default:
        return DEFAULT_PROFILE
    # Who says nothing runs as on a machine without AppArmor; who asks for the default by name is refused below.
    if asked is None:
        return ""
    raise FailedPrecondition(
        f"AppArmor profile {DEFAULT_PROFILE!r} is not loaded: {support.why_no_default}",
        hint="install apparmor_parser (Debian: apparmor) and start the runtime again",
    )
