"""The agent's metrics, under the names that a kubelet has for them (kubelet: ``pkg/kubelet/metrics``).

Who does a thing counts it: ``metrics.observe(RUN_SANDBOX_DURATION, seconds, handler)``. Names that the enhancement
proposals print otherwise than kubelet are aliases.
"""

from __future__ import annotations

from podkeep.base.metrics import Metric, Metrics, counter, gauge, histogram

_MINUTES = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60)
_START_S = (0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, *(60 * minutes for minutes in _MINUTES))
_PULL_S = (1, 5, 10, 20, 30, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600)
_RESIZE_MS = (10, 50, 100, 500, 1000, 2000, 5000, 10000, 20000, 30000, 60000, 120000, 300000, 600000)
_RPC_S = tuple(0.005 * 2.5**step for step in range(14))

NODE_NAME = gauge("kubelet_node_name", "Name of the node; the value is 1.", "node")
CGROUP_VERSION = gauge("kubelet_cgroup_version", "Version of the machine's cgroup hierarchy.")
METRICS_PROVIDER = gauge("kubelet_metrics_provider", "Where statistics of containers come from.", "provider")

# pods
CONTAINERS_PER_POD = histogram(
    "kubelet_containers_per_pod_count", "Containers of each pod that was taken on.", buckets=(1, 2, 4, 8, 16)
)
POD_WORKER_START_DURATION = histogram(
    "kubelet_pod_worker_start_duration_seconds", "Time from first seeing a pod to the start of its worker."
)
POD_START_DURATION = histogram(
    "kubelet_pod_start_duration_seconds", "Time from first seeing a pod to all of it running.", buckets=_START_S
)
POD_START_SLI_DURATION = histogram(
    "kubelet_pod_start_sli_duration_seconds",
    "Time from a pod's creation to all of it running, without pulls and init containers.",
    buckets=_START_S,
    aliases=("pod_start_sli_duration_seconds",),
)
POD_START_TOTAL_DURATION = histogram(
    "kubelet_pod_start_total_duration_seconds", "Time from a pod's creation to all of it running.", buckets=_START_S
)
POD_STATUS_SYNC_DURATION = histogram(
    "kubelet_pod_status_sync_duration_seconds",
    "Time from a change of a pod's status to the API having it.",
    buckets=(0.01, 0.05, 0.1, 0.5, 1, 5, 10, 20, 30, 45, 60),
)
RUNNING_PODS = gauge("kubelet_running_pods", "Pods with a sandbox that runs.")
RUNNING_CONTAINERS = gauge(
    "kubelet_running_containers", "Containers, by state: created, running, exited, unknown.", "container_state"
)
DESIRED_PODS = gauge("kubelet_desired_pods", "Pods that the node is to run; static ones apart.", "static")
ACTIVE_PODS = gauge("kubelet_active_pods", "Pods that count for admission; static ones apart.", "static")
STATIC_PODS_LEFT_OUT = gauge(
    "podkeep_static_pods_left_out", "Files of static pods that are no pod, and are left out until they are changed."
)
ORPHANED_RUNTIME_PODS = counter(
    "kubelet_orphaned_runtime_pods_total", "Pods that only the runtime knew, and that were ended."
)
STARTED_PODS = counter("kubelet_started_pods_total", "Sandboxes that were asked for.")
STARTED_PODS_ERRORS = counter("kubelet_started_pods_errors_total", "Sandboxes that could not be made.")
STARTED_USERNS_PODS = counter(
    "kubelet_started_user_namespaced_pods_total", "Sandboxes with a user namespace that were asked for."
)
STARTED_USERNS_PODS_ERRORS = counter(
    "kubelet_started_user_namespaced_pods_errors_total",
    "Sandboxes with a user namespace that could not be made, or in which a container could not be started at first.",
)
STARTED_CONTAINERS = counter(
    "kubelet_started_containers_total",
    "Containers that were to be started: container, init_container, ephemeral_container.",
    "container_type",
)
STARTED_CONTAINERS_ERRORS = counter(
    "kubelet_started_containers_errors_total",
    "Containers that could not be started, by the reason of their status.",
    "container_type",
    "code",
)
TERMINATED_CONTAINERS = counter(
    "kubelet_terminated_containers_total",
    "Containers that ended.",
    "container_type",
    "exit_code",
    "reason",
)
MANAGED_EPHEMERAL_CONTAINERS = gauge(
    "kubelet_managed_ephemeral_containers", "Ephemeral containers of the pods of this node."
)
ADMISSION_REJECTIONS = counter("kubelet_admission_rejections_total", "Pods that were not taken on.", "reason")
EVICTIONS = counter("kubelet_evictions", "Pods that were evicted, by signal.", "eviction_signal")
SHUTDOWN_START = gauge("kubelet_graceful_shutdown_start_time_seconds", "When the last shutdown of the node began.")
SHUTDOWN_END = gauge("kubelet_graceful_shutdown_end_time_seconds", "When the last shutdown of the node ended.")

# hooks and probes
HOOK_SLEEP_ENDED_EARLY = counter(
    "kubelet_sleep_action_terminated_early_total", "Sleeping hooks that the grace period cut short."
)
HOOK_HTTP_FALLBACKS = counter(
    "kubelet_lifecycle_handler_http_fallbacks_total", "Hooks asked for with HTTPS and answered with HTTP."
)
PROBE_TOTAL = counter(
    "prober_probe_total",
    "Probes of a container, by result.",
    "probe_type",
    "result",
    "container",
    "pod",
    "namespace",
    "pod_uid",
)
PROBE_DURATION = histogram(
    "prober_probe_duration_seconds", "Time of a probe.", "probe_type", "container", "pod", "namespace"
)

# runtime
RUNTIME_OPERATIONS = counter("kubelet_runtime_operations_total", "Calls to the runtime.", "operation_type")
RUNTIME_OPERATIONS_DURATION = histogram(
    "kubelet_runtime_operations_duration_seconds", "Time of a call to the runtime.", "operation_type", buckets=_RPC_S
)
RUNTIME_OPERATIONS_ERRORS = counter(
    "kubelet_runtime_operations_errors_total", "Calls to the runtime that failed.", "operation_type"
)
RUN_SANDBOX_DURATION = histogram(
    "kubelet_run_podsandbox_duration_seconds", "Time to make a sandbox.", "runtime_handler"
)
RUN_SANDBOX_ERRORS = counter(
    "kubelet_run_podsandbox_errors_total", "Sandboxes that the runtime could not make.", "runtime_handler"
)
PLEG_RELIST_DURATION = histogram("kubelet_pleg_relist_duration_seconds", "Time to list what the runtime has.")
PLEG_RELIST_INTERVAL = histogram("kubelet_pleg_relist_interval_seconds", "Time between two lists.")
PLEG_LAST_SEEN = gauge("kubelet_pleg_last_seen_seconds", "When the runtime was listed last, in seconds since 1970.")
EVENT_STREAM_ERRORS = counter(
    "kubelet_evented_pleg_connection_error_count", "Streams of the runtime's events that broke."
)
EVENT_STREAM_STARTS = counter(
    "kubelet_evented_pleg_connection_success_count", "Streams of the runtime's events that began."
)

# images and volumes
IMAGE_PULL_DURATION = histogram(
    "kubelet_image_pull_duration_seconds",
    "Time of a pull, by the image's size (see size_bucket).",
    "image_size_in_bytes",
    buckets=_PULL_S,
)
ENSURE_IMAGE_REQUESTS = counter(
    "kubelet_image_manager_ensure_image_requests_total",
    "Requests for an image to be here.",
    "pull_policy",
    "present_locally",
    "pull_required",
)
IMAGES_COLLECTED = counter(
    "kubelet_image_garbage_collected_total", "Images that were removed, by reason: space or age.", "reason"
)
IMAGE_VOLUMES_REQUESTED = counter(
    "kubelet_image_volume_requested_total",
    "Image volumes that pods asked for.",
    aliases=("image_volume_requested_total",),
)
IMAGE_VOLUMES_MOUNTED = counter(
    "kubelet_image_volume_mounted_succeed_total",
    "Image volumes that were mounted.",
    aliases=("image_volume_mounted_success",),
)
IMAGE_VOLUMES_FAILED = counter(
    "kubelet_image_volume_mounted_errors_total",
    "Image volumes that could not be mounted.",
    aliases=("image_volume_mounted_error",),
)

# resize
POD_RESIZE_DURATION = histogram(
    "kubelet_pod_resize_duration_milliseconds", "Time of a pod's resize.", "success", buckets=_RESIZE_MS
)
POD_PENDING_RESIZES = gauge("kubelet_pod_pending_resizes", "Resizes that wait: Deferred or Infeasible.", "reason")
POD_RESIZES_IN_PROGRESS = gauge("kubelet_pod_in_progress_resizes", "Resizes that are being done.")

# the server
HTTP_REQUESTS = counter(
    "kubelet_http_requests_total", "Requests that came.", "method", "path", "server_type", "long_running"
)
HTTP_DURATION = histogram(
    "kubelet_http_requests_duration_seconds",
    "Time to answer a request.",
    "method",
    "path",
    "server_type",
    "long_running",
)
HTTP_IN_FLIGHT = gauge(
    "kubelet_http_inflight_requests",
    "Requests that are being answered.",
    "method",
    "path",
    "server_type",
    "long_running",
)
WEBSOCKET_STREAMS = counter(
    "kubelet_websocket_streaming_requests_total",
    "Requests for exec, attach or port-forward over WebSocket.",
    "subresource",
)

PROBES = (PROBE_TOTAL, PROBE_DURATION)
"""Served at ``/metrics/probes``."""
ALL: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
"""All of them; what is counted somewhere is 0 from the start, as in a kubelet, if it has no labels."""

_SIZES = (
    (100 << 30, "GT100GB"),
    (60 << 30, "60GB-100GB"),
    (40 << 30, "40GB-60GB"),
    (30 << 30, "30GB-40GB"),
    (20 << 30, "20GB-30GB"),
    (10 << 30, "10GB-20GB"),
    (5 << 30, "5GB-10GB"),
    (1 << 30, "1GB-5GB"),
    (500 << 20, "500MB-1GB"),
    (100 << 20, "100MB-500MB"),
    (10 << 20, "10MB-100MB"),
    (0, "0-10MB"),
)


def size_bucket(size: int) -> str:
    """Return the label of an image of ``size`` bytes in :data:`IMAGE_PULL_DURATION`."""
    return next((label for least, label in _SIZES if size > least), "N/A")


class AgentMetrics(Metrics):
    """All metrics of one agent."""

    def __init__(self) -> None:
        super().__init__(metric for metric in ALL if metric not in PROBES)
        self.remaps: dict[str, float] = {}
        """UID of a pod that starts to seconds: in these the runtime gave images the owners of the pod."""
