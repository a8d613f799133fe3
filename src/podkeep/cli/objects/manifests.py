"""Objects in files, as ``apply -f`` and ``delete -f`` take them: YAML or JSON, files, directories, standard input."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from podkeep.base.errors import InvalidArgument
from podkeep.base.frozen import FrozenStruct

_SUFFIXES = (".json", ".yaml", ".yml")


class Written(FrozenStruct, kw_only=True):
    """An object of a file; ``where`` names the file and the line."""

    where: str
    value: dict[str, Any]

    @property
    def api_version(self) -> str:
        return str(self.value["apiVersion"])

    @property
    def kind(self) -> str:
        return str(self.value["kind"])

    @property
    def name(self) -> str:
        return str(self.value["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.value["metadata"].get("namespace") or "")


def read(files: Sequence[Path]) -> list[Written]:
    """Return the objects in files, in their order; a List is its items.

    :raises InvalidArgument: naming file and line, if one cannot be read or is no object.
    """
    found = [item for path in files for source in _sources(path) for item in _read(source)]
    if not found:
        raise InvalidArgument(f"no objects in {', '.join(map(str, files))}")
    return found


def _sources(path: Path) -> list[Path]:
    """Return the files of a directory, by name (as kubectl, without those below); or the file itself."""
    if str(path) == "-" or not path.is_dir():
        return [path]
    return sorted(item for item in path.iterdir() if item.suffix in _SUFFIXES and item.is_file())


def _read(path: Path) -> Iterator[Written]:
    from podkeep.api import documents

    for document in documents.parse(text_of(path), source=str(path)):
        yield from _objects(f"{document.source}:{document.line}", document.value)


def text_of(path: Path) -> str:
    """Return what a file says, ``-``: standard input. No more is read than a manifest may have: a device or a pipe may
    have no end.

    :raises InvalidArgument: naming the file, if it cannot be read, is larger than that, or neither UTF-8 nor UTF-16
        with a byte order mark.
    """
    from podkeep.api import documents

    try:
        if str(path) == "-":
            data = sys.stdin.buffer.read(documents.MAX_BYTES + 1)
        else:
            with path.open("rb") as file:
                data = file.read(documents.MAX_BYTES + 1)
        if len(data) > documents.MAX_BYTES:
            source = "<stdin>" if str(path) == "-" else path
            raise InvalidArgument(f"{source}: larger than {documents.MAX_BYTES >> 20} MiB")
        # YAML 1.2, section 5.2; an editor of Windows writes such files, and kubectl reads them.
        is_utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        return data.decode("utf-16" if is_utf16 else "utf-8")
    except OSError as error:
        raise InvalidArgument(f"{path}: {error.strerror}", hint=_of_address(path)) from error
    except UnicodeDecodeError as error:
        raise InvalidArgument(
            f"{path}: not {error.encoding.upper()} text: {error.reason} at byte {error.start}"
        ) from error


def _of_address(path: Path) -> str:
    """Return the hint for somebody who gave an address of the web, as kubectl takes it."""
    # A path has no two slashes on end.
    scheme, colon, place = str(path).partition(":/")
    if not colon or scheme.lower() not in ("http", "https"):
        return ""
    return f"only files are read: `curl -fsSL {scheme}://{place} |` before this command, and - as the file"


def _objects(where: str, value: Any) -> Iterator[Written]:
    if not isinstance(value, dict):
        raise InvalidArgument(f"{where}: an object was expected, with apiVersion, kind and metadata")
    for key in ("apiVersion", "kind"):
        if not isinstance(value.get(key), str) or not value[key]:
            raise InvalidArgument(f"{where}: {key} is missing")
    if value["kind"] == "List" and isinstance(value.get("items"), list):
        for item in value["items"]:
            yield from _objects(where, item)
        return
    metadata = value.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str) or not metadata["name"]:
        generated = isinstance(metadata, dict) and metadata.get("generateName")
        hint = "only what is created can have a generateName: `kubectl create`" if generated else ""
        raise InvalidArgument(f"{where}: metadata.name is missing", hint=hint)
    yield Written(where=where, value=value)
