"""The columns of kinds that kube-apiserver has no printer for: roles, limit ranges."""

from __future__ import annotations

from podkeep.apiserver.kinds.cells import NAME, at
from podkeep.apiserver.kinds.resources import Column

COLUMNS = (
    NAME,
    Column(
        name="Created At",
        type="date",
        cell=lambda value, _: at(value, "metadata", "creationTimestamp", default="0001-01-01T00:00:00Z"),
    ),
)
