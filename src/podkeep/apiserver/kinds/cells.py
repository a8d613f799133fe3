"""What ``kubectl get`` shows in the cells of tables (kubectl and kube-apiserver: ``pkg/printers``). Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from podkeep.apiserver.kinds.resources import Column
from podkeep.base.text import durations

NONE = "<none>"
_EXPRESSIONS = {
    "In": "{key} in ({values})",
    "NotIn": "{key} notin ({values})",
    "Exists": "{key}",
    "DoesNotExist": "!{key}",
}


def since(moment: str | None, now: datetime) -> str:
    """Return how long ago a time of the API is; ``<unknown>`` if there is none."""
    return durations.short((now - datetime.fromisoformat(moment)).total_seconds()) if moment else "<unknown>"


def at(value: Mapping[str, Any], *path: str, default: Any = None) -> Any:
    """Return a field of an object, or of one within it; ``default`` if it is not there."""
    found: Any = value
    for name in path:
        found = found.get(name)
        if found is None:
            return default
    return found


def label_text(labels: Mapping[str, str]) -> str:
    """Return labels as ``a=b,c=d``; ``<none>`` if there are none."""
    return ",".join(sorted(f"{key}={value}" for key, value in labels.items())) or NONE


def selector_text(selector: Mapping[str, Any] | None) -> str:
    """Return a ``LabelSelector`` as query parameters write it: ``a=b,c in (d,e),!f``. Empty if there is none."""
    if selector is None:
        return ""
    texts = [(key, f"{key}={value}") for key, value in selector.get("matchLabels", {}).items()]
    for item in selector.get("matchExpressions", ()):
        key, values = item["key"], ",".join(sorted(item.get("values", ())))
        texts.append((key, _EXPRESSIONS[item["operator"]].format(key=key, values=values)))
    return ",".join(text for _, text in sorted(texts, key=lambda pair: pair[0]))


def listed(items: Iterable[str], none: str, most: int = 3) -> str:
    """Return texts as ``a,b``; of more than ``most`` the first ones, and how many more there are."""
    found = list(items)
    shown = ",".join(found[:most])
    return f"{shown} + {len(found) - most} more..." if len(found) > most else shown or none


# columns


def column(
    name: str,
    cell: Callable[[Mapping[str, Any]], Any],
    *,
    type: str = "string",  # noqa: A002 - the name of the field
    wide: bool = False,
    description: str = "",
) -> Column:
    """Return a column whose cells do not depend on the time."""
    return Column(
        name=name, cell=lambda value, _: cell(value), type=type, priority=1 if wide else 0, description=description
    )


def number(name: str, *path: str, type: str = "integer") -> Column:  # noqa: A002 - the name of the field
    """Return a column of a number, which is 0 where it is not set."""
    return column(name, lambda value: at(value, *path, default=0), type=type)


NAME = Column(name="Name", cell=lambda value, _: value["metadata"]["name"], format="name")
AGE = Column(name="Age", cell=lambda value, now: since(at(value, "metadata", "creationTimestamp"), now))


def containers(*template: str, wide: bool = True) -> tuple[Column, Column]:
    """Return the columns of the names and images of a template's containers; ``template`` is its path."""
    path = (*template, "spec", "containers")

    def joined(field: str) -> Callable[[Mapping[str, Any]], str]:
        return lambda value: ",".join(item.get(field, "") for item in at(value, *path, default=()))

    return (
        column("Containers", joined("name"), wide=wide, description="Names of each container in the template."),
        column(
            "Images", joined("image"), wide=wide, description="Images referenced by each container in the template."
        ),
    )


def selector(*path: str, none: str = NONE) -> Column:
    return column("Selector", lambda value: selector_text(at(value, *path)) or none, wide=True)


def label_selector(*path: str) -> Column:
    """Return the column of a selector that is a map of labels."""
    return column("Selector", lambda value: label_text(at(value, *path, default={})), wide=True)
