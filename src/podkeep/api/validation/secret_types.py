"""The types of Secrets that Kubernetes knows, and what each must hold (v1 API, validation of Secrets)."""

from __future__ import annotations

from podkeep.api.configuration import Secret
from podkeep.api.fields import FieldErrors
from podkeep.base.errors import InvalidArgument
from podkeep.base.registries import docker_config

DOCKER_CONFIG_JSON = "kubernetes.io/dockerconfigjson"
DOCKER_CFG = "kubernetes.io/dockercfg"
BASIC_AUTH = "kubernetes.io/basic-auth"
SSH_AUTH = "kubernetes.io/ssh-auth"
TLS = "kubernetes.io/tls"

DOCKER_KEYS = {DOCKER_CONFIG_JSON: ".dockerconfigjson", DOCKER_CFG: ".dockercfg"}
"""Under which key the types for pulling images hold their configuration."""

REDACTED = "<secret contents redacted>"


def docker_entries(secret: Secret) -> tuple[docker_config.Entry, ...]:
    """Return the credentials for registries in ``secret``; none if it is of another type or has no content.

    :raises InvalidArgument: if its content cannot be read; the message quotes nothing of it.
    """
    data = secret.data.get(DOCKER_KEYS.get(secret.type, ""), b"")
    return docker_config.parse(data, legacy=secret.type == DOCKER_CFG) if data else ()


def validate_content(secret: Secret, errors: FieldErrors) -> None:
    """Note what ``secret`` lacks of what its type promises. Types nobody here knows hold anything."""
    if secret.type in DOCKER_KEYS:
        _docker(secret, DOCKER_KEYS[secret.type], errors)
    elif secret.type == BASIC_AUTH:
        if not secret.data.keys() & {"username", "password"}:
            errors.required("data[username]", "")
            errors.required("data[password]", "")
    elif secret.type == SSH_AUTH:
        errors.required("data[ssh-privatekey]", secret.data.get("ssh-privatekey"))
    elif secret.type == TLS:
        for key in ("tls.crt", "tls.key"):
            # What is in them is not looked at: an empty one is as good as any.
            errors.required(f"data[{key}]", key in secret.data)


def _docker(secret: Secret, key: str, errors: FieldErrors) -> None:
    if not errors.required(f"data[{key}]", key in secret.data):
        return
    try:
        docker_config.parse(secret.data[key], legacy=secret.type == DOCKER_CFG)
    except InvalidArgument as error:
        errors.invalid(f"data[{key}]", REDACTED, error.message)
