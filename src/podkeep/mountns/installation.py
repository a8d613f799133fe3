"""Writing and removing the files that make systemd start daemons in the container mount namespace.

Owns: which files those are on this machine, or below a directory that holds another machine's root; which of them are
ours and unchanged; whether what they say is still what the daemons' units say. Called by ``podkeep mountns install``
and ``uninstall``, and by ``podkeep doctor``. Does not own: the texts (``units``), restarting anything.

A file is written only over one of ours. Each carries a digest of itself, so one that an administrator changed is
recognised, and left alone.
"""

from __future__ import annotations

import enum
import hashlib
import os
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePath

from podkeep.base import atomicfile, spawn
from podkeep.base.errors import FailedPrecondition, NotFound
from podkeep.base.frozen import FrozenStruct
from podkeep.mountns import execstart, unitfiles, units
from podkeep.mountns.execstart import Entry, Part
from podkeep.mountns.namespace_ref import UNIT

HOST = Path("/")
CONTAINERD = "containerd.service"
_PROGRAM_DIRECTORIES = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_WITHOUT_SYSTEMD = (
    "without systemd, have `podkeep mountns start` run before the daemons, and start them with "
    "`podkeep mountns exec -- COMMAND`; podkeep's own finds the namespace by itself"
)
_SERVICE = unitfiles.ADMINISTRATOR / UNIT
_MARK = "# Written by `podkeep mountns install`; `podkeep mountns uninstall` removes it, if it is not changed. sha256:"
_MARKED = re.compile(re.escape(_MARK) + r"([0-9a-f]{64})\n")


class Origin(enum.Enum):
    """Whose a file is."""

    OURS = "ours"
    CHANGED = "ours, changed since"
    FOREIGN = "somebody else's"


class Request(FrozenStruct, kw_only=True):
    """What to install: for a namespace pinned at ``pin``, on the machine whose root directory is ``root``.

    ``units`` empty: every one of :data:`units.DAEMONS` that exists (containerd only where there is a kubelet.service),
    and those that have a drop-in of ours. ``podkeep`` is the command with an absolute path and its global options, as
    that machine has it; None: the service works with util-linux alone. ``keep``: stopping the service leaves the
    namespace.
    """

    pin: Path
    podkeep: tuple[str, ...] | None
    root: Path = HOST
    units: tuple[str, ...] = ()
    keep: bool = False


class File(FrozenStruct, kw_only=True):
    """A file to be: ``path`` on the machine it is for, its whole text, permission bits."""

    path: PurePath
    text: str
    mode: int = 0o644


class Plan(FrozenStruct, kw_only=True):
    """What :func:`install` is about to do: files to be, drop-ins that are not needed any more, and sentences about what
    is left alone."""

    files: tuple[File, ...]
    obsolete: tuple[PurePath, ...]
    notes: tuple[str, ...]


class Report(FrozenStruct, kw_only=True):
    """What was done. Paths are those of the machine it was done for.

    ``notes`` are sentences: what was left alone, and why. ``restart`` are the daemons that go on as before until they
    are started anew.
    """

    written: tuple[PurePath, ...] = ()
    unchanged: tuple[PurePath, ...] = ()
    removed: tuple[PurePath, ...] = ()
    notes: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()
    reloaded: bool = False

    def restart_command(self) -> str:
        """Return what makes the daemons follow; empty if there are none."""
        return spawn.command_line(["systemctl", "restart", *self.restart]) if self.restart else ""


class Finding(FrozenStruct, kw_only=True):
    """Something about an installed drop-in that is not right any more."""

    unit: str
    message: str
    hint: str


def install(request: Request) -> Report:
    """Write the service, the drop-ins and ``nsenterCmns``; what is there already is left. Nothing is started.

    :raises NotFound: if a named unit does not exist, or systemd or nsenter are not on the machine.
    :raises FailedPrecondition: if a unit cannot be wrapped, or a file in the way is not ours; nothing is written then.
    :raises OSError: if a file cannot be written.
    """
    _program(request.root, "systemctl", package="systemd", hint=_WITHOUT_SYSTEMD)
    # All refusals come from here, before the first file is written.
    todo = plan(request)
    pending = [file for file in todo.files if not _is_there(request.root, file)]
    for file in pending:
        _write(request.root, file)
    for path in todo.obsolete:
        unitfiles.inside(request.root, path).unlink()
    changed = [path for path in (*(file.path for file in todo.files), *todo.obsolete) if path.name == units.DROP_IN]
    return Report(
        written=tuple(file.path for file in pending),
        unchanged=tuple(file.path for file in todo.files if file not in pending),
        removed=todo.obsolete,
        notes=todo.notes,
        restart=restarted(map(_unit_of, changed)) if request.root == HOST else (),
        reloaded=bool(pending or todo.obsolete) and _reload(request.root),
    )


def uninstall(root: Path = HOST) -> Report:
    """Remove every file that :func:`install` wrote and nobody changed since. Nothing is stopped.

    The service is left while a unit does not start without it.

    :raises DataLoss: if a unit's file cannot be read; nothing is removed then.
    :raises OSError: if a file cannot be removed.
    """
    removed, notes = [], []
    needed = _needed(root)
    for path in _installed(root):
        here = unitfiles.inside(root, path)
        origin = origin_of(here.read_text(errors="replace"))
        if origin is Origin.CHANGED:
            notes.append(f"{path} was changed since it was written and is left: remove it by hand")
        if origin is not Origin.OURS:
            continue
        # A unit that requires a service which is not there does not start any more (systemd.unit(5), Requires=).
        if path == _SERVICE and needed:
            notes.extend(needed)
            continue
        here.unlink()
        removed.append(path)
        if path.name == units.DROP_IN:
            with suppress(OSError):  # other drop-ins are in it
                here.parent.rmdir()
    return Report(
        removed=tuple(removed),
        notes=tuple(notes),
        restart=restarted(_unit_of(path) for path in removed if path.name == units.DROP_IN) if root == HOST else (),
        reloaded=bool(removed) and _reload(root),
    )


def restarted(names: Iterable[str]) -> tuple[str, ...]:
    """Return what ``systemctl restart`` takes for these units: for a template, all of its instances."""
    return tuple(name.replace("@.", "@*.") for name in names)


def findings(root: Path = HOST) -> list[Finding]:
    """Return what is not right any more with the installed drop-ins.

    :raises DataLoss: if a unit's file cannot be read.
    """
    found = []
    for name, path in _wrapped(root).items():
        parts = unitfiles.parts(root, name) or []
        ours = next((index for index, part in enumerate(parts) if _is_our_drop_in(part)), None)
        made_from = None if ours is None else units.original(parts[ours].text)
        if ours is None or made_from is None:
            continue
        again = f"podkeep mountns install, then: {Report(restart=restarted([name])).restart_command()}"
        before, after = parts[:ours], parts[ours + 1 :]
        if execstart.read(name, [*before, *after]).commands != (made_from,):
            message = f"{name} has another command now than when {path} was made from it, and starts with the old one"
            found.append(Finding(unit=name, message=message, hint=again))
        # The last ExecStart= counts, so a drop-in that sorts behind ours takes the daemon out of the namespace.
        later = [part.path for part in after for _, key, _ in execstart.parse(part) if key == "ExecStart"]
        if later:
            message = (
                f"{name} starts outside of the container mount namespace: the ExecStart= in {later[-1]} counts, "
                "not ours"
            )
            hint = f"give that file a name that sorts before {units.DROP_IN}, then: {again}"
            found.append(Finding(unit=name, message=message, hint=hint))
    return found


def plan(request: Request) -> Plan:
    """Return what there is to do.

    :raises NotFound: if a named unit, or nsenter, does not exist.
    :raises FailedPrecondition: if a unit cannot be wrapped, or a file in the way is not ours.
    """
    notes: list[str] = []
    files: list[File] = []
    obsolete: list[PurePath] = []
    name = units.service_of(request.pin)
    if name == UNIT:
        text = units.service(request.pin, podkeep=request.podkeep, keep=request.keep)
        files.append(File(path=_SERVICE, text=signed(text)))
    elif not unitfiles.parts(request.root, name):
        raise NotFound(
            f"{name} does not exist, and {request.pin} is where it pins its namespace",
            hint="set mountns.pin to another path, or leave it empty",
        )
    for path, text in _drop_ins(request, notes):
        if text:
            files.append(File(path=path, text=signed(text)))
        elif path in _installed(request.root):
            obsolete.append(path)
    files.append(File(path=units.HELPER, text=signed(units.helper(request.pin)), mode=0o755))
    return Plan(
        files=tuple(file for file in files if _may_write(request.root, file.path, notes)),
        obsolete=tuple(path for path in obsolete if _may_write(request.root, path, notes)),
        notes=tuple(notes),
    )


def signed(text: str) -> str:
    """Return a file's text with our mark and its digest, below the line that names the interpreter of a script."""
    head, body = _split_interpreter(text)
    return f"{head}{_MARK}{_digest(text)}\n{body}"


def origin_of(text: str) -> Origin:
    """Return whose a file with this text is."""
    head, body = _split_interpreter(text)
    match = _MARKED.match(body)
    if match is None:
        # Our mark at another place: somebody wrote above it.
        return Origin.CHANGED if _MARKED.search(text) else Origin.FOREIGN
    return Origin.OURS if match[1] == _digest(head + body[match.end() :]) else Origin.CHANGED


def _split_interpreter(text: str) -> tuple[str, str]:
    if not text.startswith("#!"):
        return "", text
    first, newline, rest = text.partition("\n")
    return first + newline, rest


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def _drop_ins(request: Request, notes: list[str]) -> Iterator[tuple[PurePath, str]]:
    """Yield the drop-in of each unit; its text is empty if the unit needs none."""
    entry = Entry(
        pin=request.pin,
        nsenter=_program(request.root, "nsenter", package="util-linux"),
        env=_program(request.root, "env", package="coreutils"),
    )
    known = _wrapped(request.root)
    wanted = request.units or tuple(dict.fromkeys((*_default(request.root, known, notes), *known)))
    for name in (name if "." in name else f"{name}.service" for name in wanted):
        parts = unitfiles.parts(request.root, name)
        if not parts:
            if request.units:
                state = "does not exist" if parts is None else "is masked"
                raise NotFound(f"{name} {state}", hint="name a service that systemd starts here")
            if parts is not None:
                notes.append(f"{name} is masked and left alone")
            continue
        # Without our own drop-in: what it wraps already would be wrapped once more.
        text = units.drop_in(execstart.read(name, [part for part in parts if not _is_our_drop_in(part)]), entry)
        if not text:
            notes.append(f"{name} starts its daemon in the namespace as it is")
        yield _drop_in_path(name, parts), text


def _default(root: Path, known: Container[str], notes: list[str]) -> Iterator[str]:
    """Yield the daemons that are wrapped without being named: not Docker's containerd, whose mounts are its own."""
    for name in units.DAEMONS:
        if name != CONTAINERD or name in known or unitfiles.parts(root, "kubelet.service") is not None:
            yield name
        elif unitfiles.parts(root, name):
            notes.append(
                f"{name} is left alone: without kubelet.service it is taken for Docker's "
                f"(`podkeep mountns install {name}` has it inside, too)"
            )


def _drop_in_path(name: str, parts: Sequence[Part]) -> PurePath:
    """Return where a unit's drop-in goes: under its own name, also if it was asked for by an alias."""
    own = PurePath(parts[0].path).name
    # What an instance is made from has drop-ins of its own.
    return unitfiles.ADMINISTRATOR / f"{own if own.endswith('.service') and '@' not in own else name}.d" / units.DROP_IN


def _is_our_drop_in(part: Part) -> bool:
    return PurePath(part.path).name == units.DROP_IN and origin_of(part.text) is not Origin.FOREIGN


def _needed(root: Path) -> list[str]:
    """Return a sentence for each unit that would not start without our service once our files are gone."""
    sentences = []
    for name in dict.fromkeys((*units.DAEMONS, *_wrapped(root))):
        stays = [
            part
            for part in unitfiles.parts(root, name) or []
            if PurePath(part.path).name != units.DROP_IN or origin_of(part.text) is not Origin.OURS
        ]
        files = [part.path for part in stays if UNIT in execstart.read(name, [part]).names("Requires")]
        if not files:
            continue
        fix = f"take that out of {', '.join(files)}"
        if name == "podkeep.service":
            fix += ", or write that unit anew with `podkeep --set mountns.enabled=false runtime unit`"
        sentences.append(
            f"{_SERVICE} is left: {name} does not start without it ({', '.join(files)}); {fix}, "
            "then `podkeep mountns uninstall` again"
        )
    return sentences


def _unit_of(drop_in: PurePath) -> str:
    return drop_in.parent.name.removesuffix(".d")


def _may_write(root: Path, path: PurePath, notes: list[str]) -> bool:
    """Say whether a file may be written or removed; note why not.

    :raises FailedPrecondition: if something else is where a drop-in must be.
    """
    here = unitfiles.inside(root, path)
    # systemd takes a link to /dev/null for a mask: an administrator wants nothing there.
    if here == unitfiles.inside(root, PurePath(os.devnull)):
        notes.append(f"{path} is masked and left alone")
        return False
    if not os.path.lexists(here):
        return True
    origin = origin_of(here.read_text(errors="replace")) if here.is_file() else Origin.FOREIGN
    if origin is Origin.OURS:
        return True
    if path.name == units.DROP_IN:
        raise FailedPrecondition(
            f"{path} is {origin.value}; nothing was written", hint="move it out of the way, then install again"
        )
    notes.append(f"{path} is {origin.value}, and left as it is")
    return False


def _installed(root: Path) -> list[PurePath]:
    """Return where files of ours are or may be; each exists."""
    directory = unitfiles.inside(root, unitfiles.ADMINISTRATOR)
    found = [unitfiles.ADMINISTRATOR / entry.relative_to(directory) for entry in directory.glob(f"*.d/{units.DROP_IN}")]
    candidates = [*sorted(found), _SERVICE, units.HELPER]
    return [path for path in candidates if unitfiles.inside(root, path).is_file()]


def _wrapped(root: Path) -> dict[str, PurePath]:
    """Return the units that have a drop-in of ours, and its path."""
    return {_unit_of(path): path for path in _installed(root) if path.name == units.DROP_IN}


def _is_there(root: Path, file: File) -> bool:
    here = unitfiles.inside(root, file.path)
    if not here.is_file():
        return False
    return here.read_text(errors="replace") == file.text and here.stat().st_mode & 0o7777 == file.mode


def _write(root: Path, file: File) -> None:
    here = unitfiles.inside(root, file.path)
    here.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    atomicfile.write(here, file.text.encode(errors="surrogateescape"), mode=file.mode)


def _program(root: Path, name: str, *, package: str, hint: str = "") -> Path:
    """:raises NotFound: if the machine at ``root`` does not have this program."""
    for directory in _PROGRAM_DIRECTORIES:
        path = PurePath(directory) / name
        if os.access(unitfiles.inside(root, path), os.X_OK):
            return Path(path)
    raise NotFound(f"there is no {package} in {root}: no program {name}", hint=hint or f"install {package}")


def _reload(root: Path) -> bool:
    """Let a running systemd read its files again; return whether one runs here."""
    if root != HOST or not Path("/run/systemd/system").is_dir():  # sd_booted(3)
        return False
    spawn.run(["systemctl", "daemon-reload"]).check()
    return True
