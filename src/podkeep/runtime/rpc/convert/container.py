"""ContainerConfig to its record. Pure but for looking at the host paths of mounts, which blocks."""

from __future__ import annotations

from podkeep.base.errors import InvalidArgument
from podkeep.cri.v1 import api_pb2 as api
from podkeep.runtime.class_resources.annotations import Annotation
from podkeep.runtime.class_resources.annotations import find as annotations_of
from podkeep.runtime.model import records
from podkeep.runtime.model.records import SandboxConfig
from podkeep.runtime.oci import resources
from podkeep.runtime.oci.cdi import spec as cdi
from podkeep.runtime.rpc.convert.checks import (
    absolute,
    bounded,
    check_count,
    check_metadata,
    check_program,
    path_text,
    quote,
    refuse_no_name,
    refuse_nul,
)
from podkeep.runtime.rpc.convert.class_resources import class_names
from podkeep.runtime.rpc.convert.counts import MOST, check_counts
from podkeep.runtime.rpc.convert.mounts import device_record, mount_record
from podkeep.runtime.rpc.convert.namespaces import container_namespaces
from podkeep.runtime.rpc.convert.resources import resources_record
from podkeep.runtime.rpc.convert.security import security_record


def container_config(config: api.ContainerConfig, sandbox: SandboxConfig) -> records.ContainerConfig:
    """Return what a CreateContainer request asks for.

    :raises InvalidArgument: if a field is missing, contradicts another or the sandbox, or a host path does not exist.
    """
    check_counts("config", config)
    metadata = config.metadata
    if not metadata.name:
        raise InvalidArgument("config.metadata.name is required")
    refuse_no_name("config.metadata.name", metadata.name)
    if not config.image.image:
        raise InvalidArgument("config.image.image is required")
    if config.HasField("windows"):
        raise InvalidArgument("config.windows: this is a Linux machine")
    check_metadata(config.labels, config.annotations)
    path_text("config.log_path", config.log_path)
    if config.log_path.startswith("/") or ".." in config.log_path.split("/"):
        raise InvalidArgument(f"config.log_path: {quote(config.log_path)} leaves the sandbox's log directory")
    if ":" in config.log_path.rpartition("/")[2]:
        raise InvalidArgument(f"config.log_path: {quote(config.log_path)}: conmon writes to no file with a colon")
    refuse_nul("config.command", *config.command)
    refuse_nul("config.args", *config.args)
    envs = tuple(_env(item) for item in config.envs)
    variables = [f"{name}={value}" for name, value in envs]
    check_program({"config.command": config.command, "config.args": config.args, "config.envs": variables})
    context = config.linux.security_context
    if context.privileged and not sandbox.privileged:
        raise InvalidArgument("security_context.privileged: the container's sandbox is not privileged")
    return records.ContainerConfig(
        name=metadata.name,
        attempt=metadata.attempt,
        image=bounded("config.image.image", config.image.image),
        user_specified_image=bounded("config.image.user_specified_image", config.image.user_specified_image),
        command=tuple(config.command),
        args=tuple(config.args),
        working_dir=absolute("config.working_dir", config.working_dir),
        envs=envs,
        mounts=tuple(mount_record(number, mount) for number, mount in enumerate(config.mounts)),
        devices=tuple(device_record(number, device) for number, device in enumerate(config.devices)),
        cdi_devices=_cdi_devices(config),
        labels=dict(config.labels),
        annotations=dict(config.annotations),
        log_path=config.log_path,
        stdin=config.stdin,
        stdin_once=config.stdin_once,
        tty=config.tty,
        stop_signal=_signal_name(config.stop_signal),
        namespaces=container_namespaces(config.linux, sandbox),
        resources=_resources(config.linux.resources),
        security=security_record(context, given=config.linux.HasField("security_context")),
        class_resources=_classes(config, sandbox),
    )


def asking_annotations(config: api.ContainerConfig, sandbox: SandboxConfig) -> dict[str, Annotation]:
    """Return by type the annotations that decide on a class, because ``class_resources`` does not."""
    asked = config.class_resources.classes
    return annotations_of(asked, config.metadata.name, config.annotations, sandbox.annotations)


def _classes(config: api.ContainerConfig, sandbox: SandboxConfig) -> dict[str, str]:
    """Return types to classes: what the field does not name, today's annotations may (KEP-3008, container runtimes)."""
    asked = class_names("config.class_resources", config.class_resources.classes)
    found = asking_annotations(config, sandbox)
    return asked | class_names("config.annotations", {name: item.class_name for name, item in found.items()})


def _cdi_devices(config: api.ContainerConfig) -> tuple[str, ...]:
    result = cdi.requested((device.name for device in config.CDI_devices), config.annotations)
    check_count("config.CDI_devices, config.annotations", result, MOST["ContainerConfig.CDI_devices"])
    return result


def _resources(given: api.LinuxContainerResources) -> records.Resources:
    result = resources_record(given)
    resources.check_whole("config.linux.resources", result)
    return result


def _signal_name(value: api.Signal.ValueType) -> str:
    if value not in api.Signal.values():
        raise InvalidArgument(f"config.stop_signal: {value} is not known")
    return "" if value == api.RUNTIME_DEFAULT else api.Signal.Name(value)


def _env(item: api.KeyValue) -> tuple[str, str]:
    if not item.key or "=" in item.key or "\0" in item.key:
        raise InvalidArgument(f"config.envs: {quote(item.key)} cannot be the name of an environment variable")
    if b"\0" in item.value:
        raise InvalidArgument(f"config.envs: the value of {quote(item.key)} holds a NUL character")
    try:
        return item.key, item.value.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"config.envs: the value of {quote(item.key)} is not UTF-8") from error
