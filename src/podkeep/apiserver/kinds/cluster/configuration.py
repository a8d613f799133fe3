"""ConfigMaps and Secrets."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from podkeep.api import names
from podkeep.api.fields import FieldErrors
from podkeep.api.validation.secret_types import BASIC_AUTH, DOCKER_KEYS, REDACTED, SSH_AUTH, TLS
from podkeep.apiserver.kinds.cells import AGE, NAME, at, column
from podkeep.apiserver.kinds.field_rules import immutable
from podkeep.apiserver.kinds.resources import Resource, Strategy
from podkeep.apiserver.meta.objects import Object, metadata
from podkeep.apiserver.schema.table import Kind

MAX_BYTES = 1 << 20
"""Of all values together."""
OPAQUE = "Opaque"
SERVICE_ACCOUNT_TOKEN = "kubernetes.io/service-account-token"
ACCOUNT_NAME = "kubernetes.io/service-account.name"
"""The annotation that names the service account of a token."""
ACCOUNT_UID = "kubernetes.io/service-account.uid"
"""That of its UID, which is filled in."""
_IMMUTABLE = "field is immutable when `immutable` is set"


def decoded_size(values: Iterable[str]) -> int:
    """Return the bytes that canonical base64 texts stand for."""
    # Not decoded for it: what is stored is padded base64 without line ends (schema/decode.py).
    return sum(len(value) // 4 * 3 - value[-2:].count("=") for value in values)


def _keys(data: Mapping[str, str], path: str, errors: FieldErrors) -> None:
    for key in data:
        if why := names.config_key(key):
            errors.invalid(f"{path}[{key}]", key, why)


def _unchanged(new: Object, old: Object, fields: Iterable[str], errors: FieldErrors) -> None:
    if not old.get("immutable"):
        return
    if not new.get("immutable"):
        errors.forbidden("immutable", _IMMUTABLE)
    for name in fields:
        if new.get(name, {}) != old.get(name, {}):
            errors.forbidden(name, _IMMUTABLE)


def _validate_config_map(value: Object, errors: FieldErrors) -> None:
    data, binary = value.get("data", {}), value.get("binaryData", {})
    _keys(data, "data", errors)
    for key in data.keys() & binary.keys():
        errors.invalid(f"data[{key}]", key, "duplicate of key present in binaryData")
    _keys(binary, "binaryData", errors)
    if sum(len(text.encode()) for text in data.values()) + decoded_size(binary.values()) > MAX_BYTES:
        errors.add("[]", f"Too long: may not be more than {MAX_BYTES} bytes")


def _validate_config_map_update(new: Object, old: Object, errors: FieldErrors) -> None:
    _unchanged(new, old, ("data", "binaryData"), errors)


def _default_secret(value: Object) -> None:
    value["type"] = value.get("type") or OPAQUE
    # It can be written and never read, and wins over `data` (Convert_v1_Secret_To_core_Secret).
    texts = value.pop("stringData", None)
    if texts:
        data = value.setdefault("data", {})
        for key, text in texts.items():
            data[key] = base64.b64encode(text.encode()).decode()


def _validate_secret(value: Object, errors: FieldErrors) -> None:
    data: Mapping[str, str] = value.get("data", {})
    _keys(data, "data", errors)
    if decoded_size(data.values()) > MAX_BYTES:
        errors.add("data", f"Too long: may not be more than {MAX_BYTES} bytes")
    kind = value.get("type", "")
    if kind == SERVICE_ACCOUNT_TOKEN:
        annotations = metadata(value).get("annotations", {})
        errors.required(f"metadata.annotations[{ACCOUNT_NAME}]", annotations.get(ACCOUNT_NAME))
    elif kind in DOCKER_KEYS:
        _docker(data, DOCKER_KEYS[kind], errors)
    elif kind == BASIC_AUTH:
        if not data.keys() & {"username", "password"}:
            errors.required("data[username]", "")
            errors.required("data[password]", "")
    elif kind == SSH_AUTH:
        errors.required("data[ssh-privatekey]", data.get("ssh-privatekey"))
    elif kind == TLS:
        for key in ("tls.crt", "tls.key"):  # empty ones are taken
            errors.required(f"data[{key}]", key in data)


def _docker(data: Mapping[str, str], key: str, errors: FieldErrors) -> None:
    if not errors.required(f"data[{key}]", key in data):
        return
    try:
        content = msgspec.json.decode(base64.b64decode(data[key]))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # What is wrong there, and where, would tell something of a secret.
        errors.invalid(f"data[{key}]", REDACTED, "must be JSON")
        return
    if content is not None and not isinstance(content, dict):
        errors.invalid(f"data[{key}]", REDACTED, "must be a JSON object")


def _validate_secret_update(new: Object, old: Object, errors: FieldErrors) -> None:
    immutable(new.get("type", ""), old.get("type", ""), "type", errors)
    _unchanged(new, old, ("data",), errors)


def _warn_secret(new: Mapping[str, Any], _: Mapping[str, Any] | None) -> list[str]:
    if new.get("type") != TLS:
        return []
    for key, what in (("tls.crt", "certificate"), ("tls.key", "key")):
        if b"-----BEGIN " not in base64.b64decode(at(new, "data", key, default="")):
            return [f"tls: failed to find any PEM data in {what} input"]
    return []


RESOURCES = (
    Resource(
        kind=Kind("", "v1", "ConfigMap"),
        plural="configmaps",
        short_names=("cm",),
        columns=(
            NAME,
            column("Data", lambda value: len(value.get("data", ())) + len(value.get("binaryData", ()))),
            AGE,
        ),
        strategy=Strategy(validate=_validate_config_map, validate_update=_validate_config_map_update),
    ),
    Resource(
        kind=Kind("", "v1", "Secret"),
        plural="secrets",
        columns=(
            NAME,
            column("Type", lambda value: value.get("type", "")),
            column("Data", lambda value: len(value.get("data", ()))),
            AGE,
        ),
        strategy=Strategy(
            default=_default_secret,
            warnings=_warn_secret,
            validate=_validate_secret,
            validate_update=_validate_secret_update,
            selectable=lambda value: {"type": value.get("type", "")},
        ),
    ),
)
