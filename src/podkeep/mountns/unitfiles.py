"""Which files a systemd unit consists of, on this machine or in a directory that holds another one's root.

Owns: systemd's search order (systemd.unit(5), UNIT FILE LOAD PATH), masks, aliases, drop-ins. Called by
``installation``, which wants to know what a unit would be without the files it wrote itself. Reads only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePath

from podkeep.base.errors import DataLoss
from podkeep.mountns.execstart import Part

ADMINISTRATOR = PurePath("/etc/systemd/system")
"""Where an administrator's units and drop-ins are."""

SEARCHED = (
    "/etc/systemd/system.control",
    "/run/systemd/system.control",
    "/run/systemd/transient",
    "/run/systemd/generator.early",
    str(ADMINISTRATOR),
    "/etc/systemd/system.attached",
    "/run/systemd/system",
    "/run/systemd/system.attached",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
    "/run/systemd/generator.late",
)
"""Where systemd looks for units; what is found first counts."""
_MOST_LINKS = 40


def inside(root: Path, path: PurePath) -> Path:
    """Return where ``path`` of the machine whose root directory is ``root`` is here, following its symbolic links.

    A link leads no further up than ``root``. What does not exist is taken as it is named.

    :raises DataLoss: if links lead in a circle.
    """
    rest, done, links = list(path.parts[1:]), PurePath("/"), 0
    while rest:
        name = rest.pop(0)
        if name == "..":
            # `..` at the root stays there, as in a chroot.
            done = done.parent
            continue
        here = root / done.relative_to("/") / name
        if not here.is_symlink():
            done /= name
            continue
        links += 1
        if links > _MOST_LINKS:
            raise DataLoss(f"{root / path.relative_to('/')}: too many levels of symbolic links")
        target = PurePath(os.readlink(here))
        if target.is_absolute():
            done = PurePath("/")
        rest = [*(part for part in target.parts if part != "/"), *rest]
    return root / done.relative_to("/")


def parts(root: Path, name: str) -> list[Part] | None:
    """Return the files of a unit, its fragment first; none if it is masked. None: there is no such unit.

    :raises DataLoss: if a file is not text.
    """
    fragment = _fragment(root, name)
    if fragment is None:
        return None
    path, known_as = fragment
    if _is_mask(path):
        return []
    files = [path, *_drop_ins(root, known_as)]
    return [Part(path=str(PurePath("/") / file.relative_to(root)), text=_text(file)) for file in files]


def _fragment(root: Path, name: str) -> tuple[Path, list[str]] | None:
    """Return the file of a unit, and the names under which drop-ins of it may be.

    An instance that has no file of its own is made from its template, and has the template's drop-ins in any case.
    """
    names = [name]
    stem, at, instance = name.rpartition(".")[0].partition("@")
    if at and instance:
        names.append(f"{stem}@.{name.rpartition('.')[2]}")
    for candidate in names:
        for directory in SEARCHED:
            named = root / directory[1:] / candidate
            # A link counts also if it leads nowhere: a mask is one, and so is a link whose target is on the other
            # machine only.
            if named.is_symlink() or named.is_file():
                path = inside(root, PurePath(directory) / candidate)
                alias = [path.name] if path.name.endswith(".service") and path.name not in names else []
                return path, [*alias, *names]
    return None


def _drop_ins(root: Path, names: list[str]) -> list[Path]:
    """Return the drop-ins of a unit in the order of their names; of several with one name the first found counts."""
    found: dict[str, Path] = {}
    for directory in _drop_in_directories(names):
        place = inside(root, directory)
        for entry in place.glob("*.conf") if place.is_dir() else ():
            found.setdefault(entry.name, inside(root, PurePath("/") / entry.relative_to(root)))
    return [found[name] for name in sorted(found, key=os.fsencode) if not _is_mask(found[name])]


def _drop_in_directories(names: list[str]) -> Iterator[PurePath]:
    """Yield where drop-ins may be: under a unit's name, under the beginnings of its name, under its type."""
    for name in names:
        for directory in SEARCHED:
            stem, _, kind = name.rpartition(".")
            yield PurePath(directory) / f"{name}.d"
            while "-" in stem.rstrip("-"):
                stem = stem.rstrip("-").rpartition("-")[0]
                yield PurePath(directory) / f"{stem}-.{kind}.d"
    for directory in SEARCHED:
        yield PurePath(directory) / "service.d"


def _is_mask(path: Path) -> bool:
    """Say whether a file is a link to /dev/null, or empty: both hide what else has its name."""
    return not path.is_file() or path.stat().st_size == 0


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except UnicodeDecodeError as error:
        raise DataLoss(f"{path} is not a text in UTF-8") from error
