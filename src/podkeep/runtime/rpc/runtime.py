"""RPCs on the runtime itself: Version, Status, RuntimeConfig, UpdateRuntimeConfig."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

import podkeep
from podkeep.base.config import Config
from podkeep.base.ids import HandlerName
from podkeep.cri import RUNTIME_NAME
from podkeep.cri.v1 import api_pb2 as api
from podkeep.mountns import sync
from podkeep.mountns.sync import Mismatch
from podkeep.runtime.class_resources.registry import ClassResources
from podkeep.runtime.lifecycle.handlers import Features, HandlerTable
from podkeep.runtime.network.networks import Networks
from podkeep.runtime.oci.confinement import Confinement
from podkeep.runtime.rpc.convert.class_resources import Discovery
from podkeep.runtime.rpc.namespace_watch import NamespaceWatch

API_VERSION = "v1"
KUBELET_API_VERSION = "0.1.0"
"""What every runtime answers in VersionResponse.version."""


class RuntimeRpc:
    """One method per RPC, from message to message."""

    def __init__(
        self,
        config: Callable[[], Config],
        handlers: HandlerTable,
        confinement: Confinement,
        networks: Networks,
        namespaces: NamespaceWatch,
        classes: ClassResources,
        describe_rootfs: Callable[[], object],
    ) -> None:
        """Serve with these parts; ``config`` returns the configuration that is in force.

        :param describe_rootfs: says how images get the owners of pods, for verbose answers; it may block.
        """
        self._describe_rootfs = describe_rootfs
        self._config = config
        self._handlers = handlers
        self._confinement = confinement
        self._networks = networks
        self._namespaces = namespaces
        self._classes = classes
        self._discovery = Discovery(classes)

    async def version(self, _request: api.VersionRequest) -> api.VersionResponse:
        return api.VersionResponse(
            version=KUBELET_API_VERSION,
            runtime_name=RUNTIME_NAME,
            runtime_version=podkeep.__version__,
            runtime_api_version=API_VERSION,
        )

    async def status(self, request: api.StatusRequest) -> api.StatusResponse:
        network, apart = await asyncio.gather(
            asyncio.to_thread(self._networks.condition), self._namespaces.mismatches()
        )
        conditions = [
            # Who answers is ready: nothing is served before all that pods need is in place.
            api.RuntimeCondition(type="RuntimeReady", status=True),
            api.RuntimeCondition(
                type="NetworkReady", status=network.ready, reason=network.reason, message=network.message
            ),
        ]
        if self._namespaces.hides:
            conditions.append(_in_sync(apart))
        # CRI (RuntimeHandler.name): an empty name stands for the default handler.
        default = HandlerName("")
        handlers = {default: self._handlers.features_of(default), **self._handlers.features}
        info = {}
        if request.verbose:
            described = await asyncio.to_thread(self._classes.catalog.describe)
            info["classResources"] = msgspec.json.encode(described).decode()
            info["classResourceUsers"] = msgspec.json.encode(self._classes.users()).decode()
            info["handlers"] = msgspec.json.encode(handlers).decode()
            info["config"] = msgspec.json.encode(self._config()).decode()
            info["mountNamespace"] = msgspec.json.encode(self._namespaces.describe(apart)).decode()
            info["network"] = msgspec.json.encode(self._networks.describe()).decode()
            info["rootfs"] = msgspec.json.encode(await asyncio.to_thread(self._describe_rootfs)).decode()
            info["security"] = msgspec.json.encode(self._confinement.describe()).decode()
        answer = api.StatusResponse(
            status=api.RuntimeStatus(conditions=conditions),
            info=info,
            runtime_handlers=[_handler(name, features) for name, features in handlers.items()],
            features=api.RuntimeFeatures(supplemental_groups_policy=True),
        )
        self._discovery.add_to(answer)
        return answer

    async def runtime_config(self, _request: api.RuntimeConfigRequest) -> api.RuntimeConfigResponse:
        driver = api.SYSTEMD if self._config().runtime.cgroup_driver == "systemd" else api.CGROUPFS
        return api.RuntimeConfigResponse(linux=api.LinuxRuntimeConfiguration(cgroup_driver=driver))

    async def update_runtime_config(self, request: api.UpdateRuntimeConfigRequest) -> api.UpdateRuntimeConfigResponse:
        self._networks.use_pod_cidr(request.runtime_config.network_config.pod_cidr)
        return api.UpdateRuntimeConfigResponse()


def _in_sync(apart: list[Mismatch]) -> api.RuntimeCondition:
    """Return the optional condition on mount namespaces; the node stays ready, most pods work."""
    message = "; ".join(item.message for item in apart)
    hints = "; ".join(dict.fromkeys(item.hint for item in apart))
    return api.RuntimeCondition(
        type=sync.CONDITION,
        status=not apart,
        reason=sync.REASON if apart else "",
        message=f"{message}; hint: {hints}" if apart else "",
    )


def _handler(name: HandlerName, features: Features) -> api.RuntimeHandler:
    return api.RuntimeHandler(
        name=name,
        features=api.RuntimeHandlerFeatures(
            recursive_read_only_mounts=features.recursive_read_only_mounts, user_namespaces=features.user_namespaces
        ),
    )
