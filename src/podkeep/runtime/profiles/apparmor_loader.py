"""Loading the AppArmor profile that RuntimeDefault means.

Owns: calling apparmor_parser(8) with the profile of the package. Does not own: which container gets it
(``oci/apparmor.py``). The profile stays loaded when the daemon ends: containers that run on are under it.
"""

from __future__ import annotations

from importlib import resources

from podkeep.base import spawn
from podkeep.base.errors import CommandFailed, DeadlineExceeded, FailedPrecondition, NotFound

PARSER = "apparmor_parser"
TIMEOUT_S = 30.0
_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}


def default_profile() -> bytes:
    return resources.files("podkeep.runtime.profiles").joinpath("podkeep-default.apparmor").read_bytes()


def load_default(parser: str = PARSER) -> None:
    """Load the default profile, replacing one of its name.

    :raises FailedPrecondition: with the parser's words, if it is missing or refuses.
    """
    try:
        # The cache would hold the result for a path; the profile comes over standard input.
        spawn.run(
            [parser, "--replace", "--skip-cache"], stdin=default_profile(), env=_ENVIRONMENT, timeout=TIMEOUT_S
        ).check()
    except (NotFound, CommandFailed, DeadlineExceeded) as error:
        raise FailedPrecondition(error.message, hint="the machine has AppArmor: it needs its parser") from error
