"""The environment of a container: ``envFrom``, ``env``, references, and ``$(VAR)`` in commands. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from podkeep.agent.sources import Sources
from podkeep.api.containers import ConfigMapKeySelector, Container, EnvVarSource, SecretKeySelector
from podkeep.api.pod import Pod
from podkeep.base.errors import InvalidArgument, NotFound

_REFERENCE = re.compile(r"\$(?:\$|\(([^()]*)\))")
_KEYED = re.compile(r"metadata\.(labels|annotations)\['(.*)'\]")


MAX_BYTES = 1 << 20
"""Of the environment of a container, of its command, and of its arguments; Linux takes 128 KiB of one, 6 MiB of all."""


@dataclass(frozen=True, kw_only=True)
class PodFacts:
    """What only the node knows about a pod: its addresses and the node's own name and address."""

    pod_ips: tuple[str, ...] = ()
    host_ips: tuple[str, ...] = ()
    node_name: str = ""


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace ``$(NAME)`` by the value of NAME; an unknown name stays as it is, ``$$`` is one dollar sign.

    :raises InvalidArgument: if more than :data:`MAX_BYTES` characters come of it: values may refer to values.
    """
    left = MAX_BYTES - len(text)

    def replacement(match: re.Match[str]) -> str:
        nonlocal left
        name = match[1]
        value = "$" if name is None else variables.get(name, match[0])
        left -= len(value)
        if left < 0:
            raise InvalidArgument(f"{text[:64]!r} expands to more than {MAX_BYTES} characters")
        return value

    return _REFERENCE.sub(replacement, text)


def expand_known(text: str, variables: Mapping[str, str]) -> str:
    """Do as :func:`expand`, of a text in which no name may be unknown, as a kubelet does with ``subPathExpr``.

    :raises InvalidArgument: naming the first that is.
    """
    for match in _REFERENCE.finditer(text):
        if match[1] is not None and match[1] not in variables:
            raise InvalidArgument(f'missing value for "{match[1]}"')
    return expand(text, variables)


def expand_all(texts: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """Apply :func:`expand` to each of ``texts``.

    :raises InvalidArgument: if more than :data:`MAX_BYTES` characters come of them together.
    """
    result: list[str] = []
    size = 0
    for text in texts:
        result.append(expand(text, variables))
        size += len(result[-1])
        _check_size(size, "the command or its arguments")
    return result


def _check_size(size: int, what: str) -> None:
    if size > MAX_BYTES:
        raise InvalidArgument(f"{what} have more than {MAX_BYTES} characters, with what they refer to")


def environment(pod: Pod, container: Container, sources: Sources, facts: PodFacts) -> dict[str, str]:
    """Return the variables of ``container`` in the order in which they are defined.

    Later definitions win; ``env`` wins over ``envFrom``; a value may refer to variables defined before it.

    :raises NotFound: if a ConfigMap, a Secret or a key in one is missing and not optional.
    :raises InvalidArgument: if a value cannot be a variable, such as a Secret that holds binary data, or if names and
        values are more than :data:`MAX_BYTES`, with those that a later definition replaces.
    """
    variables: dict[str, str] = {}
    size = 0

    def define(name: str, value: str) -> None:
        nonlocal size
        size += len(name) + len(value)
        _check_size(size, "its environment variables")
        variables[name] = value

    namespace = pod.metadata.namespace
    for source in container.env_from:
        if source.config_map_ref is not None:
            reference = source.config_map_ref
            data = sources.config_map_texts(namespace, reference.name, optional=bool(reference.optional))
        elif source.secret_ref is not None:
            data = sources.secret(namespace, source.secret_ref.name, optional=bool(source.secret_ref.optional))
        else:
            continue
        for key, content in sorted(data.items()):
            define(source.prefix + key, _text(content, key))
    for variable in container.env:
        if variable.value_from is None:
            value: str | None = expand(variable.value, variables)
        else:
            value = _referenced(variable.value_from, pod, sources, facts)
        if value is not None:
            define(variable.name, value)
    return variables


def _referenced(source: EnvVarSource, pod: Pod, sources: Sources, facts: PodFacts) -> str | None:
    """Return the value a reference stands for, or ``None`` if it is missing and optional."""
    namespace = pod.metadata.namespace
    if source.field_ref is not None:
        return _field(source.field_ref.field_path, pod, facts)
    key: ConfigMapKeySelector | SecretKeySelector
    if source.config_map_key_ref is not None:
        key, what = source.config_map_key_ref, f"ConfigMap {namespace}/{source.config_map_key_ref.name}"
        content = sources.config_map_value(namespace, key.name, key.key, optional=bool(key.optional))
    elif source.secret_key_ref is not None:
        key, what = source.secret_key_ref, f"Secret {namespace}/{source.secret_key_ref.name}"
        content = sources.secret(namespace, key.name, optional=bool(key.optional)).get(key.key)
    else:
        raise InvalidArgument("this kind of reference is not supported by this version")
    if content is not None:
        return _text(content, key.key)
    if key.optional:
        return None
    raise NotFound(f"couldn't find key {key.key} in {what}")


def _text(content: bytes, key: str) -> str:
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"the value of key {key} is not UTF-8 text and cannot be a variable") from error
    if "\0" in text:
        raise InvalidArgument(f"the value of key {key} holds a NUL and cannot be a variable")
    return text


def _field(path: str, pod: Pod, facts: PodFacts) -> str:
    if keyed := _KEYED.fullmatch(path):
        holder = pod.metadata.labels if keyed[1] == "labels" else pod.metadata.annotations
        return holder.get(keyed[2], "")
    values = {
        "metadata.name": pod.metadata.name,
        "metadata.namespace": pod.metadata.namespace,
        "metadata.uid": pod.metadata.uid,
        "spec.nodeName": pod.spec.node_name or facts.node_name,
        "spec.serviceAccountName": pod.spec.service_account_name or "default",
        "status.hostIP": next(iter(facts.host_ips), ""),
        "status.hostIPs": ",".join(facts.host_ips),
        "status.podIP": next(iter(facts.pod_ips), ""),
        "status.podIPs": ",".join(facts.pod_ips),
    }
    if path not in values:
        raise InvalidArgument(f"unsupported fieldPath: {path}")
    return values[path]
