"""From the text of a manifest to plain values: YAML (and so JSON), several documents in one text.

Reads YAML as Kubernetes does: duplicate keys are errors, unless somebody asks to be told of them; ``1:30`` and
timestamps stay text, keys become text. A text that expands without measure through aliases is refused before it
expands. Does not know any Kubernetes type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable
from itertools import chain
from typing import Any, TypeAlias

import yaml

from podkeep.base.errors import InvalidArgument
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text import yaml_text

MAX_BYTES = 10 << 20
"""Largest manifest read, the kubelet's limit for a static pod file."""
_MAX_NODES = 500_000
"""Of a document, and of what the aliases of all documents of a text add to it."""
_MAX_DEPTH = 200
_MAX_REPEATED_CHARACTERS = MAX_BYTES
"""Of texts that aliases repeat: a value in memory has each once, and what is written of it all of them."""


class Document(FrozenStruct, kw_only=True):
    """One document: where it came from, which one it was (from 1), its first line, and its plain value."""

    source: str
    index: int
    line: int
    value: Any


class TooManyValues(InvalidArgument):
    """A text has more values than its reader takes, keys and what aliases repeat among them."""


class _Loader(yaml.CSafeLoader):
    """YAML 1.1 without its surprises: no sexagesimal numbers, no timestamps, ``0o17`` is octal."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]]


_INT = re.compile(r"[-+]?(?:0[xX][0-9a-fA-F_]+|0o[0-7_]+|0b[01_]+|0[0-7_]*|[1-9][0-9_]*)")
_MAX_DIGITS = 100
_FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9][0-9_]*(?=[eE]))(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_RESOLVERS = {"tag:yaml.org,2002:int": _INT, "tag:yaml.org,2002:float": _FLOAT}
# A table of its own: the library's belongs to whoever else reads YAML in this process.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in {*_RESOLVERS, "tag:yaml.org,2002:timestamp"}]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _pattern in _RESOLVERS.items():
    _Loader.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern.pattern})$"), list("-+.0123456789"))


def _construct_int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node)).replace("_", "")
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("+-")
    if len(digits) > _MAX_DIGITS:  # an error would show it, which takes longer than to read it
        raise _problem(node, f"a number of {len(digits)} digits")
    # Octal in YAML 1.1, which Kubernetes reads; int() with base 0 refuses a leading zero.
    if len(digits) > 1 and digits[0] == "0" and digits[1].isdigit():
        return sign * int(digits, 8)
    return sign * int(digits, 0)


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)


Repeated: TypeAlias = Callable[[str, int], None]
"""Told of a key that a mapping has again, and the line (from 1) of its value there."""


def parse(
    text: str, *, source: str, on_repeated: Repeated | None = None, max_nodes: int | None = None
) -> list[Document]:
    """Return the documents of ``text`` in order; empty ones are left out but keep their number.

    :param source: name of the file for messages; ``-`` is shown as ``<stdin>``.
    :param on_repeated: told of each repeated key, whose last value counts then; None: that is an error.
    :param max_nodes: how many values and keys all documents may have: reading goes no further, as each takes 10 µs.
    :raises TooManyValues: if there are more.
    :raises InvalidArgument: naming source, line and column, if the text is not YAML, repeats a key, is too large or too
        deep, or expands without measure.
    """
    source = "<stdin>" if source == "-" else source
    # A lone surrogate is let through here, outside of `try`; the loader refuses it below.
    if len(text.encode(errors="surrogatepass")) > MAX_BYTES:
        raise InvalidArgument(f"{source}: larger than {MAX_BYTES >> 20} MiB")
    documents = []
    try:
        _refuse_shape(text, source, max_nodes)  # before the loader, whose composer would recurse
        loader = _Loader(text)
        try:
            index = repeated = characters = 0
            while loader.check_node():
                node = loader.get_node()
                index += 1
                if node is None:
                    continue
                # Over all documents: each may be just small enough by itself.
                more, longer = _refuse_bombs(node)
                repeated += more
                characters += longer
                if max_nodes is not None and repeated > max_nodes:
                    raise TooManyValues(f"{source}: more than {max_nodes} values")
                if repeated > _MAX_NODES:
                    raise _problem(node, f"aliases up to here repeat more than {_MAX_NODES} values")
                if characters > _MAX_REPEATED_CHARACTERS:
                    raise _problem(node, f"aliases up to here repeat more than {_MAX_REPEATED_CHARACTERS} characters")
                value = _plain(loader, node, on_repeated)
                if value is not None:
                    line = node.start_mark.line + 1
                    documents.append(Document(source=source, index=index, line=line, value=value))
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise InvalidArgument(f"{source}: {where}{error.problem or error.context}") from error
    # Aliases that refer to aliases nest values that do not nest in the text, which is what _refuse_shape looks at.
    except RecursionError as error:
        raise InvalidArgument(f"{source}: its aliases nest too deeply") from error
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidArgument(f"{source}: not YAML: {error}") from error
    return documents


def _refuse_shape(text: str, source: str, max_nodes: int | None) -> None:
    """Raise if ``text`` has too many values or documents, or nests too deeply."""
    nodes = 0
    for event, depth in yaml_text.events(text):
        if isinstance(event, yaml.NodeEvent | yaml.DocumentStartEvent):
            nodes += 1
            if max_nodes is not None and nodes > max_nodes:
                raise TooManyValues(f"{source}: more than {max_nodes} values")
        if depth > _MAX_DEPTH:
            raise _problem(event, f"nested more than {_MAX_DEPTH} levels deep")


def _refuse_bombs(root: yaml.Node) -> tuple[int, int]:
    """Return how many values the aliases below ``root`` add, and how many characters of them; raise if it is recursive
    or, expanded, has too many values.
    """
    sizes: dict[int, tuple[int, int]] = {}
    open_nodes: set[int] = set()
    written = 0

    def size(node: yaml.Node) -> tuple[int, int]:
        nonlocal written
        if id(node) in sizes:
            return sizes[id(node)]
        if id(node) in open_nodes:
            raise _problem(node, "this alias refers to a value that contains it")
        open_nodes.add(id(node))
        values, characters = 1, 0
        if isinstance(node, yaml.ScalarNode):
            characters = len(node.value)
            written += characters
        for child in _children(node):
            more, longer = size(child)
            values += more
            characters += longer
        if values > _MAX_NODES:
            raise _problem(node, f"holds more than {_MAX_NODES} values once its aliases are expanded")
        open_nodes.remove(id(node))
        sizes[id(node)] = values, characters
        return values, characters

    values, characters = size(root)
    return values - len(sizes), characters - written


def _children(node: yaml.Node) -> Iterable[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return chain.from_iterable(node.value)
    return node.value if isinstance(node, yaml.SequenceNode) else ()


def _plain(loader: Any, node: yaml.Node, on_repeated: Repeated | None = None) -> Any:
    """Return ``node`` as dict, list, str, int, float, bool or None."""
    if node.tag not in _TAGS:
        raise _problem(node, f"the tag {node.tag} has no meaning in a manifest")
    if isinstance(node, yaml.SequenceNode):
        return [_plain(loader, item, on_repeated) for item in node.value]
    if not isinstance(node, yaml.MappingNode):
        try:
            return loader.construct_object(node)
        # What the library raises for an explicit tag on a text that does not fit: IndexError for `!!float ''`, KeyError
        # for `!!bool x`.
        except (ArithmeticError, LookupError, ValueError) as error:
            raise _problem(node, f"this is no {node.tag.rpartition(':')[2]}") from error
    merged: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for key_node, value_node in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            for part in value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]:
                content = _plain(loader, part, on_repeated)
                if not isinstance(content, dict):
                    raise _problem(part, "only a mapping can be merged with <<")
                for name, item in content.items():
                    merged.setdefault(name, item)
            continue
        key = _key(loader, key_node)
        value = _plain(loader, value_node, on_repeated)
        if key in own:
            if on_repeated is None:
                raise _problem(key_node, f"the key {key!r} is given twice")
            on_repeated(key, value_node.start_mark.line + 1)
        own[key] = value
    # A key of its own wins over a merged one wherever in the mapping `<<` stands.
    return merged | own


_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "seq", "map"))


def _key(loader: Any, node: yaml.Node) -> str:
    """Return a mapping key as text, the way JSON needs it."""
    key: Hashable = _plain(loader, node) if isinstance(node, yaml.ScalarNode) else None
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, str | int | float):
        return str(key)
    raise _problem(node, "a key must be a text")


def _problem(node: Any, text: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=text, problem_mark=node.start_mark)
