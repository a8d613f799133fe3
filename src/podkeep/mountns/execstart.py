"""The command line that starts a systemd service, and the same one behind ``nsenter``. Pure.

Owns: reading ``ExecStart=`` out of a unit's files as systemd reads them, and wrapping it so that the daemon starts in a
mount namespace. Called by ``units`` and ``installation``. Does not own: finding the files (``unitfiles``).

The original stays text: variables, specifiers and quotes mean in the wrapped line what they meant before. What nsenter
cannot carry over is refused: a daemon that starts differently than its unit says is worse than one that is not wrapped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from podkeep.base.errors import FailedPrecondition, InvalidArgument
from podkeep.mountns import conflicts, daemons
from podkeep.mountns.namespace_ref import KUBENS_PIN

_PREFIXES = "-@:+!|"
"""systemd.service(5), special executable prefixes; the last one runs a shell."""
_ENTERING = frozenset({"nsenterCmns"})
_ENTERING_KUBENS = frozenset({"kubensenter", "kubenswrapper"})
"""Programs that enter a namespace by themselves; the latter two OpenShift's."""
_WHITESPACE = " \t\n\r"

_NSENTER_VALUES = frozenset({"-t", "--target", "-S", "--setuid", "-G", "--setgid", "-N", "--net-socket"})
"""Options of nsenter(1) that are followed by a value."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One file of a unit: its fragment, or a drop-in."""

    path: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One assignment, as text; ``path`` is the file it is in."""

    section: str
    key: str
    value: str
    path: str


@dataclass(frozen=True, kw_only=True)
class Unit:
    """What matters here of a unit, after all of its files: the commands of ``ExecStart=``, as text, and the rest."""

    name: str
    commands: tuple[str, ...]
    settings: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    """By section and key, every value since the last empty assignment, and that."""

    def last(self, section: str, key: str) -> str:
        """Return the value that counts of a setting that is no list; empty if there is none."""
        return self.settings.get((section, key), ("",))[-1]

    def names(self, key: str) -> set[str]:
        """Return the units that a list of units in ``[Unit]`` names."""
        return {name for value in self.settings.get(("Unit", key), ()) for name in value.split()}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """How daemons get into the namespace: where it is pinned, and the programs that a command line is put behind."""

    pin: Path
    nsenter: Path = Path("/usr/bin/nsenter")
    env: Path = Path("/usr/bin/env")


def split(printed: str, name: str) -> list[Part]:
    """Return the files of the unit ``name`` as ``systemctl cat`` prints them: a comment with the path goes before each.

    A text without such comments is one file.
    """
    parts: list[tuple[str, list[str]]] = [(name, [])]
    for line in printed.splitlines():
        if line.startswith("# /") and _is_unit_file(PurePath(line[2:])):
            parts.append((line[2:], []))
        else:
            parts[-1][1].append(line)
    return [Part(path=path, text="\n".join(lines) + "\n") for path, lines in parts if any(lines)]


def _is_unit_file(path: PurePath) -> bool:
    is_drop_in = path.suffix == ".conf" and path.parent.name.endswith("service.d")
    return path.name.endswith(".service") or is_drop_in


def parse(part: Part) -> Iterator[Setting]:
    """Yield the assignments of one file, in order, as systemd reads it (systemd.syntax(7)).

    A comment does not end a line that goes on; the backslash that continues a line becomes a space.
    """
    section, begun = "", ""
    for line in [*part.text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n"), ""]:
        if line.lstrip(_WHITESPACE).startswith(("#", ";")):
            continue
        whole = begun + line
        trailing = len(whole) - len(whole.rstrip("\\"))
        if trailing % 2:
            begun = whole[:-1] + " "
            continue
        begun = ""
        stripped = whole.strip(_WHITESPACE)
        if stripped.startswith("[") and stripped.endswith("]"):
            section = stripped[1:-1]
        elif section and "=" in stripped:
            key, _, value = stripped.partition("=")
            yield Setting(section=section, key=key.rstrip(), value=value.strip(_WHITESPACE), path=part.path)


def read(name: str, parts: Sequence[Part]) -> Unit:
    """Return what the files of a unit come to: its fragment first, then the drop-ins in their order."""
    commands: list[str] = []
    settings: dict[tuple[str, str], tuple[str, ...]] = {}
    for setting in (setting for part in parts for setting in parse(part)):
        if (setting.section, setting.key) == ("Service", "ExecStart"):
            commands = [*commands, setting.value] if setting.value else []
        else:
            known = settings.get((setting.section, setting.key), ())
            settings[setting.section, setting.key] = (*known, setting.value) if setting.value else ("",)
    return Unit(name=name, commands=tuple(commands), settings=settings)


def command_of(unit: Unit) -> str:
    """Return the one command of a service, as text.

    :raises FailedPrecondition: if it has none, or several, which only a service that is no daemon may have.
    """
    if not unit.commands:
        raise FailedPrecondition(f"{unit.name} has no ExecStart=", hint="name the unit of a daemon")
    if len(unit.commands) > 1 or any(word == ";" for word in _raw_words(unit.commands[0])):
        raise FailedPrecondition(
            f"{unit.name} has several commands in ExecStart=; a daemon has one",
            hint="leave this unit out: it runs its commands in the namespace with `podkeep mountns exec`",
        )
    return unit.commands[0]


def enters(unit: Unit, pin: Path) -> bool:
    """Say whether the daemon of a unit gets into the namespace pinned at ``pin`` by the unit as it is.

    :raises FailedPrecondition: if it enters another one, so that wrapping would not help.
    """
    words = [word.replace("%t/", "/run/").replace("%%", "%") for word in _words(command_of(unit))]
    program = PurePath(_program(words[0])).name if words else ""
    if program in _ENTERING:
        return True
    if program in _ENTERING_KUBENS and pin == KUBENS_PIN:
        return True
    if pin == KUBENS_PIN and _takes_kubensmnt(unit, program):
        return True
    given = _namespace_option(words, program)
    if given == "" and program == "nsenter":
        raise FailedPrecondition(
            f"{unit.name} starts its daemon with nsenter in the mount namespace of another process",
            hint="take that out of the unit's ExecStart= in a drop-in, or leave this unit out",
        )
    if given and Path(given) != pin:
        raise FailedPrecondition(
            f"{unit.name} starts its daemon in the mount namespace pinned at {given}, not in {pin}",
            hint=f'set mountns.pin = "{given}", or take that out of the unit\'s ExecStart=',
        )
    return bool(given)


def wrap(unit: Unit, entry: Entry) -> str:
    """Return the command of a unit, as text, so that its daemon starts in the namespace.

    podkeep's own runtime gets an option; anything else is started by nsenter, which turns into it: the process that
    systemd knows is the daemon.

    :raises FailedPrecondition: if the daemon would start differently than the unit says, naming the setting.
    """
    command = command_of(unit)
    words = _words(command)
    prefix, text = _separated(command)
    # With `:` systemd leaves dollars alone, so they must not be doubled.
    pin = quoted(str(entry.pin), expanded=":" not in prefix)
    _refuse_what_is_lost(unit, prefix, _program(words[0]))
    if daemons.podkeep_daemon([_program(words[0]), *words[1:]]) == daemons.RUNTIME and "--" not in words:
        return f"{command} --mount-namespace={pin}"
    if "@" in prefix:
        text = _without_name(unit, text)
    directory = unit.last("Service", "WorkingDirectory")
    if directory and directory != "/":
        if directory.startswith(("-", "~")):
            raise FailedPrecondition(
                f"{unit.name} has WorkingDirectory={directory}, which cannot be said behind nsenter",
                hint="give the directory as an absolute path in a drop-in",
            )
        # Entering a mount namespace leads to its root directory.
        text = f"{entry.env} {_directory_option(directory, expanded=':' not in prefix)} {text}"
    kept = prefix.replace("@", "")
    return f"{kept}{entry.nsenter} --mount={pin} -- {text}"


def quoted(word: str, *, expanded: bool = True) -> str:
    """Return a word of a command line as a unit file has it (systemd.service(5), COMMAND LINES; specifiers).

    :param expanded: whether systemd replaces variables in that command line.
    """
    escaped = _escaped(word).replace("%", "%%")
    if expanded:
        escaped = escaped.replace("$", "$$")
    plain = escaped == word and word and not any(character.isspace() or character in "';" for character in word)
    return word if plain else f'"{escaped}"'


def _directory_option(directory: str, *, expanded: bool) -> str:
    """Return the option of env(1) for a directory as WorkingDirectory= has it: with specifiers, without quotes."""
    escaped = _escaped(directory)
    return f'"--chdir={escaped.replace("$", "$$") if expanded else escaped}"'


def _escaped(word: str) -> str:
    return word.replace("\\", "\\\\").replace('"', '\\"')


def _takes_kubensmnt(unit: Unit, program: str) -> bool:
    """CRI-O goes where KUBENSMNT says; OpenShift's drop-in reads it from the file that kubens.service writes."""
    files = {value.removeprefix("-") for value in unit.settings.get(("Service", "EnvironmentFile"), ())}
    return program == "crio" and "/run/kubens/env" in files


def _namespace_option(words: Sequence[str], program: str) -> str | None:
    """Return the file of the mount namespace that nsenter or podkeep is told to enter; None if they are not.

    Empty: nsenter enters that of a process.
    """
    if program == "nsenter":
        return _of_nsenter(words[1:])
    if daemons.podkeep_daemon([_program(words[0]), *words[1:]] if words else []):
        return daemons.option(words, "mount-namespace") or None
    return None


def _of_nsenter(words: Sequence[str]) -> str | None:
    rest = iter(words)
    for word in rest:
        if word == "--" or not word.startswith("-"):
            return None
        key, _, value = word.partition("=")
        if key in ("--mount", "-a", "--all"):
            return value
        if word.startswith("-m"):
            return word.removeprefix("-m")
        if word in _NSENTER_VALUES:
            next(rest, "")
    return None


def _refuse_what_is_lost(unit: Unit, prefix: str, program: str) -> None:
    if "|" in prefix:
        raise FailedPrecondition(
            f"{unit.name} has an ExecStart= that a shell runs (prefix |)", hint="name the program itself in a drop-in"
        )
    if "$" in program and ":" not in prefix:
        raise FailedPrecondition(f"{unit.name}: the path of the program in ExecStart= has a $ in it: {program}")
    user = unit.last("Service", "User")
    if user not in ("", "root", "0") and not set(prefix) & set("+!"):
        raise FailedPrecondition(
            f"{unit.name} runs as user {user}, who may not enter a mount namespace", hint="leave this unit out"
        )
    if "+" in prefix:
        return
    if forbidding := conflicts.forbidding(unit.settings):
        raise FailedPrecondition(
            f"{unit.name} has {', '.join(forbidding)}, with which its daemon may not enter a mount namespace",
            hint="allow setns(2), CAP_SYS_ADMIN and CAP_SYS_CHROOT in a drop-in, or leave this unit out",
        )
    if lost := conflicts.left_behind(unit.settings):
        raise FailedPrecondition(
            f"{unit.name} has {', '.join(lost)}: systemd gives it a namespace of its own for that, which the daemon "
            "would leave",
            hint="take the settings back in a drop-in, if they matter less than hidden mounts, or leave this unit out",
        )


def _separated(command: str) -> tuple[str, str]:
    """Return the special prefixes of a command and the text without them; they may be inside of its first quotes."""
    quote = command[0] if command[:1] in ("'", '"') else ""
    rest = command.removeprefix(quote)
    bare = rest.lstrip(_PREFIXES)
    return rest[: len(rest) - len(bare)], quote + bare


def _program(word: str) -> str:
    return word.lstrip(_PREFIXES)


def _without_name(unit: Unit, text: str) -> str:
    """Return a command without the name that follows the program (prefix ``@``), if the program is called so anyway."""
    raw, words = _raw_words(text), _words(text)
    if len(raw) > 1 and PurePath(words[0]).name == PurePath(words[1]).name:
        program, arguments = raw[0], text.split(raw[0], 1)[1].lstrip(_WHITESPACE).removeprefix(raw[1])
        return program + arguments
    raise FailedPrecondition(
        f"{unit.name} gives its program another name (prefix @), which nsenter cannot",
        hint="name the program without @ in a drop-in, if it does not depend on how it is called",
    )


def _raw_words(text: str) -> list[str]:
    """Return the words of a command line as they are written, quotes and escapes included."""
    words, word, quote, escaped = [], "", "", False
    for character in text:
        if not quote and not escaped and character in _WHITESPACE:
            if word:
                words.append(word)
            word = ""
            continue
        word += character
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
    if quote or escaped:
        raise InvalidArgument(f"ExecStart={text} ends inside of quotes")
    return [*words, word] if word else words


def _words(text: str) -> list[str]:
    """Return the words of a command line without quotes; escapes of single characters only, for looking at paths."""
    words = []
    for raw in _raw_words(text):
        word, quote, escaped = "", "", False
        for character in raw:
            if escaped:
                word, escaped = word + character, False
            elif character == "\\":
                escaped = True
            elif character == quote:
                quote = ""
            elif not quote and character in "'\"":
                quote = character
            else:
                word += character
        words.append(word)
    return words
