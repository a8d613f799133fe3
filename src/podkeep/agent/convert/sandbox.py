"""From a Pod to the CRI messages of its sandbox. Pure; protobuf stays in this package."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from podkeep.agent.convert import names
from podkeep.agent.convert.namespaces import namespace_options
from podkeep.agent.convert.security import sandbox_security
from podkeep.agent.network.dns import ResolvConf
from podkeep.agent.resources import cgroup_names, qos, requests
from podkeep.agent.resources import class_messages as class_resources
from podkeep.agent.user_namespaces.model import PodUserNamespace
from podkeep.api.containers import is_sidecar
from podkeep.api.pod import Pod
from podkeep.base.frozen import FrozenStruct
from podkeep.cri.v1 import api_pb2

_PROTOCOLS = {"TCP": api_pb2.TCP, "UDP": api_pb2.UDP, "SCTP": api_pb2.SCTP}


class SandboxPlan(FrozenStruct, kw_only=True):
    """What the node adds to a Pod when it asks for its sandbox."""

    user_namespace: PodUserNamespace | None
    """The pod's own; ``None``: it shares the node's."""
    dns: ResolvConf
    cgroup_root: str
    pod_logs: str
    attempt: int = 0
    classes: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Of the pod as a whole, by type."""
    cluster_domain: str = ""


def sandbox_config(pod: Pod, plan: SandboxPlan) -> api_pb2.PodSandboxConfig:
    """Return the configuration that RunPodSandbox and CreateContainer get.

    :raises InvalidArgument: if the pod's name in full is asked for as its hostname and is too long.
    """
    spec, metadata = pod.spec, pod.metadata
    security = spec.security_context
    return api_pb2.PodSandboxConfig(
        metadata=api_pb2.PodSandboxMetadata(
            name=metadata.name, namespace=metadata.namespace, uid=metadata.uid, attempt=plan.attempt
        ),
        # With the host's network the host's name shows; CRI forbids another one.
        hostname="" if spec.host_network else names.kernel_name(pod, plan.cluster_domain),
        log_directory=names.log_directory(plan.pod_logs, pod),
        dns_config=api_pb2.DNSConfig(servers=plan.dns.servers, searches=plan.dns.searches, options=plan.dns.options),
        port_mappings=[] if spec.host_network else _port_mappings(pod),
        # In this order: no label of a manifest may name another pod, whose sandbox it would be taken for.
        labels=metadata.labels | names.pod_labels(pod),
        annotations={names.CONFIG_SOURCE: "file"} | metadata.annotations,
        class_resources=class_resources.of_pod(plan.classes),
        linux=api_pb2.LinuxPodSandboxConfig(
            cgroup_parent=cgroup_names.of_pod(plan.cgroup_root, pod),
            security_context=sandbox_security(pod, namespace_options(spec, plan.user_namespace)),
            # Manifests may have slashes; runc tells by the dots to which namespace a sysctl belongs, and refuses others
            # (kubelet, ConvertPodSysctlsVariableToDotsSeparator).
            sysctls={} if security is None else {s.name.replace("/", "."): s.value for s in security.sysctls},
            resources=_resources(requests.pod_requests(pod, overhead=False), requests.pod_limits(pod, overhead=False)),
            overhead=_resources(requests.amounts(spec.overhead), requests.amounts(spec.overhead)),
        ),
    )


def _port_mappings(pod: Pod) -> list[api_pb2.PortMapping]:
    """Return the ports of containers; those that ask for no port of the node are named, too (kubelet)."""
    return [
        api_pb2.PortMapping(
            protocol=_PROTOCOLS[port.protocol or "TCP"],
            container_port=port.container_port,
            host_port=port.host_port,
            host_ip=port.host_ip,
        )
        for container in (*filter(is_sidecar, pod.spec.init_containers), *pod.spec.containers)
        for port in container.ports
    ]


def _resources(asked: requests.Amounts, limits: requests.Amounts) -> api_pb2.LinuxContainerResources:
    """Return what the containers have together, or what the sandbox costs itself."""
    cpu_limit = limits.get(requests.CPU, 0)
    return api_pb2.LinuxContainerResources(
        cpu_period=qos.PERIOD_US,
        cpu_quota=qos.quota(cpu_limit),
        cpu_shares=qos.shares(asked.get(requests.CPU, cpu_limit)),
        memory_limit_in_bytes=limits.get(requests.MEMORY, 0),
    )
