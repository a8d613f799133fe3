"""The one error tree of podkeep.

Owns: a class per outcome that a caller can act on. The classes mirror the gRPC status codes, because
every error may end up on a CRI socket; ``cri/status.py`` is the only file that knows the codes themselves.
Does not own: logging (one log line, at the boundary that answers the caller) or exit codes (``cli``).

    PodkeepError
    ├── InvalidArgument        the request or file is wrong; the message names the field or path
    ├── NotFound               the named thing does not exist
    ├── AlreadyExists
    ├── FailedPrecondition     the thing exists but is in the wrong state
    ├── ResourceExhausted      no free ID block, address, disk space
    ├── PermissionDenied
    ├── Unimplemented          asked for something this version does not do
    ├── Unavailable            a peer (runtime, tool) does not answer; a retry may help
    ├── RegistryUnavailable    no registry or mirror answers, or only with errors of its own
    ├── DeadlineExceeded
    ├── Cancelled
    ├── DataLoss               a stored record cannot be read or fails its digest
    └── Internal
        ├── KernelCallError    a system call failed: names call, object and errno
        └── CommandFailed      a program we started failed: names its command line
"""

from __future__ import annotations

import errno as _errno
import os


class PodkeepError(Exception):
    """Base of every error podkeep raises on purpose.

    ``message`` says what failed and on what; ``hint``, when present, says what to do next.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}; hint: {self.hint}" if self.hint else self.message


class InvalidArgument(PodkeepError):
    """The request or file is wrong; the message names the field or path."""


class NotFound(PodkeepError):
    """The named thing does not exist."""


class AlreadyExists(PodkeepError):
    """A different thing already has this name."""


class FailedPrecondition(PodkeepError):
    """The thing exists but is in the wrong state for this request."""


class ResourceExhausted(PodkeepError):
    """No free ID block, address or space is left."""


class PermissionDenied(PodkeepError):
    """The caller, or this process, may not do that."""


class Unimplemented(PodkeepError):
    """A known request that this version does not carry out."""


class Unavailable(PodkeepError):
    """A peer does not answer; trying again later may succeed."""


class RegistryUnavailable(PodkeepError):
    """No registry or mirror answers, or only with errors of its own.

    ``message`` starts with ``RegistryUnavailable: ``, by which clients know it (cri-api, pkg/errors). Not a kind of
    :class:`Unavailable`, which tells a client that it is the runtime that does not answer.
    """


class DeadlineExceeded(PodkeepError):
    """The work did not finish in the time allowed."""


class Cancelled(PodkeepError):
    """The caller gave up."""


class DataLoss(PodkeepError):
    """Stored data is unreadable or does not match its digest."""


class Internal(PodkeepError):
    """podkeep or the machine failed in a way the caller cannot mend by changing the request."""


class KernelCallError(Internal):
    """A system call failed.

    ``call`` is the call with its arguments as a reader would write them, ``errno`` the kernel's number.
    """

    def __init__(self, call: str, errno: int, *, hint: str = "") -> None:
        name = _errno.errorcode.get(errno, str(errno))
        super().__init__(f"{call}: {name} {os.strerror(errno)}", hint=hint)
        self.call = call
        self.errno = errno


class CommandFailed(Internal):
    """A program that podkeep started ended with an error.

    ``command`` can be pasted into a shell; ``stderr`` is what the program said.
    """

    def __init__(self, command: str, returncode: int, stderr: str) -> None:
        said = stderr.strip() or "it said nothing"
        super().__init__(f"`{command}` exited with {returncode}: {said}")
        self.command = command
        self.returncode = returncode
        self.stderr = stderr
