"""The environment of a container: ``envFrom``, ``env``, references, services, and ``$(VAR)`` in commands.

Pure, but for files in volumes, which it is given a function to read.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence

import msgspec

from podkeep.agent.environment import env_files, resource_fields, service_links
from podkeep.agent.environment.env_files import EnvFile
from podkeep.agent.network.addresses import by_family
from podkeep.agent.objects.sources import Sources
from podkeep.api.containers import ConfigMapKeySelector, Container, EnvVarSource, FileKeySelector, SecretKeySelector
from podkeep.api.pod import Pod
from podkeep.base.errors import InvalidArgument, NotFound
from podkeep.base.frozen import FrozenStruct

_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")
_KEYED = re.compile(r"metadata\.(labels|annotations)\['(.*)'\]")


MAX_BYTES = 1 << 20
"""Of the environment of a container, of its command, and of its arguments; Linux takes 128 KiB of one, 6 MiB of all."""
_MAX_FILES = 8 * env_files.MAX_BYTES
"""Characters of all environment files of a container: to look through them takes some seconds."""


class PodFacts(FrozenStruct, kw_only=True):
    """What only the node knows about a pod: its addresses, the node's own name and addresses, what it has to give.

    ``allocatable`` has quantities by resource. ``read_file`` returns the text of a path in a volume, by both names; it
    raises a ``PodkeepError`` if it cannot.
    """

    pod_ips: tuple[str, ...] = ()
    host_ips: tuple[str, ...] = ()
    node_name: str = ""
    allocatable: Mapping[str, str] = msgspec.field(default_factory=dict)
    read_file: Callable[[str, str], str] | None = None


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

    end = _end_of_references(text)
    return _REFERENCE.sub(replacement, text[:end]) + text[end:].replace("$$", "$")


def _end_of_references(text: str) -> int:
    """Return where the last name that is closed ends.

    Behind it each ``$(`` would be followed to the end of the text, for hours where there are a hundred thousand.
    """
    return text.rfind(")") + 1


def expand_known(text: str, variables: Mapping[str, str]) -> str:
    """Do as :func:`expand`, of a text in which no name may be unknown, as a kubelet does with ``subPathExpr``.

    :raises InvalidArgument: naming the first that is.
    """
    for match in _REFERENCE.finditer(text, 0, _end_of_references(text)):
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

    Later definitions win; ``env`` wins over ``envFrom``, and both over services; a value may refer to variables defined
    before it, and to those of services.

    :raises NotFound: if a ConfigMap, a Secret or a key in one is missing and not optional.
    :raises FailedPrecondition: if services could not be read.
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
    of_services, files = _of_services(pod, sources), _Files(container, facts)
    # Services count for references, but are defined last, so that no service takes the place of what the manifest says.
    known = ChainMap(variables, of_services)
    for source in container.env_from:
        if source.config_map_ref is not None:
            named = source.config_map_ref
            data = sources.config_map_texts(namespace, named.name, optional=bool(named.optional))
        elif source.secret_ref is not None:
            data = sources.secret(namespace, source.secret_ref.name, optional=bool(source.secret_ref.optional))
        else:
            continue
        # Counted while they are added: many references to one large ConfigMap would otherwise be in memory before the
        # limit.
        for key, content in sorted(data.items()):
            define(source.prefix + key, _text(content, key))
    for variable in container.env:
        if variable.value_from is None:
            value: str | None = expand(variable.value, known)
        elif variable.value_from.resource_field_ref is not None:
            reference = variable.value_from.resource_field_ref
            value = resource_fields.value(pod, reference, facts.allocatable, container.name)
        elif variable.value_from.file_key_ref is not None:
            value = files.value(variable.value_from.file_key_ref)
        else:
            value = _referenced(variable.value_from, pod, sources, facts)
        if value is not None:
            define(variable.name, value)
    for name, address in of_services.items():
        if name not in variables:
            define(name, address)
    return variables


def _of_services(pod: Pod, sources: Sources) -> dict[str, str]:
    links = pod.spec.enable_service_links is not False
    return service_links.variables(sources.known_services().values(), pod.metadata.namespace, links=links)


class _Files:
    """The environment files of a container, each read once: another one writes them, and variables may be thousands."""

    def __init__(self, container: Container, facts: PodFacts) -> None:
        self._read_file = facts.read_file
        self._keys: dict[tuple[str, str], set[str]] = {}
        for variable in container.env:
            reference = None if variable.value_from is None else variable.value_from.file_key_ref
            if reference is not None:
                self._keys.setdefault((reference.volume_name, reference.path), set()).add(reference.key)
        self._files: dict[tuple[str, str], EnvFile] = {}
        self._size = 0

    def value(self, reference: FileKeySelector) -> str | None:
        """Return a variable of a file, or ``None`` if it is missing and optional.

        :raises NotFound: if it is missing, and not optional.
        """
        try:
            file = self._file(reference.volume_name, reference.path)
        except NotFound:
            if reference.optional:
                return None
            raise
        value = file.value(reference.key)
        if "\0" in value:
            raise InvalidArgument(f"the value of key {reference.key} holds a NUL and cannot be a variable")
        if value:
            return value
        if reference.optional:
            return None
        raise NotFound(f'environment variable key "{reference.key}" not found in file "{reference.path}"')

    def _file(self, volume: str, path: str) -> EnvFile:
        if self._read_file is None:
            raise InvalidArgument(f'cannot find the volume "{volume}" referenced by FileKeyRef')
        place = (volume, path)
        if place not in self._files:
            text = self._read_file(volume, path)
            self._size += len(text)
            if self._size > _MAX_FILES:
                raise InvalidArgument(
                    f"the environment files of the container have more than {_MAX_FILES} characters together"
                )
            self._files[place] = env_files.parse(text, self._keys[place])
        return self._files[place]


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
        raise InvalidArgument("the variable refers to nothing that this version knows")
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
    pod_ips = by_family(facts.pod_ips, facts.host_ips)
    values = {
        "metadata.name": pod.metadata.name,
        "metadata.namespace": pod.metadata.namespace,
        "metadata.uid": pod.metadata.uid,
        "spec.nodeName": pod.spec.node_name or facts.node_name,
        "spec.serviceAccountName": pod.spec.service_account_name or "default",
        "status.hostIP": next(iter(facts.host_ips), ""),
        "status.hostIPs": ",".join(facts.host_ips),
        "status.podIP": next(iter(pod_ips), ""),
        "status.podIPs": ",".join(pod_ips),
    }
    if path not in values:
        raise InvalidArgument(f"unsupported fieldPath: {path}")
    return values[path]
