"""Files of environment variables that containers leave in a volume (``fileKeyRef``, KEP-3721).

The syntax is that of Kubernetes 1.36: ``NAME='value'``, the value in single quotes and maybe over several lines; empty
lines and those that begin with ``#`` are left out. Containers write these files: they are opened with their volume as
the root directory of links, as in a kubelet, and read up to :data:`MAX_BYTES`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from podkeep.base.errors import FailedPrecondition, InvalidArgument, KernelCallError, NotFound
from podkeep.base.frozen import FrozenStruct
from podkeep.kernel.files import openat

MAX_BYTES = 1 << 20
_BLANK = " \t"


def read(volume: Path, path: str) -> str:
    """Return the text of ``path`` in ``volume``. Blocking.

    :raises NotFound: if there is no such file.
    :raises FailedPrecondition: if it is too large or cannot be read.
    :raises InvalidArgument: if it is not UTF-8 text.
    """
    try:
        with openat.closing(openat.open_directory(volume)) as root:
            # One byte more says that there is more.
            content = openat.read_regular(root, path, MAX_BYTES + 1, rules=openat.INSIDE)
    except (OSError, KernelCallError) as error:
        raise FailedPrecondition(f"environment file {path!r} cannot be read: {error}") from error
    if content is None:
        raise NotFound(f"environment file {path!r} is not in its volume")
    if len(content) > MAX_BYTES:
        raise FailedPrecondition(f"environment file {path!r} is larger than {MAX_BYTES} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"environment file {path!r} is not UTF-8 text, at byte {error.start}") from error


class EnvFile(FrozenStruct, kw_only=True):
    """What a file says of the variables that were looked for.

    ``problem``: why it was not read to its end; what comes before that counts.
    """

    found: Mapping[str, str]
    problem: InvalidArgument | None = None

    def value(self, key: str) -> str:
        """Return the value of ``key``; empty if it is not there.

        :raises InvalidArgument: naming the line before it that is no variable.
        """
        if key not in self.found and self.problem is not None:
            raise self.problem
        return self.found.get(key, "")


def parse(text: str, keys: Collection[str]) -> EnvFile:
    """Look for the values of ``keys``."""
    found: dict[str, str] = {}
    left = set(keys)
    try:
        for name, value in _variables(text):
            if name in left:
                found[name] = value
                left.discard(name)
                if not left:
                    break
    except InvalidArgument as error:
        return EnvFile(found=found, problem=error)
    return EnvFile(found=found)


def _variables(text: str) -> Iterator[tuple[str, str]]:
    """Yield names and values.

    :raises InvalidArgument: naming the line that is no variable.
    """
    lines = enumerate((line.removesuffix("\r") for line in text.split("\n")), start=1)
    for number, line in lines:
        line = line.lstrip(_BLANK)
        if not line or line.startswith("#"):
            continue
        name, equals, rest = line.partition("=")
        if not equals:
            raise _invalid(number, "missing '='")
        if not name:
            raise _invalid(number, "empty variable name")
        if name != name.rstrip(_BLANK):
            raise _invalid(number, "whitespace before '=' is not allowed")
        if rest[:1] in (" ", "\t"):
            # As in a shell, where this sets the variable to nothing.
            yield name, ""
            continue
        if not rest.startswith("'"):
            raise _invalid(number, "value must be enclosed in single quotes")
        yield name, _quoted(rest[1:], number, lines)


def _quoted(rest: str, first: int, lines: Iterator[tuple[int, str]]) -> str:
    """Return what is up to the next single quote, in ``rest`` or in the lines after it."""
    parts, number = [], first
    while "'" not in rest:
        parts.append(rest)
        following = next(lines, None)
        if following is None:
            raise InvalidArgument(
                f"invalid environment variable format starting at line {first}: unclosed single quote"
            )
        number, rest = following
    inside, _, after = rest.partition("'")
    after = after.lstrip(_BLANK)
    if after and not after.startswith("#"):
        raise _invalid(number, "unexpected content after closing quote")
    return "\n".join((*parts, inside))


def _invalid(line: int, why: str) -> InvalidArgument:
    return InvalidArgument(f"invalid environment variable format at line {line}: {why}")
