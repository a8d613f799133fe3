"""The one error tree of podkeep.

Owns: a class per outcome that a caller can act on. The classes mirror the gRPC status codes, because
every error may end up on a CRI socket; ``cri/status.py`` is the only file that knows the codes themselves.
Does not own: logging (one log line, at the boundary that answers the caller) or exit codes (``cli``).

    PodkeepError
    ├── InvalidArgument        the request or file is wrong; the message names the field or path
    │   └── InvalidConfiguration  so is podkeep's own configuration: whoever starts it again gets the same answer
    ├── NotFound               the named thing does not exist
    ├── AlreadyExists
    ├── FailedPrecondition     the thing exists but is in the wrong state, or not what its digest says when it arrives
    ├── ResourceExhausted      no free ID block, address, disk space
    ├── PermissionDenied
    ├── Unimplemented          asked for something this version does not do
    ├── Unavailable            a peer (runtime, tool) does not answer; a retry may help
    ├── RegistryUnavailable    no registry or mirror answers, or only with errors of its own
    ├── DeadlineExceeded
    ├── Cancelled
    ├── DataLoss               what this node stored cannot be read or fails its digest
    └── Internal
        ├── KernelCallError    a system call failed: names call, object and errno
        └── CommandFailed      a program we started failed: names its command line
"""

from __future__ import annotations

import errno as _errno
import os

_SHOWN_PATH = 600
"""Characters of a path that an error shows; of a longer one it says only what is wrong."""


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


class InvalidConfiguration(InvalidArgument):
    """The configuration of podkeep is refused: a process that is started again with it fails again."""

    @classmethod
    def of(cls, problem: InvalidArgument) -> InvalidConfiguration:
        """Return the same error as one of the configuration."""
        return cls(problem.message, hint=problem.hint)


class NotFound(PodkeepError):
    """The named thing does not exist."""


class AlreadyExists(PodkeepError):
    """A different thing already has this name."""


class FailedPrecondition(PodkeepError):
    """The thing exists but is in the wrong state for this request.

    Also what a registry or an archive holds and is not what its digest says, as in containerd (``unexpected commit
    digest``): nothing is lost, and another source may have it.
    """


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
    """What this node stored is unreadable or does not match its digest: logged as an error, for its administrator."""


class Internal(PodkeepError):
    """podkeep or the machine failed in a way the caller cannot fix by changing the request."""


class KernelCallError(Internal):
    """A system call failed.

    ``call`` is the call with its arguments as a reader would write them, ``errno`` the kernel's number. The descriptor
    that a path starts at is left out: the same failure of a pod would read otherwise, and be a new event, each time.
    """

    def __init__(self, call: str, errno: int, *, hint: str = "") -> None:
        name = _errno.errorcode.get(errno, str(errno))
        super().__init__(f"{call}: {name} {os.strerror(errno)}", hint=hint)
        self.call = call
        self.errno = errno


_BY_ERRNO: dict[int, type[PodkeepError]] = {
    **dict.fromkeys(
        (_errno.ENAMETOOLONG, _errno.ELOOP, _errno.ENOTDIR, _errno.EISDIR, _errno.E2BIG, _errno.ERANGE, _errno.EILSEQ),
        InvalidArgument,
    ),
    **dict.fromkeys(
        (_errno.ENOSPC, _errno.EDQUOT, _errno.EMFILE, _errno.ENFILE, _errno.ENOMEM, _errno.EFBIG), ResourceExhausted
    ),
}
"""What the system refuses because of the text or the size of a request, or for want of room, whatever the call was."""


def of_request(error: BaseException) -> type[PodkeepError] | None:
    """Return the class of an error of the system that stems from what a request holds, or from want of room.

    None: it may as well be a defect of podkeep, so only who made the call can tell.
    """
    return _BY_ERRNO.get(error.errno or 0) if isinstance(error, OSError | KernelCallError) else None


def of_words(said: str) -> type[PodkeepError] | None:
    """Return the same of a program's last words, which name an error of the system as it does."""
    lowered = said.lower()
    return next((kind for number, kind in _BY_ERRNO.items() if os.strerror(number).lower() in lowered), None)


def reason_of(error: PodkeepError | OSError) -> str:
    """Return what went wrong, without the path and the number that the text of an error of the system has."""
    if isinstance(error, PodkeepError):
        return error.message
    return error.strerror or str(error) or type(error).__name__


def words_of(error: PodkeepError | OSError) -> str:
    """Return what went wrong; of an error of the system, of which path, without Python's number for it, or that of a
    descriptor."""
    if isinstance(error, PodkeepError):
        return error.message
    said, path = error.strerror or str(error), error.filename
    return f"{os.fsdecode(path)}: {said}" if isinstance(path, str | bytes | os.PathLike) else said


def refused(what: str, error: OSError) -> PodkeepError:
    """Return the error for ``what``, whose paths come from a request and which the file system refuses."""
    kind = of_request(error) or FailedPrecondition
    path = f"{os.fsdecode(error.filename)!r}: " if isinstance(error.filename, str | bytes) else ""
    hint = "free space, or move runtime.root to a larger disk" if error.errno in {_errno.ENOSPC, _errno.EDQUOT} else ""
    return kind(f"{what}: {path if len(path) <= _SHOWN_PATH else ''}{error.strerror or error}", hint=hint)


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
