"""Which method answers which RPC: a table for each service on the CRI socket. Called by ``daemon``."""

from __future__ import annotations

from collections.abc import Mapping

from podkeep.base.frozen import FrozenStruct
from podkeep.cri import server
from podkeep.cri.server import Handler
from podkeep.runtime.rpc.container import ContainerRpc
from podkeep.runtime.rpc.events import EventRpc
from podkeep.runtime.rpc.image import ImageRpc
from podkeep.runtime.rpc.image_maintenance import ImageMaintenanceRpc
from podkeep.runtime.rpc.node import NodeRpc
from podkeep.runtime.rpc.runtime import RuntimeRpc
from podkeep.runtime.rpc.sandbox import SandboxRpc
from podkeep.runtime.rpc.stats import StatsRpc
from podkeep.runtime.rpc.streaming import StreamingRpc


class Rpcs(FrozenStruct, kw_only=True):
    """The objects whose methods answer."""

    runtime: RuntimeRpc
    sandbox: SandboxRpc
    container: ContainerRpc
    streaming: StreamingRpc
    stats: StatsRpc
    events: EventRpc
    image: ImageRpc
    maintenance: ImageMaintenanceRpc
    node: NodeRpc

    def by_service(self) -> dict[str, Mapping[str, Handler]]:
        """Return the methods by the names of their RPCs, for each service; what is not there is UNIMPLEMENTED."""
        return {
            server.RUNTIME_SERVICE: {
                "Version": self.runtime.version,
                "Status": self.runtime.status,
                "RuntimeConfig": self.runtime.runtime_config,
                "UpdateRuntimeConfig": self.runtime.update_runtime_config,
                "RunPodSandbox": self.sandbox.run,
                "StopPodSandbox": self.sandbox.stop,
                "RemovePodSandbox": self.sandbox.remove,
                "ListPodSandbox": self.sandbox.list,
                "StreamPodSandboxes": self.sandbox.stream,
                "PodSandboxStatus": self.sandbox.status,
                "UpdatePodSandboxResources": self.sandbox.update,
                "UpdatePodSandboxConfig": self.sandbox.update_config,
                "CreateContainer": self.container.create,
                "StartContainer": self.container.start,
                "StopContainer": self.container.stop,
                "RemoveContainer": self.container.remove,
                "ListContainers": self.container.list,
                "StreamContainers": self.container.stream,
                "ContainerStatus": self.container.status,
                "ExecSync": self.container.exec_sync,
                "UpdateContainerResources": self.container.update,
                "ReopenContainerLog": self.container.reopen_log,
                "CheckpointContainer": self.container.checkpoint,
                "Exec": self.streaming.exec,
                "Attach": self.streaming.attach,
                "PortForward": self.streaming.port_forward,
                "GetContainerEvents": self.events.container_events,
                "ContainerStats": self.stats.container,
                "ListContainerStats": self.stats.list_containers,
                "StreamContainerStats": self.stats.stream_containers,
                "PodSandboxStats": self.stats.sandbox,
                "ListPodSandboxStats": self.stats.list_sandboxes,
                "StreamPodSandboxStats": self.stats.stream_sandboxes,
                "ListMetricDescriptors": self.stats.descriptors,
                "ListPodSandboxMetrics": self.stats.list_metrics,
                "StreamPodSandboxMetrics": self.stats.stream_metrics,
            },
            server.IMAGE_SERVICE: {
                "ListImages": self.image.list,
                "StreamImages": self.image.stream,
                "ImageStatus": self.image.status,
                "PullImage": self.image.pull,
                "RemoveImage": self.image.remove,
                "ImageFsInfo": self.image.fs_info,
            },
            server.NODE_SERVICE: {
                "LoadImage": self.node.load_image,
                "SaveImages": self.maintenance.save,
                "DescribeImages": self.maintenance.describe,
                "RemoveImageName": self.maintenance.remove,
                "PruneImages": self.maintenance.prune,
                "VerifyImages": self.maintenance.verify,
                "WatchPulls": self.node.watch_pulls,
                "ListPodUIDs": self.node.list_pod_uids,
                "Shutdown": self.node.shutdown,
            },
        }
