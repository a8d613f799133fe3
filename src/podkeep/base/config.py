"""The configuration file: TOML, strict, one file for every process of podkeep.

An unknown key or a wrong type is an error that names the key; nothing is guessed. Every key has a default, so the file
may be absent.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from ipaddress import IPv4Network, IPv6Network, ip_address
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import msgspec

from podkeep.base import misfit
from podkeep.base.errors import InvalidArgument, InvalidConfiguration
from podkeep.base.text import quantity

DEFAULT_PATH = Path("/etc/podkeep/config.toml")


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of the file: immutable, unknown keys refused."""


class HandlerConfig(_Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One runtime handler (CRI: runtime_handler): an OCI runtime and how to call it."""

    path: str
    kind: Literal["namespaces", "vm"] = "namespaces"
    """What keeps pods apart; ``vm``: virtual machines, which take the place of user namespaces."""
    root: str = ""
    """Where the OCI runtime keeps its state; empty: ``<run>/handlers/<name>``."""
    options: tuple[str, ...] = ()
    """Global arguments of the OCI runtime, before its command."""
    annotations: tuple[str, ...] = ()
    """Patterns (``*``, ``?``, ``[...]``) of the annotations of pods and containers that the OCI runtime gets to see."""
    privileged_without_host_devices: bool = False
    """Give privileged containers no device nodes of the machine beyond those they ask for."""


class RuntimeConfig(_Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[runtime]``: where the runtime keeps things and which programs it starts."""

    root: str = "/var/lib/podkeep"
    """Persistent: images, writable layers, the state database."""
    run: str = "/run/podkeep"
    """Gone with a reboot: namespaces, mounts, bundles, sockets."""
    socket: str = "/run/podkeep/podkeep.sock"
    cgroup_parent: str = "/podkeep"
    """Cgroup for sandboxes whose request names none."""
    conmon: str = "/usr/bin/conmon"
    catatonit: str = "/usr/bin/catatonit"
    criu: str = "criu"
    """Path or name of CRIU, for CheckpointContainer; without it that is Unimplemented."""
    default_handler: str = "crun"
    handlers: dict[str, HandlerConfig] = msgspec.field(
        default_factory=lambda: {"crun": HandlerConfig(path="/usr/bin/crun")}
    )
    seccomp_profile: str = "/usr/share/containers/seccomp.json"
    """The profile that RuntimeDefault means."""
    cdi_spec_dirs: tuple[str, ...] = ("/etc/cdi", "/var/run/cdi")
    """Directories of CDI spec files; a later one goes before an earlier one. None: no CDI devices."""
    cgroup_driver: Literal["cgroupfs", "systemd"] = "cgroupfs"
    """Who makes cgroups: the runtime itself, or systemd (which must be the machine's init)."""
    favordynmods: bool = False
    """Let processes enter cgroups without waiting; machine-wide, since Linux 6.18 until the next boot."""
    apparmor: Literal["auto", "off"] = "auto"
    """``auto``: containers run under AppArmor profiles where the kernel enforces them."""
    selinux: Literal["auto", "off"] = "auto"
    """``auto``: containers get SELinux labels where the kernel enforces them."""
    unprivileged_ports: bool = True
    """Let any user of a pod listen on ports below 1024."""
    unprivileged_icmp: bool = True
    """Let any user of a pod ping."""
    default_sysctls: dict[str, str] = {}
    """Sysctls of every pod that has their namespace of its own; a request wins over them."""
    default_rlimits: dict[str, str] = msgspec.field(default_factory=lambda: {"nofile": "1024:524288"})
    """Limits of every container's processes, as ``SOFT:HARD``; the daemon's own for those that are not named."""
    pids_limit: int = 0
    """Processes and threads that a container may have; 0: no limit."""
    log_size_limit: str = "1Gi"
    """How large a log gets that nobody rotates; 0: no limit."""
    user_namespace_rootfs: Literal["auto", "idmapped", "metacopy", "copy"] = "auto"
    """How images get the owners of a pod with a user namespace; ``auto``: in the cheapest way that works."""
    image_volume_noexec: bool = True
    """Mount images that are volumes ``noexec`` (KEP-4639)."""
    image_volume_files: bool = False
    """Let the sub path of an image volume name a single file."""

    def log_limit(self) -> int:
        """Return ``log_size_limit`` in bytes.

        :raises InvalidArgument: if it is no size.
        """
        return _bytes("runtime.log_size_limit", self.log_size_limit, least=0)


class MountnsConfig(_Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[mountns]``: where container mounts are hidden (OpenShift, hide container mount points)."""

    enabled: bool = True
    """Hide container mounts from the host; the one switch for every daemon."""
    pin: str = ""
    """File on which the namespace is pinned; empty: ``/run/kubens/mnt`` if one is pinned there, else
    ``/run/container-mount-namespace/mnt``."""


class NetworkConfig(_Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[network]``: which network pods get, and the built-in bridge."""

    mode: Literal["auto", "bridge", "cni"] = "auto"
    """``auto``: CNI if ``cni_conf_dir`` has a configuration, else the bridge."""
    cni_conf_dir: str = "/etc/cni/net.d"
    cni_plugin_dirs: tuple[str, ...] = ("/opt/cni/bin", "/usr/lib/cni")
    """Where the programs are that a CNI configuration names; the first that has one wins."""
    cni_timeout: float = 60.0
    """Seconds that one CNI plugin may take."""
    bridge: str = "podkeep0"
    subnet: str = "10.183.0.0/16"
    subnet6: str = ""
    """IPv6 addresses for pods, beside those of ``subnet``; empty: pods have IPv4 only."""
    masquerade: bool = True
    """Let pods reach what the machine reaches, under the machine's address (nftables)."""


class RegistryConfig(_Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[registries."HOST[:PORT]"]``: how to reach one registry."""

    mirrors: tuple[str, ...] = ()
    """Hosts tried in order before the registry itself, as ``host[:port]`` or a URL with a path prefix."""
    insecure: bool = False
    """Speak plain HTTP, or HTTPS without checking the certificate."""
    ca_file: str = ""
    cert_file: str = ""
    """PEM file with our certificate, for a registry or mirror that asks for one."""
    key_file: str = ""
    """PEM file with its key; empty: it is in ``cert_file``."""


class ReferrersConfig(_Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[images.referrers]``: naming an artifact by the image that it refers to (OCI distribution-spec, "Listing
    Referrers")."""

    enabled: bool = False
    """Let images be named ``IMAGE?artifactType=TYPE``."""
    repositories: dict[str, str] = {}
    """Where else to look: ``host/repository`` of images to ``host/repository`` of artifacts that refer to them."""


class ImagesConfig(_Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[images]``: pulling and unpacking."""

    snapshot_driver: Literal["auto", "directories", "erofs"] = "auto"
    """How new layers are kept; ``auto``: as EROFS images where they can be mounted."""
    parallel_layers: int = 3
    max_layer_bytes: int = 64 << 30
    """Uncompressed bytes after which a layer is refused."""
    max_layer_inodes: int = 5_000_000
    max_unpack_ratio: int = 500
    """How many times as large as its blob a layer may become; up to 64 MiB are no question."""
    pinned: tuple[str, ...] = ()
    """Patterns (``*``, ``?``, ``[...]``) of whole names of images that garbage collection leaves alone."""
    allowed_registries: tuple[str, ...] = ()
    """``host[:port][/prefix]`` that images may be pulled from, ``*`` for one part of a host; empty: any."""
    docker_config: str = ""
    """File with credentials (docker's ``config.json``) for pulls that come without."""
    credential_providers: str = ""
    """CredentialProviderConfig of exec plugins, a file or a directory of them, as a kubelet reads it."""
    credential_provider_dir: str = ""
    """Directory of the plugins."""
    progress_timeout: float = 60.0
    """Seconds in which at least 64 KiB, or the rest, must arrive from a registry."""
    media_types: dict[str, Literal["tar", "tar+gzip", "tar+zstd", "file", "auto", "deny"]] = {}
    """What layers of these media types (or patterns of them) are in artifacts; ``deny`` holds for images, too."""
    artifact_types: dict[str, Literal["allow", "files", "deny"]] = {}
    """Artifacts of these types (or patterns of them): ``files``: every layer is kept as the file that it is."""
    referrers: ReferrersConfig = ReferrersConfig()


class X509Config(_Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[agent.authentication.x509]``: clients that show a certificate."""

    client_ca_file: str = ""
    """PEM file of the authorities that clients' certificates are verified against; empty: none is asked for."""


class TokenWebhookConfig(_Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[agent.authentication.webhook]``: clients that show a token, which the API reviews (TokenReview)."""

    enabled: bool = True
    cache_ttl: float = 120.0
    """Seconds for which the API's answer counts."""


class AnonymousConfig(_Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[agent.authentication.anonymous]``: clients that show nothing."""

    enabled: bool = False
    """Let them ask as ``system:anonymous``."""


class AuthenticationConfig(_Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[agent.authentication]``: who asks the kubelet's endpoints (kubelet: authentication)."""

    x509: X509Config = X509Config()
    webhook: TokenWebhookConfig = TokenWebhookConfig()
    anonymous: AnonymousConfig = AnonymousConfig()


class AccessWebhookConfig(_Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[agent.authorization.webhook]``: how long answers of the API count, in seconds."""

    cache_authorized_ttl: float = 300.0
    cache_unauthorized_ttl: float = 30.0


class AuthorizationConfig(_Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[agent.authorization]``: who may ask the kubelet's endpoints for what (kubelet: authorization)."""

    mode: Literal["Webhook", "AlwaysAllow"] = "Webhook"
    """``Webhook``: the API decides (SubjectAccessReview)."""
    webhook: AccessWebhookConfig = AccessWebhookConfig()


class CrashLoopBackOffConfig(_Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[agent.crash_loop_back_off]``: waits of containers that end again and again (kubelet: crashLoopBackOff)."""

    max_container_restart_period: float = 300.0
    """Seconds; the first wait is 10, or this if it is less, and each next one twice as long."""

    def longest(self) -> float:
        """Return the longest wait in seconds.

        :raises InvalidArgument: if it is out of range.
        """
        if not 1 <= self.max_container_restart_period <= 300:
            raise InvalidArgument(
                "agent.crash_loop_back_off.max_container_restart_period: "
                f"{self.max_container_restart_period:g} is not between 1 and 300 seconds"
            )
        return self.max_container_restart_period


class UserNamespacesConfig(_Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[agent.user_namespaces]``: IDs of pods with a user namespace of their own (kubelet: userNamespaces)."""

    ids_per_pod: int = 65536
    """How many users and groups such a pod has: a multiple of 65536 (kubelet: idsPerPod)."""

    def length(self) -> int:
        """Return ``ids_per_pod``.

        :raises InvalidArgument: if it is out of range, or not a multiple of 65536.
        """
        if not 0 < self.ids_per_pod < 1 << 31 or self.ids_per_pod % 65536:
            raise InvalidArgument(
                f"agent.user_namespaces.ids_per_pod: {self.ids_per_pod} is not a multiple of 65536 up to 2147418112",
                hint="use 65536, or 131072 for pods with users up to 131071",
            )
        return self.ids_per_pod


class ShutdownGracePeriod(_Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An entry of ``[agent] shutdown_grace_period_by_pod_priority``: pods of this priority, up to the next entry's."""

    priority: int
    seconds: float


class AgentConfig(_Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[agent]``: the node agent, also as used by ``podkeep run``."""

    root: str = "/var/lib/podkeep/agent"
    """Pod directories are ``<root>/pods/<uid>`` (KEP-127, support for pods). Not a kubelet's: it removes pods that it
    does not know."""
    pod_logs: str = "/var/log/podkeep/pods"
    node_name: str = ""
    """Name of the Node object; empty: the machine's host name, in lower case."""
    kubeconfig: str = ""
    """File with which ``podkeep agent`` reaches its API; empty: the socket of the API on this machine."""
    bootstrap_kubeconfig: str = ""
    """File with a token by which the node asks its cluster for a certificate, if ``kubeconfig`` is not there yet
    (kubelet: --bootstrap-kubeconfig)."""
    server_tls_bootstrap: bool = False
    """Ask the cluster for the certificate of the node's endpoints, and renew it (kubelet: serverTLSBootstrap)."""
    static_pod_path: str = ""
    """Directory or file of static pods; empty: none."""
    register_node: bool = True
    """Make the Node object if the API has none (kubelet: registerNode)."""
    register_with_taints: tuple[str, ...] = ()
    """Taints of a Node that is made, each as ``KEY[=VALUE]:EFFECT`` (kubelet: registerWithTaints)."""
    node_labels: dict[str, str] = {}
    """Labels of a Node that is made, beside those that every one has (kubelet: --node-labels)."""
    node_status_update_frequency: float = 10.0
    """Seconds between looks at the node; what changed is reported at once (kubelet: nodeStatusUpdateFrequency)."""
    node_status_report_frequency: float = 300.0
    """Seconds after which the status is reported though nothing changed (kubelet: nodeStatusReportFrequency)."""
    node_lease_duration_seconds: int = 40
    """After which the API takes a node for lost that does not renew its lease (kubelet: nodeLeaseDurationSeconds)."""
    node_status_max_images: int = 50
    """How many images a Node's status has; -1: all (kubelet: nodeStatusMaxImages)."""
    event_record_qps: float = 50.0
    """Events a second that are written to the API; 0: no limit (kubelet: eventRecordQPS)."""
    event_burst: int = 100
    """Events that are written at once (kubelet: eventBurst)."""
    enable_server: bool = True
    """Serve the kubelet's endpoints: logs, exec, statistics, metrics (kubelet: enableServer)."""
    address: str = "0.0.0.0"
    """IP address on which they are served."""
    port: int = 10250
    """0: any that is free."""
    tls_cert_file: str = ""
    """PEM file with the server's certificate; empty: one that the agent makes itself (kubelet: tlsCertFile)."""
    tls_private_key_file: str = ""
    authentication: AuthenticationConfig = AuthenticationConfig()
    authorization: AuthorizationConfig = AuthorizationConfig()
    enable_debugging_handlers: bool = True
    """Serve what gets into pods: logs, exec, attach, run, port-forward (kubelet: enableDebuggingHandlers)."""
    enable_system_log_handler: bool = False
    """Serve the files of /var/log at ``/logs/`` (kubelet: enableSystemLogHandler, true there)."""
    streaming_connection_idle_timeout: float = 14400.0
    """Seconds without a byte after which exec, attach and port-forward end."""
    runtime_request_timeout: float = 120.0
    """Seconds within which the runtime has to answer, but for pulls (kubelet: runtimeRequestTimeout)."""
    max_pods: int = 110
    """Blocks of IDs, and so pods with a user namespace of their own at one time; at least 1."""
    uid_mapping: str = ""
    """The users of all pods with a user namespace, ``container_id:host_id:length[,...]``; with ``gid_mapping`` and gate
    UserNamespaceSupport only (KEP-127 draft). Empty: each such pod has a block of its own."""
    gid_mapping: str = ""
    """Their groups."""
    user_namespaces: UserNamespacesConfig = UserNamespacesConfig()
    serialize_image_pulls: bool = False
    """Pull one image at a time (kubelet: serializeImagePulls, there the default)."""
    max_parallel_image_pulls: int = 0
    """How many images are pulled at a time; 0: any number (kubelet: maxParallelImagePulls)."""
    registry_pull_qps: int = 0
    """How many images are asked for at registries in a second; 0: any number (kubelet: registryPullQPS)."""
    registry_burst: int = 10
    """How many of them at once after a pause (kubelet: registryBurst)."""
    image_credential_provider_config: str = ""
    """A CredentialProviderConfig, or a directory of them (kubelet: --image-credential-provider-config)."""
    image_credential_provider_bin_dir: str = ""
    """Where the programs of the plugins are (kubelet: --image-credential-provider-bin-dir)."""
    image_pull_credentials_verification_policy: Literal[
        "NeverVerify", "NeverVerifyPreloadedImages", "NeverVerifyAllowlistedImages", "AlwaysVerify"
    ] = "NeverVerifyPreloadedImages"
    """Which images that are here a pod must have access to (kubelet: imagePullCredentialsVerificationPolicy)."""
    preloaded_images_verification_allowlist: tuple[str, ...] = ()
    """Repositories that ``NeverVerifyAllowlistedImages`` is about (kubelet: preloadedImagesVerificationAllowlist)."""
    image_gc_high_threshold_percent: int = 85
    """Usage of the images' file system from which on unused images are removed; 100: never."""
    image_gc_low_threshold_percent: int = 80
    """Usage down to which they are removed."""
    image_minimum_gc_age: float = 120.0
    """Seconds since an image was seen first, before which it is not removed to make room."""
    image_maximum_gc_age: float = 0.0
    """Seconds without use after which an image is removed whatever room there is; 0: never."""
    container_log_max_size: str = "10Mi"
    """How large a container's log gets before it is rotated (kubelet: containerLogMaxSize)."""
    container_log_max_files: int = 5
    """How many files of one container's log there are at most (kubelet: containerLogMaxFiles)."""
    container_log_max_workers: int = 1
    """How many logs are rotated at a time (kubelet: containerLogMaxWorkers)."""
    container_log_monitor_interval: float = 10.0
    """Seconds after which every log has been looked at, those that grow more often (kubelet:
    containerLogMonitorInterval)."""
    kube_reserved: dict[str, str] = {}
    """What podkeep's own daemons need, by resource; pods cannot request it (kubelet: kubeReserved)."""
    system_reserved: dict[str, str] = {}
    """What the rest of the machine needs (kubelet: systemReserved)."""
    kube_reserved_cgroup: str = ""
    """The cgroup that is held to ``kube_reserved``, if ``enforce_node_allocatable`` says so."""
    system_reserved_cgroup: str = ""
    enforce_node_allocatable: tuple[
        Literal[
            "none",
            "pods",
            "kube-reserved",
            "system-reserved",
            "kube-reserved-compressible",
            "system-reserved-compressible",
        ],
        ...,
    ] = ("pods",)
    """Which cgroups are held to what is theirs (kubelet: enforceNodeAllocatable)."""
    pod_pids_limit: int = -1
    """Processes and threads of one pod; -1: no limit (kubelet: podPidsLimit)."""
    cpu_cfs_quota: bool = True
    """Enforce limits of CPU time (kubelet: cpuCFSQuota)."""
    single_process_oom_kill: bool = False
    """Where memory runs out in a container, end one process and not all of it (kubelet: singleProcessOOMKill)."""
    allowed_unsafe_sysctls: tuple[str, ...] = ()
    """Sysctls beyond the safe ones that pods may set; a name, or a prefix that ends with ``*``."""
    local_storage_capacity_isolation: bool = True
    """Count and limit local storage that pods use (kubelet: localStorageCapacityIsolation)."""
    eviction_hard: dict[str, str] = msgspec.field(
        default_factory=lambda: {
            "memory.available": "100Mi",
            "nodefs.available": "10%",
            "nodefs.inodesFree": "5%",
            "imagefs.available": "15%",
            "imagefs.inodesFree": "5%",
        }
    )
    """By signal, below which amount or part a pod is ended at once (kubelet: evictionHard)."""
    eviction_soft: dict[str, str] = {}
    """By signal, below which a pod is ended after a while (kubelet: evictionSoft)."""
    eviction_soft_grace_period: dict[str, float] = {}
    """By signal of ``eviction_soft``, for how many seconds it must hold."""
    eviction_minimum_reclaim: dict[str, str] = {}
    """By signal, how much more than the threshold is to be free before the pressure is over."""
    eviction_pressure_transition_period: float = 300.0
    """Seconds for which a pressure is reported after it was seen last."""
    eviction_max_pod_grace_period: int = 0
    """Seconds that a pod has at most to end when a soft threshold is met."""
    shutdown_grace_period: float = 0.0
    """Seconds for which a shutdown of the machine waits for pods to end; 0: it does not."""
    shutdown_grace_period_critical_pods: float = 0.0
    """How many of these seconds are for critical pods, which are ended after the others."""
    shutdown_grace_period_by_pod_priority: tuple[ShutdownGracePeriod, ...] = ()
    """Seconds by priority, in place of the two above."""
    minimum_container_ttl: float = 0.0
    """Seconds for which a container that has ended is kept at least (kubelet: --minimum-container-ttl-duration)."""
    maximum_dead_containers_per_container: int = 1
    """How many ended attempts of a container are kept; negative: all."""
    maximum_dead_containers: int = -1
    """How many ended containers are kept on the node; negative: all."""
    crash_loop_back_off: CrashLoopBackOffConfig = CrashLoopBackOffConfig()
    cluster_dns: tuple[str, ...] = ()
    """Addresses of the cluster's DNS servers (kubelet: clusterDNS); without one, pods have the node's own."""
    cluster_domain: str = ""
    """The cluster's domain, in which pods look for names (kubelet: clusterDomain)."""
    resolv_conf: str = "/etc/resolv.conf"
    """The node's own name servers, for pods (kubelet: resolvConf)."""
    seccomp_default: bool = False
    """Containers that say nothing about seccomp have the runtime's default profile (kubelet: seccompDefault)."""
    feature_gates: dict[str, bool] = {}
    """Features by their Kubernetes names, on or off; those that are not named have their default."""

    def own_name(self) -> str:
        """Return the name of this machine's Node object (kubelet: the host's name in lower case)."""
        return self.node_name or os.uname().nodename.strip().lower()

    def seccomp_root(self) -> str:
        """Return the directory of profiles that pods name with type Localhost."""
        return f"{self.root}/seccomp"

    def log_max_bytes(self) -> int:
        """Return ``container_log_max_size`` in bytes.

        :raises InvalidArgument: if it is no size.
        """
        return _bytes("agent.container_log_max_size", self.container_log_max_size, least=1)


class NodeConfig(_Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[node]``: ``podkeep node``, which brings up runtime, API and agent."""

    run: str = "/run/podkeep-node"
    """Its lock, the sockets on which its daemons say that they serve, and what it tells of them."""
    api: bool = True
    """Serve the Kubernetes API on this machine; otherwise ``agent.kubeconfig`` says where it is."""


class PodSecurityConfig(_Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[api.admission.pod_security]``: a ``PodSecurityConfiguration``, its keys as Kubernetes writes them."""

    defaults: dict[str, str] = {}
    """What counts in namespaces without labels: ``enforce``, ``enforce-version``, and so on."""
    exemptions: dict[str, tuple[str, ...]] = {}
    """``usernames``, ``namespaces`` and ``runtimeClasses`` for which nothing counts."""


class AdmissionConfig(_Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[api.admission]``: what admission plugins are told."""

    allowed_registries: tuple[str, ...] = ()
    """Where images of pods may come from; empty: from anywhere."""
    pod_security: PodSecurityConfig = PodSecurityConfig()


class ApiConfig(_Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[api]``: the embedded Kubernetes API."""

    root: str = "/var/lib/podkeep/api"
    """The database, keys and certificates."""
    unix_socket: str = "/run/podkeep-api.sock"
    """A socket for root alone, who may do everything; empty: none."""
    address: str = "127.0.0.1:6443"
    """``IP:PORT`` for TLS; empty: nowhere."""
    tls_cert: str = ""
    """PEM file with the server's certificate; empty: one of the API's own authority."""
    tls_key: str = ""
    client_ca: str = ""
    """PEM file of more authorities whose certificates name clients. Read at start."""
    token_auth_file: str = ""
    """CSV file of bearer tokens (kube-apiserver: --token-auth-file); empty: none. Read at start."""
    kubelet_ca: str = ""
    """PEM file of the authority that kubelets' certificates are verified against; empty: the API's own."""
    enable_admission_plugins: tuple[str, ...] = ()
    """Names of plugins that are off otherwise, such as ``AlwaysPullImages``."""
    disable_admission_plugins: tuple[str, ...] = ()
    node: str = ""
    """Name of a node: ``kubelet.conf`` and a kubelet's serving certificate are made for it; empty: for none."""
    max_reads: int = 400
    """Requests that read and are answered at a time; those of administrators, watches and streams do not count."""
    max_writes: int = 200
    max_user_watches: int = 512
    """Watches, logs that are followed and upgraded connections of one user; those of nodes and controllers do not."""
    namespace_size_limit: str = "256Mi"
    """How large the objects of a namespace get together, all of which are in memory."""
    terminated_pod_gc_threshold: int = 1000
    """Pods that have ended and stay in a namespace, the youngest (kube-controller-manager's flag of this name is for
    all namespaces together); 0: all of them."""
    audit_log: str = ""
    """File for a line of JSON about each request; empty: none."""
    history: int = 300
    """Seconds for which a watch or a list may go back; fewer, if too much was written meanwhile."""
    history_size_limit: str = "512Mi"
    """How much of what objects were is kept on the disk."""
    feature_gates: dict[str, bool] = {}
    """Features by their Kubernetes names, on or off; those that are not named have their default."""
    admission: AdmissionConfig = AdmissionConfig()

    def endpoint(self) -> tuple[str, int] | None:
        """Return the IP address and port; None for nowhere.

        :raises InvalidArgument: if ``address`` is nothing of that.
        """
        return _ip_and_port("api.address", self.address, 6443) if self.address else None

    def namespace_bytes(self) -> int:
        """Return ``namespace_size_limit`` in bytes.

        :raises InvalidArgument: if it is no size, or too small for some large objects.
        """
        return _bytes("api.namespace_size_limit", self.namespace_size_limit, least=16 << 20)

    def history_bytes(self) -> int:
        """Return ``history_size_limit`` in bytes.

        :raises InvalidArgument: if it is no size, or so small that a list of large objects would not come to its end.
        """
        return _bytes("api.history_size_limit", self.history_size_limit, least=64 << 20)


def _ip_and_port(key: str, text: str, example: int) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    try:
        address = str(ip_address(host.removeprefix("[").removesuffix("]")))
        number = int(port) if port.isdecimal() and port.isascii() else -1
    except ValueError:
        number = -1
    if not 0 <= number < 1 << 16:
        raise InvalidArgument(f"{key}: {text!r} is not IP:PORT", hint=f"write it as 127.0.0.1:{example}")
    return address, number


def _bytes(key: str, text: str, *, least: int) -> int:
    try:
        size = quantity.units(text)
    except ValueError as error:
        raise InvalidArgument(f"{key}: {error}", hint="write it like 10Mi") from error
    if size < least:
        what = {0: "nothing", 1: "a byte"}.get(least, f"{least >> 20}Mi")
        raise InvalidArgument(f"{key}: {text} is less than {what}", hint=f"write it like {max(least >> 20, 10)}Mi")
    return size


class CustomClass(_Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[class_resources.types."TYPE".classes.CLASS]``: one class of a type that the configuration defines."""

    cgroup: dict[str, str] = {}
    """Files of the cgroup and what is written to them, such as ``{"cpu.weight" = "50"}``."""
    parameters: dict[str, str] = {}
    """Given to the type's hook."""


class CustomType(_Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[class_resources.types."TYPE"]``: a type of class resources that the configuration defines."""

    levels: tuple[Literal["container", "pod"], ...] = ("container",)
    immutable: bool = False
    """Refuse to change the class of what exists."""
    hook: str = ""
    """Program that enforces a class; empty: writing files of the cgroup is all there is to do."""
    hook_timeout: float = 10.0
    """Seconds that one call of the hook may take."""
    classes: dict[str, CustomClass] = {}


class ClassResourcesConfig(_Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[class_resources]``: QoS-class resources of containers and pods (KEP-3008)."""

    rdt_config: str = ""
    """File with RDT partitions and classes, in goresctrl's form; empty: no rdt."""
    resctrl: str = "/sys/fs/resctrl"
    """Where the resctrl file system is mounted."""
    blockio_config: str = ""
    """File with blockio classes, in goresctrl's form; empty: no blockio."""
    oom: dict[str, int] = {}
    """Classes of the type ``oom``: their oom_score_adj, -1000 to 1000."""
    container_defaults: dict[str, str] = {}
    """For each type the class that a container gets which asks for ``default``."""
    pod_defaults: dict[str, str] = {}
    types: dict[str, CustomType] = {}


class StreamingConfig(_Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[streaming]``: the server behind the URLs of Exec, Attach and PortForward."""

    address: str = "127.0.0.1"
    """IP address to listen on."""
    port: int = 0
    """0: any that is free."""
    idle_timeout: int = 14400
    """Seconds without a byte in either direction after which a session is ended."""
    tls_cert: str = ""
    """PEM file with the server's certificate; with it and ``tls_key`` the server speaks HTTPS."""
    tls_key: str = ""


class LogConfig(_Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[log]``: what the daemons write to their standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["plain", "json"] = "plain"
    """One line per record: for people, or one JSON object each. Both carry the request's ID."""


class MetricsConfig(_Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[metrics]``: the runtime's own metrics, for Prometheus."""

    address: str = ""
    """Where they are served, at ``/metrics``: ``IP:PORT``, the path of a unix socket, or empty for nowhere."""

    def endpoint(self) -> str | tuple[str, int] | None:
        """Return the path of the socket, or the IP address and port; None for nowhere.

        :raises InvalidArgument: if ``address`` is nothing of that.
        """
        if not self.address or self.address.startswith("/"):
            return self.address or None
        host, _, port = self.address.rpartition(":")
        try:
            address = str(ip_address(host.removeprefix("[").removesuffix("]")))
            number = int(port) if port.isdecimal() and port.isascii() else 0
        except ValueError:
            number = 0
        if not 0 < number < 1 << 16:
            raise InvalidArgument(
                f"metrics.address: {self.address!r} is neither IP:PORT nor the absolute path of a socket",
                hint="write it as 127.0.0.1:9090, [::1]:9090 or /run/podkeep/metrics.sock",
            )
        return address, number


class Config(_Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole file."""

    log: LogConfig = LogConfig()
    runtime: RuntimeConfig = RuntimeConfig()
    mountns: MountnsConfig = MountnsConfig()
    class_resources: ClassResourcesConfig = ClassResourcesConfig()
    network: NetworkConfig = NetworkConfig()
    images: ImagesConfig = ImagesConfig()
    metrics: MetricsConfig = MetricsConfig()
    agent: AgentConfig = AgentConfig()
    api: ApiConfig = ApiConfig()
    node: NodeConfig = NodeConfig()
    streaming: StreamingConfig = StreamingConfig()
    registries: dict[str, RegistryConfig] = {}


_SYSTEM_DIRECTORIES = frozenset(
    "/ /bin /boot /dev /dev/shm /etc /home /lib /lib64 /media /mnt /opt /proc /root /run /run/lock /run/user /sbin /srv"
    " /sys /sys/fs /sys/fs/cgroup /tmp /usr /usr/bin /usr/lib /usr/local /usr/sbin /usr/share /var /var/cache /var/lib"
    " /var/log /var/spool /var/tmp".split()
)
"""Directories that belong to the machine (Filesystem Hierarchy Standard): never one of ours."""
_ALL_KEYS = "docs/configuration.md lists every key"
_MOST_LEVELS = 64
"""Of tables and lists in each other; a configuration has six."""


def load(path: Path | None, settings: Sequence[str] = ()) -> Config:
    """Read the configuration; ``None`` means the default path, which may be absent.

    :param settings: ``KEY=VALUE`` that win over the file, as :func:`parse_setting` reads them.

    Directories are returned without symbolic links, as the kernel's table of mounts has them; the path of the socket
    is left as it is written, because its length is limited, without ``unix://`` in front.

    :raises InvalidConfiguration: naming the file or the setting, and the key, if it cannot be read, parsed or
        understood, if a directory is the machine's or another one's, or if a value is out of range.
    """
    config, problems = read(path, settings)
    if problems:
        raise InvalidConfiguration.of(problems[0])
    return config


def read(path: Path | None, settings: Sequence[str] = ()) -> tuple[Config, list[InvalidArgument]]:
    """Return the configuration as far as it can be understood, with the default for what cannot, and all problems.

    Each names the file or the setting that it comes from, and the key.
    """
    tables, problems = _tables(path, settings)
    source = str(path or DEFAULT_PATH)
    config, found = _understood(tables)

    def found_with(some: Sequence[str]) -> list[InvalidArgument]:
        return _understood(_tables(path, some)[0])[1]

    return config, [*problems, *(attributed(problem, source, settings, found_with) for problem in found)]


def _understood(tables: dict[str, Any]) -> tuple[Config, list[InvalidArgument]]:
    found: list[InvalidArgument] = []
    tables = _fitting(_usable(tables, found), found)
    config = _resolved(msgspec.convert(tables, Config), found)
    found += [*_directory_problems(config), *_value_problems(config)]
    return config, found


def attributed(
    problem: InvalidArgument,
    source: str,
    settings: Sequence[str],
    found_with: Callable[[Sequence[str]], Sequence[InvalidArgument]],
) -> InvalidArgument:
    """Return a problem with where it comes from: the last setting that gives its key a value or without which it is
    not there, else the file ``source``.

    :param found_with: the problems that there are with other settings.
    """
    message = problem.message.replace('"', "").replace("'", "")
    # The last one first: of two settings of a key the later one counts.
    for setting in reversed(settings):
        key = setting.partition("=")[0].strip().replace('"', "").replace("'", "")
        # A table that is unknown as a whole is named, not what a setting puts into it.
        table, _, rest = message.partition(": ")
        inside = rest == misfit.UNKNOWN and key.startswith(f"{table}.")
        if inside or message.startswith((f"{key}:", f"{key} ", f"{key}.")):
            return InvalidArgument(f"--set {setting}: {problem.message}", hint=problem.hint)
    for index in reversed(range(len(settings))):
        others = [*settings[:index], *settings[index + 1 :]]
        if all(other.message != problem.message for other in found_with(others)):
            return InvalidArgument(f"--set {settings[index]}: {problem.message}", hint=problem.hint)
    return InvalidArgument(f"{source}: {problem.message}", hint=problem.hint)


def _tables(path: Path | None, settings: Sequence[str]) -> tuple[dict[str, Any], list[InvalidArgument]]:
    """Return what the file and the settings say, and what of them cannot be read."""
    problems: list[InvalidArgument] = []
    tables: dict[str, Any] = {}
    file = path or DEFAULT_PATH
    try:
        tables = _toml(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if path is not None:
            problems.append(InvalidArgument(f"{file}: no such configuration file"))
    except OSError as error:
        problems.append(InvalidArgument(f"{file}: {error.strerror}"))
    except UnicodeDecodeError as error:
        problems.append(InvalidArgument(f"{file}: not UTF-8 text: {error.reason} at byte {error.start}"))
    except tomllib.TOMLDecodeError as error:
        problems.append(InvalidArgument(f"{file}: {error}", hint=_ALL_KEYS))
    for setting in settings:
        try:
            tables = _merged(tables, parse_setting(setting))
        except InvalidArgument as error:
            problems.append(error)
    return tables, problems


def _toml(text: str) -> dict[str, Any]:
    """Return the tables in ``text``.

    :raises tomllib.TOMLDecodeError: if it is no TOML, or more than the reader takes, which it says in other ways.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError as error:
        raise tomllib.TOMLDecodeError("it nests too deeply") from error
    except ValueError as error:
        raise tomllib.TOMLDecodeError("a number has too many digits") from error
    # The reader takes a key of any number of parts (a.a.a = 1), each of which is a table in the one before it.
    level: list[Any] = [tables]
    for _ in range(_MOST_LEVELS):
        inner = (item for holder in level for item in (holder.values() if isinstance(holder, dict) else holder))
        level = [item for item in inner if isinstance(item, dict | list)]
    if level:
        raise tomllib.TOMLDecodeError("it nests too deeply")
    return tables


def _usable(tables: dict[str, Any], problems: list[InvalidArgument], above: str = "") -> dict[str, Any]:
    """Return ``tables`` without values that no key can have, which are added to problems."""
    kept: dict[str, Any] = {}
    for name, value in tables.items():
        key = f"{above}{name}"
        if isinstance(value, dict):
            kept[name] = _usable(value, problems, f"{key}.")
        elif why := next(filter(None, map(_unusable, value if isinstance(value, list) else [value])), ""):
            problems.append(InvalidArgument(f"{key}: {why}", hint="write another value, or leave the key out"))
        else:
            kept[name] = value
    return kept


def _unusable(value: object) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value} is no number"
    return "it has a NUL character" if isinstance(value, str) and "\0" in value else ""


def _fitting(tables: dict[str, Any], problems: list[InvalidArgument]) -> dict[str, Any]:
    """Return ``tables`` without what has no place or the wrong type in a configuration, which is added to problems."""
    while said := _problem(tables):
        text, hint = misfit.explain(tables, said, _problem, Config)
        problems.append(InvalidArgument(text, hint=hint or _ALL_KEYS))
        # The decoder tells one problem at a time: what it told of is left out, and it is asked again.
        left = misfit.without(tables, said, _problem)
        # Nothing could be left out: asking once more would never end.
        if left == tables:
            return {}
        tables = left
    return tables


def _problem(tables: Mapping[str, Any]) -> str:
    """Return what the decoder says of ``tables``; empty if they fit."""
    try:
        msgspec.convert(tables, Config)
    except msgspec.ValidationError as error:
        return str(error)
    return ""


def parse_setting(text: str) -> dict[str, Any]:
    """Return the tables that ``KEY=VALUE`` stands for: ``runtime.root=/srv`` is ``root`` of ``[runtime]``.

    VALUE is TOML; what is none is taken as a string, so that paths need no quotes.

    :raises InvalidArgument: if it has no key.
    """
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise InvalidArgument(f"setting {text!r} is not KEY=VALUE", hint="write it like mountns.enabled=false")
    try:
        return _toml(f"{key} = {value}")
    except tomllib.TOMLDecodeError:
        pass
    try:
        # A string of JSON is one of TOML.
        return _toml(f"{key} = {msgspec.json.encode(value).decode()}")
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgument(f"setting {text!r}: {error}", hint="write it like mountns.enabled=false") from error


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(one)
    for key, value in other.items():
        below = result.get(key)
        result[key] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def to_toml(config: Config) -> str:
    """Return a configuration as a file that :func:`load` reads, every key written out."""
    lines: list[str] = []
    _write_table(lines, "", msgspec.to_builtins(config))
    return "\n".join(lines).strip("\n") + "\n"


def _write_table(lines: list[str], name: str, table: Mapping[str, Any]) -> None:
    # Strings, numbers and lists of JSON are TOML's, too, once the one control character that JSON leaves is escaped.
    plain = {key: value for key, value in table.items() if not isinstance(value, dict | None)}
    if name and (plain or not table):
        lines += ["", f"[{name}]"]
    lines += [f"{_key(key)} = {_value(value)}" for key, value in plain.items()]
    for key, value in table.items():
        if isinstance(value, dict):
            _write_table(lines, f"{name}.{_key(key)}" if name else _key(key), value)


def _key(text: str) -> str:
    return text if text.replace("_", "").replace("-", "").isalnum() and text.isascii() else _value(text)


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items()) + "}"
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")


def _resolved(config: Config, problems: list[InvalidArgument]) -> Config:
    """Return a configuration whose directories are absolute and without links; problems get what is not absolute.

    Its socket is a path.
    """
    replace = msgspec.structs.replace
    runtime, agent = config.runtime, config.agent

    def real(key: str, text: str, default: str) -> str:
        if os.path.isabs(text):
            # The kernel's table of mounts has no links: a path with one would match nothing, and nothing would be
            # unmounted.
            return os.path.realpath(text)
        problems.append(InvalidArgument(f"{key}: {text!r} is not an absolute path", hint="begin it with /"))
        return default

    handlers = {
        name: replace(handler, root=real(f"runtime.handlers.{name}.root", handler.root, ""))
        if handler.root
        else handler
        for name, handler in runtime.handlers.items()
    }
    return replace(
        config,
        runtime=replace(
            runtime,
            root=real("runtime.root", runtime.root, RuntimeConfig().root),
            run=real("runtime.run", runtime.run, RuntimeConfig().run),
            socket=runtime.socket.removeprefix("unix://"),
            handlers=handlers,
        ),
        agent=replace(
            agent,
            root=real("agent.root", agent.root, AgentConfig().root),
            pod_logs=real("agent.pod_logs", agent.pod_logs, AgentConfig().pod_logs),
        ),
        api=replace(config.api, root=real("api.root", config.api.root, ApiConfig().root)),
        node=replace(config.node, run=real("node.run", config.node.run, NodeConfig().run)),
    )


def _directory_problems(config: Config) -> Iterator[InvalidArgument]:
    """Check that every directory is podkeep's own.

    ``runtime.run`` must be apart from the others, because it goes when the runtime ends.
    """
    directories = {
        "runtime.run": config.runtime.run,
        "runtime.root": config.runtime.root,
        "agent.root": config.agent.root,
        "agent.pod_logs": config.agent.pod_logs,
        "api.root": config.api.root,
        "node.run": config.node.run,
    }
    hint = "give podkeep a directory of its own"
    for key, directory in directories.items():
        if directory in _SYSTEM_DIRECTORIES or directory.startswith(("/proc/", "/sys/")):
            yield InvalidArgument(f"{key}: {directory} is the machine's", hint=hint)
    yield from _pin_problems(config.mountns.pin, directories)
    for (one, first), (other, second) in combinations(directories.items(), 2):
        if first == second:
            yield InvalidArgument(f"{one} and {other} are the same directory, {first}", hint=hint)
        # It is removed when the runtime ends, with all that is in it.
        elif one == "runtime.run" and os.path.commonpath((first, second)) in {first, second}:
            yield InvalidArgument(f"{one} and {other} are one inside the other: {first}, {second}", hint=hint)


def _pin_problems(pin: str, directories: Mapping[str, str]) -> Iterator[InvalidArgument]:
    """Check that the pin's directory holds nothing else: it is made unbindable, so nothing in it could be a volume."""
    if not pin:
        return
    if not os.path.isabs(pin):
        yield InvalidArgument(f"mountns.pin: {pin!r} is not an absolute path", hint="begin it with /")
        return
    hint = "name a file in a directory of its own, such as /run/container-mount-namespace/mnt"
    if os.path.normpath(pin) != pin:
        # What is its directory must be the same for everybody who splits it.
        yield InvalidArgument(f"mountns.pin: {pin!r} is not the plain path of a file", hint=hint)
        return
    own = os.path.realpath(os.path.dirname(pin))
    if own in _SYSTEM_DIRECTORIES or own.startswith(("/proc/", "/sys/", "/dev/")):
        yield InvalidArgument(f"mountns.pin: its directory {own} is the machine's", hint=hint)
    for key, directory in directories.items():
        if os.path.commonpath((own, directory)) in {own, directory}:
            yield InvalidArgument(f"mountns.pin: its directory {own} and {key} are one inside the other", hint=hint)


def _image_problems(agent: AgentConfig) -> Iterator[InvalidArgument]:
    """Check what ``[agent]`` says about images and rates, as a kubelet does (kubelet: validation, image GC manager)."""
    if agent.max_parallel_image_pulls < 0:
        yield InvalidArgument(
            f"agent.max_parallel_image_pulls: {agent.max_parallel_image_pulls} is negative", hint="0 means no limit"
        )
    if agent.registry_pull_qps < 0 or (agent.registry_pull_qps and agent.registry_burst < 1):
        yield InvalidArgument(
            f"agent.registry_pull_qps: {agent.registry_pull_qps} with registry_burst {agent.registry_burst}",
            hint="0 pulls per second means no limit; with a limit, burst is 1 or more",
        )
    for key, number in (
        ("registry_burst", agent.registry_burst),
        ("event_record_qps", agent.event_record_qps),
        ("event_burst", agent.event_burst),
    ):
        if number < 0:
            yield InvalidArgument(f"agent.{key}: {number:g} is negative", hint="write 0 or more")
    if agent.serialize_image_pulls and agent.max_parallel_image_pulls > 1:
        yield InvalidArgument(
            f"agent.max_parallel_image_pulls: {agent.max_parallel_image_pulls} with serialize_image_pulls",
            hint="set one of them",
        )
    low, high = agent.image_gc_low_threshold_percent, agent.image_gc_high_threshold_percent
    for key, percent in (("low", low), ("high", high)):
        if not 0 <= percent <= 100:
            yield InvalidArgument(f"agent.image_gc_{key}_threshold_percent: {percent} is not in the range 0 to 100")
    if low >= high:
        yield InvalidArgument(
            f"agent.image_gc_low_threshold_percent: {low} is not less than image_gc_high_threshold_percent, {high}",
            hint="images are removed from the high threshold on, down to the low one",
        )
    for key, seconds in (("minimum", agent.image_minimum_gc_age), ("maximum", agent.image_maximum_gc_age)):
        if seconds < 0:
            yield InvalidArgument(f"agent.image_{key}_gc_age: {seconds:g} is negative")
    if 0 < agent.image_maximum_gc_age <= agent.image_minimum_gc_age:
        yield InvalidArgument("agent.image_maximum_gc_age: it is not more than image_minimum_gc_age")
    if bool(agent.image_credential_provider_config) != bool(agent.image_credential_provider_bin_dir):
        yield InvalidArgument(
            "agent: image_credential_provider_config and image_credential_provider_bin_dir go together", hint="set both"
        )


def _value_problems(config: Config) -> Iterator[InvalidArgument]:
    """Check what a type does not say, so that every process refuses it and not only the one that uses it first."""
    yield from _cgroup_parent_problems(config.runtime)
    yield from _number_problems(config)
    yield from _pressure_problems(config.agent)
    if not config.images.progress_timeout > 0:
        yield InvalidArgument(
            f"images.progress_timeout: {config.images.progress_timeout:g} is no time", hint="use 60, in seconds"
        )
    yield from problems_of(config.agent.log_max_bytes)
    yield from problems_of(config.agent.user_namespaces.length)
    yield from problems_of(config.runtime.log_limit)
    if config.agent.container_log_max_files < 2:
        yield InvalidArgument(
            f"agent.container_log_max_files: {config.agent.container_log_max_files} is less than 2",
            hint="one is written and one was rotated: use 2 or more",
        )
    yield from _image_problems(config.agent)
    yield from problems_of(config.metrics.endpoint)
    yield from problems_of(config.api.endpoint)
    yield from problems_of(config.api.namespace_bytes)
    yield from problems_of(config.api.history_bytes)
    if not 32 <= config.api.max_user_watches <= 2048:
        yield InvalidArgument(
            f"api.max_user_watches: {config.api.max_user_watches} is not in the range 32 to 2048",
            hint="the API has 4096 for all; a client has one watch of each kind that it follows",
        )
    if config.api.terminated_pod_gc_threshold < 0:
        yield InvalidArgument(
            f"api.terminated_pod_gc_threshold: {config.api.terminated_pod_gc_threshold} is less than 0",
            hint="0 keeps all pods that have ended",
        )
    yield from _server_problems(config.agent)
    if bool(config.api.tls_cert) != bool(config.api.tls_key):
        yield InvalidArgument("api: tls_cert and tls_key go together", hint="set both or neither")
    yield from _network_problems(config.network)
    yield from _path_problems(config)
    yield from _streaming_problems(config.streaming)
    default, handlers = config.runtime.default_handler, config.runtime.handlers
    if default not in handlers:
        known = ", ".join(sorted(handlers)) or "none"
        yield InvalidArgument(
            f"runtime.default_handler: {default!r} is not in runtime.handlers, which has: {known}",
            hint=f"add [runtime.handlers.{default}], or name one of the table",
        )


def _number_problems(config: Config) -> Iterator[InvalidArgument]:
    if config.runtime.pids_limit < 0:
        yield InvalidArgument(f"runtime.pids_limit: {config.runtime.pids_limit} is negative", hint="0 means no limit")
    for key, number in (
        ("agent.max_pods", config.agent.max_pods),
        ("agent.container_log_max_workers", config.agent.container_log_max_workers),
        ("images.parallel_layers", config.images.parallel_layers),
        ("images.max_layer_bytes", config.images.max_layer_bytes),
        ("images.max_layer_inodes", config.images.max_layer_inodes),
        ("images.max_unpack_ratio", config.images.max_unpack_ratio),
        ("api.max_reads", config.api.max_reads),
        ("api.max_writes", config.api.max_writes),
        ("api.history", config.api.history),
    ):
        if number < 1:
            yield InvalidArgument(f"{key}: {number} is less than 1", hint="use 1 or more")
    for key, seconds in (
        ("node_status_update_frequency", config.agent.node_status_update_frequency),
        ("node_status_report_frequency", config.agent.node_status_report_frequency),
        ("node_lease_duration_seconds", config.agent.node_lease_duration_seconds),
    ):
        if not 0 < seconds < float("inf"):
            yield InvalidArgument(f"agent.{key}: {seconds:g} is no time", hint="write it in seconds")


def _network_problems(network: NetworkConfig) -> Iterator[InvalidArgument]:
    try:
        IPv4Network(network.subnet)
    except ValueError as error:
        yield InvalidArgument(f"network.subnet: {error}", hint="write it as 10.183.0.0/16")
    try:
        IPv6Network(network.subnet6 or "::/64")
    except ValueError as error:
        yield InvalidArgument(f"network.subnet6: {error}", hint="write it as fd10:183::/64")
    if not network.cni_timeout > 0:
        yield InvalidArgument(f"network.cni_timeout: {network.cni_timeout:g} is no time", hint="use 60")


def _path_problems(config: Config) -> Iterator[InvalidArgument]:
    for key, paths in (
        ("network.cni_conf_dir", (config.network.cni_conf_dir,)),
        ("network.cni_plugin_dirs", config.network.cni_plugin_dirs),
        ("runtime.cdi_spec_dirs", config.runtime.cdi_spec_dirs),
        ("runtime.socket", (config.runtime.socket,)),
        ("class_resources.rdt_config", filter(None, (config.class_resources.rdt_config,))),
        ("class_resources.resctrl", (config.class_resources.resctrl,)),
        ("agent.tls_cert_file", filter(None, (config.agent.tls_cert_file,))),
        ("agent.tls_private_key_file", filter(None, (config.agent.tls_private_key_file,))),
        (
            "agent.authentication.x509.client_ca_file",
            filter(None, (config.agent.authentication.x509.client_ca_file,)),
        ),
        ("api.unix_socket", filter(None, (config.api.unix_socket,))),
        ("api.audit_log", filter(None, (config.api.audit_log,))),
        ("class_resources.blockio_config", filter(None, (config.class_resources.blockio_config,))),
    ):
        for path in paths:
            if not os.path.isabs(path):
                yield InvalidArgument(f"{key}: {path!r} is not an absolute path", hint="begin it with /")


def _pressure_problems(agent: AgentConfig) -> Iterator[InvalidArgument]:
    """Check what the agent is told about reserves, thresholds and shutdown."""
    for key, amounts in (("kube_reserved", agent.kube_reserved), ("system_reserved", agent.system_reserved)):
        for name, text in amounts.items():
            yield from problems_of(partial(_bytes, f"agent.{key}.{name}", text, least=0))
    for key in ("pods", "kube-reserved", "system-reserved"):
        if "none" in agent.enforce_node_allocatable and key in agent.enforce_node_allocatable:
            yield InvalidArgument(f"agent.enforce_node_allocatable: none and {key} exclude each other")
    for key, cgroup in (("kube", agent.kube_reserved_cgroup), ("system", agent.system_reserved_cgroup)):
        asked = {f"{key}-reserved", f"{key}-reserved-compressible"} & set(agent.enforce_node_allocatable)
        if asked and not cgroup.startswith("/"):
            yield InvalidArgument(
                f"agent.{key}_reserved_cgroup: {cgroup!r} is no cgroup, and enforce_node_allocatable has {min(asked)}",
                hint="name one that is there, such as /system.slice",
            )
    for key, seconds in (
        ("container_log_monitor_interval", agent.container_log_monitor_interval),
        ("eviction_pressure_transition_period", agent.eviction_pressure_transition_period),
    ):
        if not 0 < seconds < float("inf"):
            yield InvalidArgument(f"agent.{key}: {seconds:g} is no time", hint="write it in seconds")
    if agent.shutdown_grace_period_critical_pods > agent.shutdown_grace_period:
        yield InvalidArgument(
            "agent.shutdown_grace_period_critical_pods is more than shutdown_grace_period, of which it is a part"
        )
    if agent.shutdown_grace_period and agent.shutdown_grace_period_by_pod_priority:
        yield InvalidArgument(
            "agent: shutdown_grace_period and shutdown_grace_period_by_pod_priority exclude each other"
        )


def problems_of(check: Callable[[], object]) -> Iterator[InvalidArgument]:
    """Yield what ``check`` raises of a value, if it raises."""
    try:
        check()
    except InvalidArgument as error:
        yield error


def _cgroup_parent_problems(runtime: RuntimeConfig) -> Iterator[InvalidArgument]:
    parent = runtime.cgroup_parent
    if parent.endswith(".slice"):
        if runtime.cgroup_driver == "systemd":
            return
        yield InvalidArgument(
            f'runtime.cgroup_parent: {parent!r} is a systemd slice, and runtime.cgroup_driver is "cgroupfs"',
            hint='use a path like /podkeep, or runtime.cgroup_driver = "systemd"',
        )
        return
    parts = parent.split("/")[1:]
    if not parent.startswith("/") or (parent != "/" and any(part in {"", ".", ".."} or "\0" in part for part in parts)):
        yield InvalidArgument(
            f"runtime.cgroup_parent: {parent!r} is not an absolute and normal path", hint="write it like /podkeep"
        )


def _server_problems(agent: AgentConfig) -> Iterator[InvalidArgument]:
    try:
        ip_address(agent.address)
    except ValueError as error:
        yield InvalidArgument(f"agent.address: {error}", hint="write an IP address, as 0.0.0.0")
    if not 0 <= agent.port <= 65535:
        yield InvalidArgument(f"agent.port: {agent.port} is no port", hint="use 10250")
    if not agent.streaming_connection_idle_timeout > 0:
        yield InvalidArgument("agent.streaming_connection_idle_timeout: it must be more than 0", hint="use 14400")
    if not agent.runtime_request_timeout > 0:
        yield InvalidArgument("agent.runtime_request_timeout: it must be more than 0", hint="use 120")
    if bool(agent.tls_cert_file) != bool(agent.tls_private_key_file):
        yield InvalidArgument("agent: tls_cert_file and tls_private_key_file go together", hint="set both or neither")


def _streaming_problems(streaming: StreamingConfig) -> Iterator[InvalidArgument]:
    try:
        ip_address(streaming.address)
    except ValueError as error:
        yield InvalidArgument(f"streaming.address: {error}", hint="write an IP address, as 127.0.0.1")
    if not 0 <= streaming.port <= 65535:
        yield InvalidArgument(f"streaming.port: {streaming.port} is no port", hint="use 0 for any that is free")
    if streaming.idle_timeout < 1:
        yield InvalidArgument(f"streaming.idle_timeout: {streaming.idle_timeout} is less than a second")
    if bool(streaming.tls_cert) != bool(streaming.tls_key):
        yield InvalidArgument("streaming: tls_cert and tls_key go together", hint="set both or neither")
