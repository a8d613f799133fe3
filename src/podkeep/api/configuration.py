"""v1.ConfigMap and v1.Secret: the two sources of configuration a Pod may name."""

from __future__ import annotations

import msgspec

from podkeep.api.meta import ObjectMeta
from podkeep.api.structs import ApiStruct


class ConfigMap(ApiStruct, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
    immutable: bool | None = None
    data: dict[str, str] = msgspec.field(default_factory=dict)
    binary_data: dict[str, bytes] = msgspec.field(default_factory=dict)


class Secret(ApiStruct, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
    immutable: bool | None = None
    data: dict[str, bytes] = msgspec.field(default_factory=dict)
    string_data: dict[str, str] = msgspec.field(default_factory=dict)
    type: str = ""
