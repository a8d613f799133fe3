"""Which files a volume holds whose content is the node's: a pure function to paths, bytes, modes and owners.

ConfigMaps, Secrets, the downward API, and projections of these and of service account tokens.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from podkeep.agent.objects.references import token_expiration
from podkeep.agent.objects.sources import Sources
from podkeep.agent.volumes import downward
from podkeep.api.defaults import FILE_MODE
from podkeep.api.pod import Pod
from podkeep.api.volumes import (
    DownwardAPIVolumeFile,
    KeyToPath,
    ServiceAccountTokenProjection,
    Volume,
    VolumeProjection,
)
from podkeep.base.errors import FailedPrecondition, InvalidArgument, NotFound, PodkeepError
from podkeep.base.frozen import FrozenStruct

_TOKEN_MODE = 0o600
"""Of a token that belongs to a user or a group of the pod; a group's may be read by it, too (``ownership``)."""


class File(FrozenStruct, kw_only=True):
    """Content and permission bits of one file in a volume, and its owner; root's if it has none."""

    data: bytes
    mode: int
    uid: int | None = None


Payload = Mapping[str, File]
"""Files by their path inside the volume."""


MAX_BYTES = 16 << 20
"""Of the files of a volume. What an API server takes has 1 MiB, and each path may name the same key of it."""
ENTRY_BYTES = 1 << 10
"""For which each file and each directory of its path counts at least: a ConfigMap can have a hundred thousand empty
keys, and a path half a million directories."""
_MAX_PATH = 4095
"""Characters of a path, as the kernel has it: the names of all directories of one of a megabyte are 100 gigabytes."""


MAX_POD_BYTES = 64 << 20
"""Of the files of all volumes of a pod. Most of them are in memory, which is the node's and not the pod's, and a pod
may have thousands of volumes of the same Secret."""


def payload(
    volume: Volume,
    pod: Pod,
    sources: Sources,
    allocatable: Mapping[str, str] | None = None,
    left: int = MAX_POD_BYTES,
) -> Payload:
    """Return the files of a configMap, secret, downwardAPI or projected volume.

    :param allocatable: what the node has for pods, for limits that a container does not have.
    :param left: bytes that they may have (:func:`size_of`), for the pod's other volumes have the rest.
    :raises NotFound: if the ConfigMap, the Secret or a key that ``items`` names is missing and not optional.
    :raises FailedPrecondition: if something could not be read, with all that could not.
    :raises InvalidArgument: if the volume is of another kind, or its files have more than :data:`MAX_BYTES` or than is
        left, or a path that is too long. What is too much is not made before.
    """
    node = _Node(pod=pod, sources=sources, allocatable=allocatable or {}, left=left)
    if volume.config_map is not None:
        source = volume.config_map
        config_map = node.config_map(source.name, source.items, source.default_mode, optional=bool(source.optional))
        return node.bounded(f'configmap "{source.name}"', _owned(config_map, source.items, source.default_user))
    if volume.secret is not None:
        given = volume.secret
        secret = node.secret(given.secret_name, given.items, given.default_mode, optional=bool(given.optional))
        return node.bounded(f'secret "{given.secret_name}"', _owned(secret, given.items, given.default_user))
    if volume.downward_api is not None:
        items = volume.downward_api
        return node.bounded("the downward API", node.downward(items.items, items.default_mode, items.default_user))
    if volume.projected is not None:
        projected = volume.projected
        if any(source.service_account_token is not None for source in projected.sources):
            node = msgspec.structs.replace(node, owner=token_user(pod))  # once: sources and containers may be thousands
        files = node.projected(projected.sources, projected.default_mode, projected.default_user)
        return node.bounded("all sources", files)
    raise InvalidArgument(f"volume {volume.name} holds no files that the node writes")


def holds_files(volume: Volume) -> bool:
    """Return whether the content of a volume is a payload."""
    sources = (volume.config_map, volume.secret, volume.downward_api, volume.projected)
    return any(source is not None for source in sources)


def digest(files: Payload) -> bytes:
    """Return what two payloads share if and only if they are equal."""
    state = hashlib.sha256()
    for path, file in sorted(files.items()):
        # Lengths first, so that no two payloads make the same text by moving bytes from a name into a content.
        head = msgspec.json.encode((path, file.mode, file.uid, len(file.data)))
        state.update(b"%d:" % len(head) + head)
        state.update(file.data)
    return state.digest()


def token_user(pod: Pod) -> int | None:
    """Return the user whom tokens belong to: the one that all containers run as; None if there is none."""
    security = pod.spec.security_context
    default = None if security is None else security.run_as_user
    users = set()
    for container in pod.spec.all_containers:
        own = container.security_context
        users.add(default if own is None or own.run_as_user is None else own.run_as_user)
    return users.pop() if len(users) == 1 else None


class _Node(FrozenStruct, kw_only=True):
    """What files are made of."""

    pod: Pod
    sources: Sources
    allocatable: Mapping[str, str]
    left: int
    owner: int | None = None
    """The user whom tokens belong to that have no other."""
    fields: dict[str, bytes] = msgspec.field(default_factory=dict)
    """Contents of fields of the pod that were made, by their paths: each of thousands of files may have the same."""

    def config_map(self, name: str, items: Sequence[KeyToPath], mode: int | None, *, optional: bool) -> dict[str, File]:
        namespace, what = self.pod.metadata.namespace, f'configmap "{name}"'
        if items:
            # One by one: each of thousands of volumes may want one key of a ConfigMap that has a hundred thousand.
            value = partial(self.sources.config_map_value, namespace, name, optional=optional)
            return _project(what, value, items, mode, optional=optional)
        found = self.sources.config_maps.get((namespace, name))
        self.require_few(what, 0 if found is None else len(found.data) + len(found.binary_data))
        return _all(self.sources.config_map(namespace, name, optional=optional), mode)

    def secret(self, name: str, items: Sequence[KeyToPath], mode: int | None, *, optional: bool) -> dict[str, File]:
        data, what = self.sources.secret(self.pod.metadata.namespace, name, optional=optional), f'secret "{name}"'
        if items:
            return _project(what, data.get, items, mode, optional=optional)
        self.require_few(what, len(data))
        return _all(data, mode)

    def downward(self, items: Sequence[DownwardAPIVolumeFile], mode: int | None, user: int | None) -> dict[str, File]:
        files = {}
        failed: list[PodkeepError] = []
        for item in items:
            try:
                data = self._content(item)
            except PodkeepError as error:
                failed.append(error)
                continue
            files[posixpath.normpath(item.path)] = File(
                data=data, mode=_mode(item.mode, mode), uid=user if item.user is None else item.user
            )
        _raise_all(failed)
        return files

    def _content(self, item: DownwardAPIVolumeFile) -> bytes:
        if item.field_ref is None:
            return downward.content(item, self.pod, self.allocatable)
        path = item.field_ref.field_path
        if path not in self.fields:
            self.fields[path] = downward.content(item, self.pod, self.allocatable)
        return self.fields[path]

    def projected(self, projections: Sequence[VolumeProjection], mode: int | None, user: int | None) -> Payload:
        """Return the files of all sources; of two with one path the later one's."""
        files: dict[str, File] = {}
        failed: list[PodkeepError] = []
        size = 0
        for projection in projections:
            try:
                found = self._source(projection, mode, user)
            except PodkeepError as error:
                failed.append(error)
                continue
            # What a later source replaces counts, too: it was made.
            size += size_of(found)
            self._require("all sources", size)
            files |= found
        _raise_all(failed)
        return files

    def _source(self, source: VolumeProjection, mode: int | None, user: int | None) -> Payload:
        if source.config_map is not None:
            wanted = source.config_map
            found = self.config_map(wanted.name, wanted.items, mode, optional=bool(wanted.optional))
            return _owned(found, wanted.items, user)
        if source.secret is not None:
            given = source.secret
            found = self.secret(given.name, given.items, mode, optional=bool(given.optional))
            return _owned(found, given.items, user)
        if source.downward_api is not None:
            return self.downward(source.downward_api.items, mode, user)
        if source.service_account_token is not None:
            return self._token(source.service_account_token, mode, user)
        kind = "podCertificate" if source.pod_certificate is not None else "clusterTrustBundle"
        raise FailedPrecondition(
            f"{kind} projection is not supported by this node",
            hint="put the certificates into a ConfigMap or a Secret and project that",
        )

    def require_few(self, what: str, files: int) -> None:
        """Check a number of files before they are made.

        :raises InvalidArgument: if they are too many.
        """
        self._require(what, files * ENTRY_BYTES)

    def bounded(self, what: str, files: Payload) -> Payload:
        """Return ``files``.

        :raises InvalidArgument: if they have too many bytes, or a path that is too long.
        """
        self._require(what, size_of(files))
        for path in files:
            if len(path) > _MAX_PATH:
                raise InvalidArgument(f"the path {path[:64]!r}… of a file has more than {_MAX_PATH} characters")
        return files

    def _require(self, what: str, size: int) -> None:
        if size > MAX_BYTES:
            raise InvalidArgument(f"the files made of {what} have {size} bytes, more than {MAX_BYTES}")
        if size > self.left:
            raise InvalidArgument(f"the files of all volumes of the pod have more than {MAX_POD_BYTES} bytes")

    def _token(self, source: ServiceAccountTokenProjection, mode: int | None, user: int | None) -> Payload:
        token = self.sources.token(source.audience, token_expiration(source.expiration_seconds))
        security = self.pod.spec.security_context
        # A token is readable by its user alone; without one that all containers share, the mode of the volume counts
        # (kubelet).
        owner = _first(source.user, user, self.owner)
        grouped = security is not None and security.fs_group is not None
        bits = _TOKEN_MODE if owner is not None or grouped else _mode(None, mode)
        return {source.path: File(data=token.encode(), mode=bits, uid=owner)}


def size_of(files: Payload) -> int:
    """Return the bytes of all files, or what they and their directories count for if that is more."""
    return sum(max(len(file.data), ENTRY_BYTES * (1 + path.count("/"))) for path, file in files.items())


def _all(data: Mapping[str, bytes], mode: int | None) -> dict[str, File]:
    return {key: File(data=content, mode=_mode(None, mode)) for key, content in data.items()}


def _project(
    what: str, value: Callable[[str], bytes | None], items: Sequence[KeyToPath], mode: int | None, *, optional: bool
) -> dict[str, File]:
    known: dict[str, bytes | None] = {}
    files = {}
    for item in items:
        if item.key not in known:
            known[item.key] = value(item.key)
        data = known[item.key]
        if data is not None:
            files[item.path] = File(data=data, mode=_mode(item.mode, mode))
        elif not optional:
            raise NotFound(f"{what} references non-existent key: {item.key}")
    return files


def _owned(files: dict[str, File], items: Sequence[KeyToPath], user: int | None) -> Payload:
    owners = {item.path: item.user for item in items if item.user is not None}
    if user is None and not owners:
        return files
    return {
        path: File(data=file.data, mode=file.mode, uid=_first(owners.get(path), user)) for path, file in files.items()
    }


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _mode(own: int | None, default: int | None) -> int:
    if own is not None:
        return own
    return FILE_MODE if default is None else default


def _raise_all(failed: Sequence[PodkeepError]) -> None:
    """Raise what several sources failed of as one error, each text once."""
    if not failed:
        return
    texts = list(dict.fromkeys(error.message for error in failed))
    if len(texts) == 1:
        raise failed[0]
    raise FailedPrecondition(f"[{', '.join(texts)}]", hint=failed[0].hint)
