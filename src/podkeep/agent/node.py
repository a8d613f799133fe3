"""The node as its pods see it: names, addresses, memory, and what every pod on it shares."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

import msgspec

from podkeep.agent import runtime_calls
from podkeep.agent.images.plugins import CredentialPlugins
from podkeep.agent.images.pull_records import PullRecords, Verification
from podkeep.agent.images.puller import Images, PullLimits, ShowPull
from podkeep.agent.kubelets import KnownKubelets
from podkeep.agent.logs.node_logs import NodeLogs
from podkeep.agent.metrics import AgentMetrics
from podkeep.agent.network.dns import NO_LOOKUPS, ResolvConf
from podkeep.agent.network.dns import parse as parse_resolv_conf
from podkeep.agent.objects.runtime_classes import RuntimeClasses
from podkeep.agent.poddirs import PodDirs
from podkeep.agent.probes.hooks import Hooks
from podkeep.agent.probes.prober import Probes
from podkeep.agent.resources import allocatable, machine
from podkeep.agent.resources.allocations import Allocations
from podkeep.agent.resources.resizer import Resizer
from podkeep.agent.runtime_status import RuntimeStatus
from podkeep.agent.user_namespaces import getsubids, mapping
from podkeep.agent.user_namespaces.blocks import IdRange, Records, default_range
from podkeep.api import feature_gates
from podkeep.api.feature_gates import ONE_USER_MAPPING, FeatureGates
from podkeep.base.config import Config
from podkeep.base.errors import FailedPrecondition
from podkeep.base.frozen import FrozenStruct
from podkeep.cri.client import CriClient
from podkeep.kernel.namespace.idmap import IdMap

log = logging.getLogger(__name__)

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}
"""Go's names of the kernel's names that differ."""
_BLOCKS = "each pod with a user namespace has a block of its own"
_LOOPBACK = "127.0.0.1"
# RFC 5737: for documentation. Connecting a datagram socket sends nothing; it only looks up a route.
_ANYWHERE = ("192.0.2.1", 9)


class HostAddresses:
    """The addresses of the node, which has others after a change of its network."""

    def __init__(self) -> None:
        self.ips = host_ips()
        self._changed = asyncio.Event()

    def look(self) -> tuple[str, ...]:
        """Return the addresses as they are by now; a network that is away takes none back."""
        found = host_ips()
        if found not in {self.ips, (_LOOPBACK,)}:
            self.ips = found
            self._changed.set()
        return self.ips

    async def moved(self, timeout: float) -> bool:
        """Wait until :meth:`look` finds other addresses; return False if that takes more than ``timeout`` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        moved = self._changed.is_set()
        self._changed.clear()
        return moved


class Node(FrozenStruct, kw_only=True):
    """What pods of this node share. ``memory`` in bytes."""

    client: CriClient
    images: Images
    logs: NodeLogs
    allocations: Allocations
    resizer: Resizer
    runtime_status: RuntimeStatus
    probes: Probes
    hooks: Hooks
    config: Config
    gates: FeatureGates
    dirs: PodDirs
    id_range: Callable[[], IdRange]
    """The host IDs that pods may have; the first time it is called it asks for them, which blocks."""
    one_mapping: IdMap | None = None
    """Of all pods with a user namespace; ``None``: each has a block of its own."""
    name: str
    addresses: HostAddresses
    memory: int
    page_sizes: tuple[str, ...]
    """Sizes of huge pages that the machine has, ``2MB``."""
    kubelets: KnownKubelets
    metrics: AgentMetrics = msgspec.field(default_factory=AgentMetrics)
    runtime_name: str = "cri"
    """What the runtime calls itself: IDs of containers in statuses begin with it."""
    runtime_classes: RuntimeClasses = msgspec.field(default_factory=RuntimeClasses)
    allocatable: Mapping[str, str] = msgspec.field(default_factory=dict)
    """What pods can have of the machine, as quantities by resource."""
    user_namespaces: Records = msgspec.field(default_factory=Records)
    """Which blocks pods had when they were looked at last; under the lock of ``dirs``."""
    api_labels: dict[str, str] = msgspec.field(default_factory=dict)
    """The labels of the Node object as the API has them; empty: none is known."""

    @property
    def host_ips(self) -> tuple[str, ...]:
        """The addresses of the node, as they were when they were looked at last."""
        return self.addresses.ips

    def resolv_conf(self) -> ResolvConf:
        """Return the name servers that the node has by now: a network may bring others. Blocks.

        :raises FailedPrecondition: if the file cannot be read.
        """
        path = self.config.agent.resolv_conf
        return parse_resolv_conf(_read("agent.resolv_conf", path)) if path else NO_LOOKUPS

    def hosts_file(self) -> str:
        """Return the text of the node's /etc/hosts as it is by now. Blocks.

        :raises FailedPrecondition: if it cannot be read.
        """
        return _read("the node's hosts file", "/etc/hosts")

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels of the Node; before the API is known, what every node is labelled with (well-known labels)."""
        if self.api_labels:
            return self.api_labels
        architecture = os.uname().machine
        return {
            "kubernetes.io/arch": _ARCHITECTURES.get(architecture, architecture),
            "kubernetes.io/hostname": self.name,
            "kubernetes.io/os": "linux",
        }


def this_node(client: CriClient, config: Config, show_pull: ShowPull | None = None) -> Node:
    """Return the node this process runs on.

    :raises InvalidArgument: if ``agent.max_pods`` blocks of IDs do not fit (KEP-127, configuration of ranges), the
        mapping of all pods cannot be, a feature gate is not known, more is reserved than the machine has, or a setting
        is out of range.
    """
    config.agent.crash_loop_back_off.longest()  # said here, and not for each pod
    gates = feature_gates.read(config.agent.feature_gates, "agent")
    default_range(config.agent.max_pods, config.agent.user_namespaces.ids_per_pod)
    addresses, metrics = HostAddresses(), AgentMetrics()
    client.observe = runtime_calls.observer(metrics)
    plugins = CredentialPlugins.of(config.agent)
    size = allocatable.allocatable(machine.capacity(Path(config.agent.root), config.agent.max_pods), config.agent)
    dirs, status = PodDirs.of(config), RuntimeStatus(client)
    memory, sizes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), machine.page_sizes()
    return Node(
        client=client,
        allocations=Allocations(dirs, status.immutable),
        resizer=Resizer(client, config, memory, sizes),
        logs=NodeLogs(client, config.agent),
        images=Images(
            client,
            show_pull,
            limits=_pull_limits(config),
            plugins=plugins,
            records=_pull_records(config),
            metrics=metrics,
        ),
        runtime_status=status,
        probes=Probes(client, lambda: addresses.ips, metrics),
        hooks=Hooks(client, metrics),
        config=config,
        gates=gates,
        dirs=dirs,
        one_mapping=_one_mapping(config, gates),
        # Asked for when the first pod needs it: it starts programs, and a node without user namespaces needs neither of
        # them.
        id_range=cache(partial(getsubids.id_range, config.agent)),
        name=config.agent.own_name(),
        addresses=addresses,
        memory=memory,
        page_sizes=sizes,
        kubelets=KnownKubelets(config),
        metrics=metrics,
        allocatable=allocatable.texts(size),
    )


def _one_mapping(config: Config, gates: FeatureGates) -> IdMap | None:
    """Return the mapping of all pods of the node, if it has one and may use it (KEP-127 draft).

    :raises InvalidArgument: if the mapping cannot be.
    """
    given = mapping.read(config.agent.uid_mapping, config.agent.gid_mapping)
    gate = f"feature gate {ONE_USER_MAPPING.name}"
    if gates.enabled(ONE_USER_MAPPING):
        if given is None:
            log.warning("%s does nothing without agent.uid_mapping and agent.gid_mapping: %s", gate, _BLOCKS)
        return given
    if given is not None:
        log.warning("agent.uid_mapping and agent.gid_mapping do nothing without %s: %s", gate, _BLOCKS)
    return None


def _pull_limits(config: Config) -> PullLimits:
    agent = config.agent
    parallel = 1 if agent.serialize_image_pulls else agent.max_parallel_image_pulls
    return PullLimits(parallel=parallel, per_second=agent.registry_pull_qps, burst=agent.registry_burst)


def _pull_records(config: Config) -> PullRecords:
    agent = config.agent
    allowed = agent.preloaded_images_verification_allowlist
    verification = Verification(policy=agent.image_pull_credentials_verification_policy, allowed=allowed)
    return PullRecords(Path(agent.root) / "image_manager", verification)


def host_ips() -> tuple[str, ...]:
    """Return the address from which this machine reaches others; its loopback address if it reaches nobody."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ANYWHERE)
        except OSError:
            return (_LOOPBACK,)
        return (str(probe.getsockname()[0]),)


def _read(what: str, path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise FailedPrecondition(f"{what}: {path} cannot be read: {error.strerror}") from error
