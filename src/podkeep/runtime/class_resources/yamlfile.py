"""Reads a file of classes as YAML, strictly: what it does not know, or reads twice, is an error with file and line.

Owns: the tree of :class:`Node`, each with its place in the file, and the questions that may be asked of one. Does not
own: what a file means (``rdt/configuration.py``, ``blockio/configuration.py``). Keys that a file's format defines are
read without regard to case, as Go's decoder does, for whose tools such files were written; names that a user chose are
not. Merge keys (``<<``) and aliases work.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from podkeep.base.errors import InvalidArgument
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text.similar import similar
from podkeep.kernel.files import openat

if TYPE_CHECKING:
    import yaml

MAX_BYTES = 1 << 20
"""Largest file read; a thousand classes need a tenth of that."""
_MAX_DEPTH = 40
_MERGE = "tag:yaml.org,2002:merge"
_NULL = "tag:yaml.org,2002:null"
_STRING = "tag:yaml.org,2002:str"
_BOOL = "tag:yaml.org,2002:bool"
_SCALARS = frozenset(
    {_NULL, _STRING, _BOOL, _MERGE}
    | {f"tag:yaml.org,2002:{name}" for name in ("int", "float", "timestamp", "value", "map", "seq")}
)
_BOOLEANS = {"true": True, "false": False}


class Node(FrozenStruct, kw_only=True):
    """One value of a file and where it is. Every question that does not fit the value raises, naming the place."""

    source: str
    """The file, as it shall be named in messages."""
    path: tuple[str, ...]
    """The keys that lead here, and the positions in lists such as ``[0]``."""
    value: yaml.Node | None
    """What PyYAML composed; None: nothing is written there."""
    line: int
    """From 1; of a value that is not there, its key's."""

    @property
    def place(self) -> str:
        """Return where it is: ``FILE:LINE: keys``."""
        keys = ".".join(part if part and part.isprintable() else repr(part) for part in self.path).replace(".[", "[")
        return f"{self.source}:{self.line}{': ' if keys else ''}{keys}"

    def error(self, text: str, *, hint: str = "") -> InvalidArgument:
        """Return (not raise) the error that something is wrong with this value."""
        return InvalidArgument(f"{self.place}: {text}", hint=hint)

    @property
    def is_null(self) -> bool:
        """Is nothing written here, or ``null``?"""
        return self.value is None or self.value.tag == _NULL

    @property
    def is_mapping(self) -> bool:
        return _shape(self.value) == "mapping"

    @property
    def is_list(self) -> bool:
        return _shape(self.value) == "sequence"

    def entries(self) -> dict[str, Node]:
        """Return keys that the user chose and their values, in the file's order; nothing written: none.

        :raises InvalidArgument: if it is no mapping, or a key is there twice.
        """
        if self.is_null:
            return {}
        if not self.is_mapping:
            raise self.error(f"must be keys and values, not {self._kind()}")
        found: dict[str, Node] = {}
        for key, value in self._pairs():
            if key in found:
                raise self._child(key, value).error(f"is there twice, first in line {found[key].line}")
            found[key] = self._child(key, value)
        for key, node in self._merged():
            found.setdefault(key, node)
        return found

    def fields(self, known: Collection[str]) -> dict[str, Node]:
        """Return the values of keys that the format defines, by their names in ``known``; nothing written: none.

        :raises InvalidArgument: if it is no mapping, or a key is unknown or there twice (also in another case).
        """
        names = {name.lower(): name for name in known}
        found: dict[str, Node] = {}
        for key, node in self.entries().items():
            name = names.get(key.lower())
            if name is None:
                raise node.error("unknown key", hint=_suggest(key, known))
            if name in found:
                raise node.error(f"is there twice, first in line {found[name].line}")
            found[name] = node
        return found

    def items(self) -> list[Node]:
        """Return the entries of a list; nothing written: none.

        :raises InvalidArgument: if it is no list.
        """
        if self.is_null:
            return []
        if not self.is_list or self.value is None:
            raise self.error(f"must be a list, not {self._kind()}")
        return [
            Node(source=self.source, path=(*self.path, f"[{index}]"), value=entry, line=entry.start_mark.line + 1)
            for index, entry in enumerate(self.value.value)
        ]

    def text(self) -> str:
        """Return a single value as it is written, without quotes: ``0xff`` is those four characters, not 255.

        :raises InvalidArgument: if nothing is written there, or keys or a list.
        """
        if self.is_null or self.value is None or _shape(self.value) != "scalar":
            raise self.error(f"must be a single value, not {self._kind()}")
        return str(self.value.value)

    def boolean(self) -> bool:
        """Return ``true`` or ``false``.

        :raises InvalidArgument: if it is anything else; ``yes`` and ``on`` mean that in YAML 1.1 alone.
        """
        text = self.text()
        if self.value is None or self.value.tag != _BOOL or text.lower() not in _BOOLEANS:
            raise self.error(f"must be true or false, not {text!r}")
        return _BOOLEANS[text.lower()]

    def _child(self, key: str, value: tuple[yaml.Node, yaml.Node]) -> Node:
        return Node(source=self.source, path=(*self.path, key), value=value[1], line=value[0].start_mark.line + 1)

    def _pairs(self) -> Iterator[tuple[str, tuple[yaml.Node, yaml.Node]]]:
        assert self.value is not None  # only asked of mappings
        for key, value in self.value.value:
            if _shape(key) != "scalar":
                raise InvalidArgument(f"{self.source}:{key.start_mark.line + 1}: a key must be a single value")
            if key.tag != _MERGE:
                yield str(key.value), (key, value)

    def _merged(
        self, above: tuple[yaml.Node, ...] = (), seen: set[yaml.Node] | None = None
    ) -> Iterator[tuple[str, Node]]:
        """Yield what ``<<`` brings, in order of precedence; of what is named more than once the first counts."""
        assert self.value is not None
        above, seen = (*above, self.value), set() if seen is None else seen
        if len(above) > _MAX_DEPTH:
            raise self.error(f"takes over more than {_MAX_DEPTH} levels deep")
        for key, value in self.value.value:
            if key.tag != _MERGE:
                continue
            here = self._child("<<", (key, value))
            for part in here.items() if here.is_list else [here]:
                if not part.is_mapping or part.value is None:
                    raise here.error("must name keys and values to take over, such as *anchor")
                if any(part.value is node for node in above):
                    raise here.error("takes itself over")
                if part.value in seen:
                    continue
                # Each is read once: thirty keys that take over the one before twice would otherwise be 2**30 visits.
                seen.add(part.value)
                for name, pair in part._pairs():
                    yield name, self._child(name, pair)
                for name, node in part._merged(above, seen):
                    yield name, Node(source=self.source, path=(*self.path, name), value=node.value, line=node.line)

    def _kind(self) -> str:
        if self.is_null or self.value is None:
            return "nothing"
        return {"mapping": "keys and values", "sequence": "a list"}.get(_shape(self.value)) or repr(
            str(self.value.value)
        )


def _shape(node: yaml.Node | None) -> str:
    """Return ``scalar``, ``sequence`` or ``mapping``; nothing if there is none."""
    return str(getattr(node, "id", ""))


def load(path: Path) -> Node:
    """Read a file; a pipe in its place is not waited for.

    :raises InvalidArgument: naming the file and, where it can be, the line, if the file cannot be read or is not one
        document of YAML.
    """
    try:
        fd = openat.open_named_regular(path)
        if fd is None:
            raise InvalidArgument(f"{path}: not a regular file")
        with openat.closing(fd):
            data = openat.read_bytes(fd, MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise InvalidArgument(f"{path}: larger than {MAX_BYTES >> 10} KiB")
        return parse(data.decode(), source=str(path))
    except OSError as error:
        raise InvalidArgument(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{path}: not UTF-8 text: {error.reason} at byte {error.start}") from error


def parse(text: str, *, source: str) -> Node:
    """Return the tree of ``text``; of an empty text a node with nothing in it.

    :param source: name of the file for messages.
    :raises InvalidArgument: as :func:`load`.
    """
    import yaml  # few nodes have such files

    try:
        _refuse_odd(text, source)
        value = yaml.compose(text, Loader=yaml.CSafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1}" if mark is not None else source
        raise InvalidArgument(f"{where}: not YAML: {error.problem or error.context}") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InvalidArgument(f"{source}:{line}: not YAML: {error.reason}") from error
    except yaml.YAMLError as error:
        raise InvalidArgument(f"{source}: not YAML: {' '.join(str(error).split())}") from error
    return Node(source=source, path=(), value=value, line=value.start_mark.line + 1 if value else 1)


def _refuse_odd(text: str, source: str) -> None:
    """Raise where a tree cannot be built safely, or means something odd."""
    import yaml

    from podkeep.base.text import yaml_text

    documents = 0
    for event, depth in yaml_text.events(text):
        place = f"{source}:{event.start_mark.line + 1 if event.start_mark else 1}"
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise InvalidArgument(f"{place}: a second document", hint="put everything into one")
        elif depth > _MAX_DEPTH:
            raise InvalidArgument(f"{place}: nested more than {_MAX_DEPTH} levels deep")
        tag = getattr(event, "tag", None)
        if tag not in {None, "!"} and tag not in _SCALARS:
            raise InvalidArgument(f"{place}: the tag {tag} means nothing here")


def _suggest(key: str, known: Collection[str]) -> str:
    near = similar(key, known)
    return f"did you mean {near[0]}?" if near else f"known here: {', '.join(sorted(known))}"
