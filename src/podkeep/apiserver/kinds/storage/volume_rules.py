"""What the tables of PersistentVolumes and of their claims have in common, and the storage class of both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from podkeep.apiserver.kinds.cells import at

FILESYSTEM = "Filesystem"
CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"
"""The annotation that was there before ``storageClassName``."""
CLASS_DEPRECATED = 'deprecated since v1.8; use "storageClassName" attribute instead'
_ACCESS = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}


def access_text(modes: list[str]) -> str:
    """Return access modes as tables show them: ``RWO,ROX``."""
    return ",".join(short for mode, short in _ACCESS.items() if mode in modes)


def class_of(value: Mapping[str, Any]) -> str:
    """Return the storage class of a volume or claim."""
    annotations: Mapping[str, str] = at(value, "metadata", "annotations", default={})
    found: str = at(value, "spec", "storageClassName", default="")
    return annotations.get(CLASS_ANNOTATION, found)


def phase_cell(value: Mapping[str, Any]) -> str:
    if at(value, "metadata", "deletionTimestamp"):
        return "Terminating"
    phase: str = at(value, "status", "phase", default="")
    return phase
