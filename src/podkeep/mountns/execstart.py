"""The command line that starts a systemd service, and the same one behind ``nsenter``. Pure.

Owns: reading ``ExecStart=`` out of a unit's files as systemd reads them, wrapping it so that the daemon starts in a
mount namespace, and the settings with which that cannot be (systemd.exec(5)). Called by ``units`` and ``installation``.
Does not own: finding the files (``unitfiles``).

The original stays text: variables, specifiers and quotes mean in the wrapped line what they meant before. What nsenter
cannot carry over is refused: a daemon that starts differently than its unit says is worse than one that is not wrapped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath

import msgspec

from podkeep.base.errors import FailedPrecondition, InvalidArgument
from podkeep.base.frozen import FrozenStruct
from podkeep.mountns import daemons
from podkeep.mountns.namespace_ref import KUBENS_PIN

_PREFIXES = "-@:+!|"
"""systemd.service(5), special executable prefixes; the last one runs a shell."""
_ENTERING = frozenset({"nsenterCmns"})
_ENTERING_KUBENS = frozenset({"kubensenter", "kubenswrapper"})
"""Programs that enter a namespace by themselves; the latter two OpenShift's."""
_WHITESPACE = " \t\n\r"

_NSENTER_VALUES = frozenset({"-t", "--target", "-S", "--setuid", "-G", "--setgid", "-N", "--net-socket"})
"""Options of nsenter(1) that are followed by a value."""

_NO_SANDBOX = frozenset({"", "0", "no", "n", "false", "f", "off", "default", "all", "shared"})
_SANDBOX = frozenset(
    """BindLogSockets BindPaths BindReadOnlyPaths DynamicUser ExecPaths ExtensionDirectories ExtensionImages
    IPCNamespacePath InaccessiblePaths LogNamespace MountAPIVFS MountFlags MountImages NetworkNamespacePath NoExecPaths
    PrivateDevices PrivateIPC PrivateMounts PrivateNetwork PrivatePIDs PrivateTmp PrivateUsers ProcSubset
    ProtectControlGroups ProtectHome ProtectKernelLogs ProtectKernelModules ProtectKernelTunables ProtectProc
    ProtectSystem ReadOnlyPaths ReadWritePaths RootDirectory RootImage TemporaryFileSystem""".split()
)
"""Settings for which systemd starts a service in a mount (or user) namespace of its own."""
_LISTS = ("Paths", "Images", "Directories", "FileSystem")
"""What the names of those end with of which every value counts, not the last one."""

_TRUE = frozenset({"1", "yes", "y", "true", "t", "on"})
_FALSE = frozenset({"0", "no", "n", "false", "f", "off"})
_CAPABILITIES = ("cap_sys_admin", "cap_sys_chroot")
"""setns(2) of a mount namespace asks for both."""
_CALLS = frozenset({"setns", "@process", "@system-service", "@known"})
"""The system call, and the groups of systemd's that it is in."""

Settings = Mapping[tuple[str, str], tuple[str, ...]]
"""By section and key, every value since the last empty one, and that."""


class Part(FrozenStruct, kw_only=True):
    """One file of a unit: its fragment, or a drop-in."""

    path: str
    text: str


class Unit(FrozenStruct, kw_only=True):
    """What matters here of a unit, after all of its files: the commands of ``ExecStart=``, as text, and the rest."""

    name: str
    commands: tuple[str, ...]
    settings: Settings = msgspec.field(default_factory=dict)

    def last(self, section: str, key: str) -> str:
        """Return the value that counts of a setting that is no list; empty if there is none."""
        return self.settings.get((section, key), ("",))[-1]

    def names(self, key: str) -> set[str]:
        """Return the units that a list of units in ``[Unit]`` names."""
        return {name for value in self.settings.get(("Unit", key), ()) for name in value.split()}


class Entry(FrozenStruct, kw_only=True):
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


def parse(part: Part) -> Iterator[tuple[str, str, str]]:
    """Yield section, key and value of each assignment of one file, in order, as systemd reads it (systemd.syntax(7)).

    A comment does not end a line that goes on; the backslash that continues a line becomes a space.
    """
    section, begun = "", ""
    # The empty line at the end ends one that goes on. Not splitlines: it ends lines where systemd does not.
    for line in [*part.text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n"), ""]:
        if line.lstrip(_WHITESPACE).startswith(("#", ";")):
            continue
        whole = begun + line
        trailing = len(whole) - len(whole.rstrip("\\"))
        # Of two backslashes the first escapes the second: the line does not go on.
        if trailing % 2:
            begun = whole[:-1] + " "
            continue
        begun = ""
        stripped = whole.strip(_WHITESPACE)
        if stripped.startswith("[") and stripped.endswith("]"):
            section = stripped[1:-1]
        elif section and "=" in stripped:
            key, _, value = stripped.partition("=")
            yield section, key.rstrip(), value.strip(_WHITESPACE)


def read(name: str, parts: Sequence[Part]) -> Unit:
    """Return what the files of a unit come to: its fragment first, then the drop-ins in their order."""
    commands: list[str] = []
    settings: dict[tuple[str, str], tuple[str, ...]] = {}
    for section, key, value in (assignment for part in parts for assignment in parse(part)):
        if (section, key) == ("Service", "ExecStart"):
            # An empty value takes back what was set before (systemd.service(5), ExecStart=).
            commands = [*commands, value] if value else []
        else:
            # The empty value is kept, because some settings mean something by it (CapabilityBoundingSet=: no
            # capability).
            settings[section, key] = (*settings.get((section, key), ()), value) if value else ("",)
    return Unit(name=name, commands=tuple(commands), settings=settings)


def command_of(unit: Unit) -> str:
    """Return the one command of a service, as text.

    :raises FailedPrecondition: if it has none, or several, which only a service that is no daemon may have.
    """
    if not unit.commands:
        raise FailedPrecondition(f"{unit.name} has no ExecStart=", hint="name the unit of a daemon")
    if len(unit.commands) > 1 or ";" in _words(unit.commands[0])[0]:
        raise FailedPrecondition(
            f"{unit.name} has several commands in ExecStart=; a daemon has one",
            hint="leave this unit out: it runs its commands in the namespace with `podkeep mountns exec`",
        )
    return unit.commands[0]


def enters(unit: Unit, pin: Path) -> bool:
    """Say whether the daemon of a unit gets into the namespace pinned at ``pin`` by the unit as it is.

    :raises FailedPrecondition: if it enters another one, so that wrapping would not help.
    """
    # Only the specifiers in which the path of a pin may be written: %t is /run for the system's manager.
    words = [word.replace("%t/", "/run/").replace("%%", "%") for word in _words(command_of(unit))[1]]
    program = PurePath(_program(words[0])).name if words else ""
    of_kubens = program in _ENTERING_KUBENS or _takes_kubensmnt(unit, program)
    if program in _ENTERING or (of_kubens and pin == KUBENS_PIN):
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
    words = _words(command)[1]
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
    # The name that `@` gives to the program would become nsenter's.
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
    if daemons.takes_mount_namespace([_program(words[0]), *words[1:]] if words else []):
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
    # With `+` systemd runs the command with full privileges, without the settings looked at below.
    if "+" in prefix:
        return
    if forbidding := [f"{key}={unit.last('Service', key)}" for key in _forbidding(unit.settings)]:
        raise FailedPrecondition(
            f"{unit.name} has {', '.join(forbidding)}, with which its daemon may not enter a mount namespace",
            hint="allow setns(2), CAP_SYS_ADMIN and CAP_SYS_CHROOT in a drop-in, or leave this unit out",
        )
    if lost := _left_behind(unit.settings):
        raise FailedPrecondition(
            f"{unit.name} has {', '.join(lost)}: systemd gives it a namespace of its own for that, which the daemon "
            "would leave",
            hint="take the settings back in a drop-in, if they matter less than hidden mounts, or leave this unit out",
        )


def _left_behind(settings: Settings) -> list[str]:
    """Return the settings for which systemd makes a namespace that the daemon would leave, as ``Key=value``."""
    return sorted(
        f"{key}={value}"
        for (section, key), values in settings.items()
        for value in (values if key.endswith(_LISTS) else values[-1:])
        if section == "Service" and key in _SANDBOX and value.lower() not in _NO_SANDBOX
    )


def _forbidding(settings: Settings) -> Iterator[str]:
    """Yield the settings of a service that do not let its daemon enter a mount namespace."""
    namespaces = settings.get(("Service", "RestrictNamespaces"), ())
    if not _allowed(namespaces, frozenset({"mnt"}), emptied=True):
        yield "RestrictNamespaces"
    bounding = settings.get(("Service", "CapabilityBoundingSet"), ())
    if not all(_allowed(bounding, frozenset({name}), emptied=False) for name in _CAPABILITIES):
        yield "CapabilityBoundingSet"
    if not _allowed(settings.get(("Service", "SystemCallFilter"), ()), _CALLS, emptied=True):
        yield "SystemCallFilter"


def _allowed(values: Sequence[str], names: frozenset[str], *, emptied: bool) -> bool:
    """Say whether a list lets one of ``names`` through; each value adds to it, or with ``~`` takes away.

    The first value tells whether the list is of what is allowed, or of what is not.

    :param emptied: whether the empty value takes the restriction back; else it allows nothing.
    """
    allowed, begun = True, False
    for value in values:
        words = {word.partition(":")[0] for word in value.lower().removeprefix("~").split()}
        inverted = value.startswith("~")
        if not words:
            allowed = inverted or emptied
            begun = not allowed
        elif words & (_TRUE | _FALSE):
            allowed, begun = bool(words & _FALSE), True
        elif names & words:
            allowed, begun = not inverted, True
        elif not begun:
            allowed, begun = inverted, True
    return allowed


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
    raw, words = _words(text)
    if len(raw) > 1 and PurePath(words[0]).name == PurePath(words[1]).name:
        program, arguments = raw[0], text.split(raw[0], 1)[1].lstrip(_WHITESPACE).removeprefix(raw[1])
        return program + arguments
    raise FailedPrecondition(
        f"{unit.name} gives its program another name (prefix @), which nsenter cannot",
        hint="name the program without @ in a drop-in, if it does not depend on how it is called",
    )


def _words(text: str) -> tuple[list[str], list[str]]:
    """Return the words of a command line, as they are written and without quotes.

    Of escapes those of single characters only: what is looked at are names, options and paths.
    """
    written, words = [], []
    raw, word, quote, escaped = "", "", "", False
    for character in text + " ":
        if not quote and not escaped and character in _WHITESPACE:
            if raw:
                written.append(raw)
                words.append(word)
            raw, word = "", ""
            continue
        raw += character
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
    if raw:  # the space behind the text did not end it
        raise InvalidArgument(f"ExecStart={text} ends inside of quotes")
    return written, words
