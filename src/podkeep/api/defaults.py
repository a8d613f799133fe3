"""Defaulting: the values Kubernetes gives to fields that a manifest leaves out.

``hostUsers`` is never given a value (KEP-127, Pod.spec changes).
"""

from __future__ import annotations

import msgspec

from podkeep.api.configuration import ConfigMap, Secret
from podkeep.api.containers import (
    Container,
    ContainerPort,
    EnvVar,
    EphemeralContainer,
    HTTPGetAction,
    Lifecycle,
    Probe,
    ResourceRequirements,
)
from podkeep.api.meta import ObjectMeta
from podkeep.api.names import has_floating_tag
from podkeep.api.pod import Pod, PodSecurityContext
from podkeep.api.volumes import (
    ConfigMapVolumeSource,
    EmptyDirVolumeSource,
    HostPathVolumeSource,
    ImageVolumeSource,
    SecretVolumeSource,
    Volume,
)

_replace = msgspec.structs.replace

DEFAULT_NAMESPACE = "default"
TERMINATION_MESSAGE_PATH = "/dev/termination-log"
FILE_MODE = 0o644
GRACE_PERIOD = 30
"""Seconds between the polite signal and the kill."""


def default_metadata(metadata: ObjectMeta) -> ObjectMeta:
    return _replace(metadata, namespace=metadata.namespace or DEFAULT_NAMESPACE)


def default_pod(pod: Pod) -> Pod:
    """Return ``pod`` with every default of the v1 API filled in."""
    spec = pod.spec
    host_network = spec.host_network
    grace = spec.termination_grace_period_seconds
    return _replace(
        pod,
        metadata=default_metadata(pod.metadata),
        spec=_replace(
            spec,
            restart_policy=spec.restart_policy or "Always",
            dns_policy=spec.dns_policy or "ClusterFirst",
            termination_grace_period_seconds=GRACE_PERIOD if grace is None else grace,
            security_context=spec.security_context or PodSecurityContext(),
            enable_service_links=True if spec.enable_service_links is None else spec.enable_service_links,
            scheduler_name=spec.scheduler_name or "default-scheduler",
            volumes=tuple(_volume(volume) for volume in spec.volumes),
            init_containers=tuple(_container(container, host_network) for container in spec.init_containers),
            containers=tuple(_container(container, host_network) for container in spec.containers),
            ephemeral_containers=tuple(_ephemeral(container) for container in spec.ephemeral_containers),
        ),
    )


def default_config_map(config_map: ConfigMap) -> ConfigMap:
    return _replace(config_map, metadata=default_metadata(config_map.metadata))


def default_secret(secret: Secret) -> Secret:
    """Return ``secret`` with its type, its namespace, and ``stringData`` merged into ``data``."""
    merged = secret.data | {key: text.encode() for key, text in secret.string_data.items()}
    return _replace(
        secret,
        metadata=default_metadata(secret.metadata),
        type=secret.type or "Opaque",
        data=merged,
        string_data={},
    )


def _container(container: Container, host_network: bool) -> Container:
    pull = "Always" if has_floating_tag(container.image) else "IfNotPresent"
    return _replace(
        container,
        image_pull_policy=container.image_pull_policy or pull,
        termination_message_path=container.termination_message_path or TERMINATION_MESSAGE_PATH,
        termination_message_policy=container.termination_message_policy or "File",
        ports=tuple(_port(port, host_network) for port in container.ports),
        env=tuple(_env(variable) for variable in container.env),
        resources=_resources(container.resources),
        liveness_probe=_probe(container.liveness_probe),
        readiness_probe=_probe(container.readiness_probe),
        startup_probe=_probe(container.startup_probe),
        lifecycle=_lifecycle(container.lifecycle),
    )


def _ephemeral(container: EphemeralContainer) -> EphemeralContainer:
    pull = "Always" if has_floating_tag(container.image) else "IfNotPresent"
    return _replace(
        container,
        image_pull_policy=container.image_pull_policy or pull,
        termination_message_path=container.termination_message_path or TERMINATION_MESSAGE_PATH,
        termination_message_policy=container.termination_message_policy or "File",
        env=tuple(_env(variable) for variable in container.env),
    )


def _probe(probe: Probe | None) -> Probe | None:
    if probe is None:
        return None
    return _replace(
        probe,
        http_get=_http_get(probe.http_get),
        timeout_seconds=probe.timeout_seconds or 1,
        period_seconds=probe.period_seconds or 10,
        success_threshold=probe.success_threshold or 1,
        failure_threshold=probe.failure_threshold or 3,
    )


def _lifecycle(lifecycle: Lifecycle | None) -> Lifecycle | None:
    if lifecycle is None:
        return None
    hooks = {"post_start": lifecycle.post_start, "pre_stop": lifecycle.pre_stop}
    changes = {name: _replace(hook, http_get=_http_get(hook.http_get)) for name, hook in hooks.items() if hook}
    return _replace(lifecycle, **changes)


def _http_get(action: HTTPGetAction | None) -> HTTPGetAction | None:
    if action is None:
        return None
    return _replace(action, path=action.path or "/", scheme=action.scheme or "HTTP")


def _port(port: ContainerPort, host_network: bool) -> ContainerPort:
    host_port = port.host_port or (port.container_port if host_network else 0)
    return _replace(port, protocol=port.protocol or "TCP", host_port=host_port)


def _env(variable: EnvVar) -> EnvVar:
    source = variable.value_from
    if source is None or source.field_ref is None or source.field_ref.api_version:
        return variable
    field = _replace(source.field_ref, api_version="v1")
    return _replace(variable, value_from=_replace(source, field_ref=field))


def _resources(resources: ResourceRequirements) -> ResourceRequirements:
    """A limit without a request is also the request."""
    return _replace(resources, requests=resources.limits | resources.requests)


def _volume(volume: Volume) -> Volume:
    # A volume without a source is an emptyDir (upstream: SetDefaults_Volume).
    if not sources(volume):
        return _replace(volume, empty_dir=EmptyDirVolumeSource())
    changes: dict[str, object] = {}
    if isinstance(volume.config_map, ConfigMapVolumeSource) and volume.config_map.default_mode is None:
        changes["config_map"] = _replace(volume.config_map, default_mode=FILE_MODE)
    if isinstance(volume.secret, SecretVolumeSource) and volume.secret.default_mode is None:
        changes["secret"] = _replace(volume.secret, default_mode=FILE_MODE)
    if volume.downward_api is not None and volume.downward_api.default_mode is None:
        changes["downward_api"] = _replace(volume.downward_api, default_mode=FILE_MODE)
    if volume.projected is not None and volume.projected.default_mode is None:
        changes["projected"] = _replace(volume.projected, default_mode=FILE_MODE)
    if isinstance(volume.host_path, HostPathVolumeSource) and volume.host_path.type is None:
        changes["host_path"] = _replace(volume.host_path, type="")
    if isinstance(volume.image, ImageVolumeSource) and volume.image.pull_policy is None:
        pull = "Always" if has_floating_tag(volume.image.reference) else "IfNotPresent"
        changes["image"] = _replace(volume.image, pull_policy=pull)
    return _replace(volume, **changes)


def sources(volume: Volume) -> list[str]:
    """Return the attribute names of the sources a volume gives."""
    names = (field.name for field in msgspec.structs.fields(Volume) if field.name != "name")
    return [name for name in names if getattr(volume, name) is not None]
