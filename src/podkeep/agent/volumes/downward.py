"""The downward API in files: fields of the pod and resources of its containers. Pure.

A file has what changes while the pod runs (labels, annotations, resources after a resize); addresses of the pod are for
environment variables only.
"""

from __future__ import annotations

from collections.abc import Mapping

from podkeep.agent.environment import resource_fields
from podkeep.api.pod import Pod
from podkeep.api.volumes import DownwardAPIVolumeFile
from podkeep.base.errors import InvalidArgument

_ESCAPES = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"} | {
    '"': '\\"',
    "\\": "\\\\",
}


def content(item: DownwardAPIVolumeFile, pod: Pod, allocatable: Mapping[str, str]) -> bytes:
    """Return what the file of one item holds.

    :raises InvalidArgument: if a file cannot have this field or resource.
    :raises NotFound: if the item names a container that the pod does not have.
    """
    if item.field_ref is not None:
        return field(pod, item.field_ref.field_path).encode(errors="replace")
    if item.resource_field_ref is not None:
        return resource_fields.value(pod, item.resource_field_ref, allocatable).encode()
    raise InvalidArgument(f"{item.path}: one of fieldRef and resourceFieldRef must be set")


def field(pod: Pod, path: str) -> str:
    """Return a field of the pod's metadata as text.

    :raises InvalidArgument: if a file cannot have this field.
    """
    metadata = pod.metadata
    holders = {"metadata.labels": metadata.labels, "metadata.annotations": metadata.annotations}
    if path.endswith("']") and "['" in path:
        holder, _, key = path.removesuffix("']").partition("['")
        if holder not in holders:
            raise InvalidArgument(f'fieldPath "{path}" does not support subscript')
        return holders[holder].get(key, "")
    if path in holders:
        return "\n".join(f"{key}={quoted(value)}" for key, value in sorted(holders[path].items()))
    values = {
        "metadata.name": metadata.name,
        "metadata.namespace": metadata.namespace,
        "metadata.uid": metadata.uid,
    }
    if path not in values:
        raise InvalidArgument(f"unsupported fieldPath: {path}")
    return values[path]


def quoted(text: str) -> str:
    """Return ``text`` in double quotes with the escapes that programs know from a kubelet (Go's ``%q``)."""
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable():
        return char
    code = ord(char)
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
