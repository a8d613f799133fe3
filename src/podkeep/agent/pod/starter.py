"""Carrying out what ``plan`` decided: a sandbox, a container. Every failure says in the kubelet's words what failed.

Owns the order of steps and their undo. Each step is safe to repeat after a crash: what an earlier attempt left is
found by its labels.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from podkeep.agent.convert import names
from podkeep.agent.convert.container import (
    ContainerPlan,
    PlannedDevice,
    PlannedImage,
    PlannedMount,
    container_config,
)
from podkeep.agent.convert.names import full_name
from podkeep.agent.convert.sandbox import SandboxPlan, sandbox_config
from podkeep.agent.convert.security import SeccompPolicy
from podkeep.agent.environment import env_files
from podkeep.agent.environment.variables import PodFacts, environment
from podkeep.agent.events import Event, PodListener, PostStartFailed, StepFailed
from podkeep.agent.images import pull_secrets
from podkeep.agent.images.puller import LocalImage, PodPull, Wanted
from podkeep.agent.logs import rotation
from podkeep.agent.network import hosts
from podkeep.agent.network.dns import ClusterDns, PodDns, pod_dns
from podkeep.agent.node import Node
from podkeep.agent.objects.sources import ObjectReader, Sources
from podkeep.agent.observed import ContainerView, Observed, SandboxView, State
from podkeep.agent.pod import count_limits
from podkeep.agent.pod.actions import StartContainer
from podkeep.agent.pod.admission import FAILED_SANDBOX, Admitted, require_user_namespaces
from podkeep.agent.pod.termination_messages import log_of
from podkeep.agent.probes.hooks import HookFailed
from podkeep.agent.probes.model import Target
from podkeep.agent.resources import cgroup_names, class_resources, podcgroups, qos
from podkeep.agent.resources.class_resources import Offers
from podkeep.agent.volumes import container_files
from podkeep.agent.volumes.images import VolumeImages
from podkeep.agent.volumes.pod_volumes import PodVolumes
from podkeep.agent.volumes.setup import MountedVolume, Surroundings
from podkeep.api.containers import Container
from podkeep.api.feature_gates import CLASS_RESOURCES, IMAGE_VOLUME
from podkeep.api.pod import Pod
from podkeep.base.config import AgentConfig
from podkeep.base.errors import Cancelled, FailedPrecondition, NotFound, PodkeepError, words_of
from podkeep.base.failpoints import reach
from podkeep.base.frozen import FrozenStruct
from podkeep.base.registries.docker_config import Keyring
from podkeep.cri.v1 import api_pb2

log = logging.getLogger(__name__)

Result = TypeVar("Result")
_NO_DRIVERS = "this node has no drivers of dynamic resources"
_SANDBOX_CHANGED = "Pod sandbox changed, it will be killed and re-created."
_NETWORK_AGAIN_S = 5.0
"""After which a pod without a network is tried again."""
_NO_HOST_PATH = ('""', "HostPath is empty")
"""How runtimes that do not know image volumes complain: to them it is a mount of no path (containerd 1.6, CRI-O)."""


class ContainerImages(FrozenStruct, kw_only=True):
    """The images of a container that are here: its own, and those of its volumes by their names."""

    image: LocalImage
    volumes: Mapping[str, PlannedImage]


class _Told(msgspec.Struct, rename="camel"):
    """What podkeep's runtime tells of a container in verbose ContainerStatus; others tell something else."""

    remap_seconds: float = 0.0


class Starter:
    """Makes the sandbox and the containers of one pod."""

    def __init__(self, *, pod: Pod, objects: ObjectReader, node: Node, listener: PodListener) -> None:
        self._pod = pod
        self._objects = objects
        self._sources = Sources()
        self._node = node
        self._listener = listener
        self._volume_images = VolumeImages(pod, node.images)
        self._pod_volumes: PodVolumes | None = None
        self._keyring: Keyring | None = None
        self._dns: PodDns | None = None
        self._interrupted = asyncio.Event()

    @property
    def _handler(self) -> str:
        return self._node.runtime_classes.handler_of_running(self._pod)

    def interrupt(self) -> None:
        """Give up what may take long (a pull) and is not worth finishing; later steps do not start."""
        self._interrupted.set()

    def update(self, pod: Pod) -> None:
        """Take a newer object of the same pod; a step under way goes on with what it began with."""
        self._pod = pod

    async def _refresh(self) -> None:
        """Read what the pod refers to, for the step that begins.

        :raises StepFailed: if it cannot be known now.
        """
        try:
            sources = await self._objects.read(self._pod)
        except PodkeepError as error:
            raise StepFailed(
                error.message, reason="FailedMount", waiting="ContainerCreating", hint=error.hint
            ) from error
        # The keyring is made of pull secrets, which may have changed with the other objects.
        if sources is not self._sources:
            self._keyring = None
        self._sources = sources

    async def create_sandbox(self, attempt: int, admitted: Admitted) -> None:
        """Make the volumes and the sandbox.

        :raises StepFailed: with reason NetworkNotReady, FailedMount (``MountFailed``), FailedPrepareDynamicResources or
            FailedCreatePodSandBox.
        """
        await self._require_network()
        if attempt > 0:
            self._listener.event(Event(type="Normal", reason="SandboxChanged", message=_SANDBOX_CHANGED))
        await self._refresh()
        await self._volumes(admitted)
        reach("agent.volumes.ready")
        if self._pod.spec.resource_claims:
            # Not run without the devices that its author counts on.
            claims = " ".join(claim.name for claim in self._pod.spec.resource_claims)
            raise StepFailed(
                f"Failed to prepare dynamic resources: claims {claims}: {_NO_DRIVERS}",
                reason="FailedPrepareDynamicResources",
            )
        # Anew for each sandbox, and kept for its containers: the node may have other name servers than at its start.
        try:
            self._dns = await asyncio.to_thread(self._read_dns)
        except PodkeepError as error:
            raise StepFailed(
                f"Failed to create pod sandbox: {error.message}", reason=FAILED_SANDBOX, hint=error.hint
            ) from error
        for problem in self._dns.problems:
            self._listener.event(Event(type="Warning", reason="DNSConfigForming", message=problem))
        try:
            # Asked anew: since the pod was taken on, the runtime may have been replaced by one that would ignore the
            # classes.
            config = await self._sandbox_config(attempt, admitted, fresh=bool(class_resources.of_pod_field(self._pod)))
            handler = self._node.runtime_classes.handler(self._pod)
            # For each sandbox, as a kubelet does: the runtime may have been replaced since the one before was made.
            if admitted.user_namespace is not None:
                await require_user_namespaces(handler, self._node, fresh=attempt > 0)
            request = api_pb2.RunPodSandboxRequest(config=config, runtime_handler=handler)
            await self._node.client.runtime.RunPodSandbox(request)
        except StepFailed:
            raise
        except PodkeepError as error:
            raise StepFailed(
                f"Failed to create pod sandbox: {error.message}", reason=FAILED_SANDBOX, hint=error.hint
            ) from error
        reach("agent.sandbox.created")

    async def _require_network(self) -> None:
        """Check that the runtime has a network for the pod; without one it would only say the same in its own words.

        :raises StepFailed: with reason NetworkNotReady, as a kubelet (syncPod).
        """
        if self._pod.spec.host_network:
            return
        try:
            problem = await self._node.runtime_status.network_problem()
        except PodkeepError as error:
            raise StepFailed(
                f"Failed to create pod sandbox: {error.message}", reason=FAILED_SANDBOX, hint=error.hint
            ) from error
        if problem:
            failure = StepFailed(f"network is not ready: {problem}", reason="NetworkNotReady")
            failure.again = _NETWORK_AGAIN_S
            raise failure

    async def refresh_volumes(self, admitted: Admitted) -> None:
        """Bring the files of volumes up to date; nothing is touched where nothing changed.

        :raises StepFailed: with reason FailedMount; the files are then what they were.
        """
        await self._refresh()
        await asyncio.to_thread(self._of(admitted).refresh, self._pod, self._sources, self._around(admitted))

    async def update_classes(self, sandbox: SandboxView, admitted: Admitted) -> None:
        """Give a sandbox that runs the classes that the pod as a whole asks for by now.

        :raises PodkeepError: if the runtime refuses.
        """
        config = await self._sandbox_config(sandbox.attempt, admitted, fresh=True)
        known = await self._node.client.runtime.PodSandboxStatus(
            api_pb2.PodSandboxStatusRequest(pod_sandbox_id=sandbox.id)
        )
        # Nothing else may differ from what the sandbox was made with; the pod's labels may have changed since.
        config.ClearField("labels")
        config.labels.update(known.status.labels)
        config.ClearField("annotations")
        config.annotations.update(known.status.annotations)
        request = api_pb2.UpdatePodSandboxConfigRequest(pod_sandbox_id=sandbox.id, config=config)
        await self._node.client.runtime.UpdatePodSandboxConfig(request)

    async def start_container(self, action: StartContainer, observed: Observed, admitted: Admitted) -> None:
        """Pull, create and start one container, and forget the attempt before the last.

        An attempt that was created stays, whatever failed after that: how it ended is in the pod's status.

        :raises StepFailed: with the kubelet's reason for the step that failed.
        """
        container, sandbox = action.container, observed.sandbox
        if sandbox is None:
            raise StepFailed("the pod has no sandbox", reason="Failed", container=container.name)
        # Ephemeral containers come after the pod was admitted, and a pod that an earlier agent has begun is not judged
        # again; the runtime would refuse them as often as it is asked.
        if action.kind == "ephemeral container":
            excess = count_limits.excess_of_ephemeral(self._pod, container)
        else:
            excess = count_limits.excess_of_container(container)
        if excess is not None:
            raise _failed(container, excess.reason, excess.message, excess.hint)
        await self._refresh()
        config = await self._container_sandbox(container, sandbox, admitted)
        pull = await self._pull(config)
        volumes = await self._unless_interrupted(self._volume_images.ensure(container, pull), container)
        wanted = Wanted(
            image=container.image, policy=container.image_pull_policy or "IfNotPresent", container=container.name
        )
        image = await self._unless_interrupted(self._node.images.ensure(wanted, pull), container)
        images = ContainerImages(image=image, volumes=volumes)
        message = await self._configure(action, observed, admitted, images)
        created = await self._create(container, sandbox, config, message)
        if config.linux.security_context.namespace_options.userns_options.uids and (
            self._node.runtime_status.copies_owners
        ):
            await self._note_remap(created)  # before it runs: then the pod's start is measured
        await self._start(action, created)
        await self._post_start(container, created, observed)
        await self._forget(observed, action)

    async def forget_older(self, action: StartContainer, observed: Observed) -> None:
        """Forget the attempts before the last of a container whose start failed: each failure would leave one more."""
        try:
            await self._forget(observed, action)
        except PodkeepError as error:
            log.warning("older attempts of container %s are not removed: %s", action.container.name, error)

    async def _pull(self, config: api_pb2.PodSandboxConfig) -> PodPull:
        """Return for which pod images are pulled, with its credentials. A missing pull secret is reported once."""
        keyring = self._keyring
        if keyring is None:
            found, missing = await asyncio.to_thread(pull_secrets.keyring, self._pod, self._sources)
            self._keyring = keyring = found
            if missing is not None:
                self._listener.event(missing)
        return PodPull(
            uid=self._pod.metadata.uid,
            sandbox=config,
            report=self._listener.event,
            handler=self._handler,
            annotations=self._pod.metadata.annotations,
            keyring=keyring,
        )

    async def _container_sandbox(
        self, container: Container, sandbox: SandboxView, admitted: Admitted
    ) -> api_pb2.PodSandboxConfig:
        try:
            return await self._sandbox_config(sandbox.attempt, admitted)
        except PodkeepError as error:
            raise _failed(container, "CreateContainerConfigError", error.message, error.hint) from error

    async def _sandbox_config(
        self, attempt: int, admitted: Admitted, *, fresh: bool = False
    ) -> api_pb2.PodSandboxConfig:
        """Return the sandbox's configuration; with ``fresh`` the runtime is asked anew whether it knows of classes."""
        offers = Offers()
        if self._node.gates.enabled(CLASS_RESOURCES):
            offers = await self._node.runtime_status.offers(fresh=fresh)
        classes = class_resources.of_pod(self._pod, self._node.gates, offers)
        class_resources.require_reported(classes, offers)
        dns = await asyncio.to_thread(self._read_dns) if self._dns is None else self._dns
        plan = SandboxPlan(
            user_namespace=admitted.user_namespace,
            dns=dns.conf,
            cgroup_root=cgroup_names.root(self._node.config),
            pod_logs=self._node.config.agent.pod_logs,
            attempt=attempt,
            classes=classes,
            cluster_domain=self._node.config.agent.cluster_domain,
        )
        return sandbox_config(self._pod, plan)

    def _read_dns(self) -> PodDns:
        agent, own = self._node.config.agent, self._node.resolv_conf()
        return pod_dns(self._pod, own, ClusterDns(servers=agent.cluster_dns, domain=agent.cluster_domain))

    async def _volumes(self, admitted: Admitted) -> Mapping[str, MountedVolume]:
        """Make the volumes, and return them by name.

        :raises MountFailed: if some are not ready.
        """
        return await asyncio.to_thread(self._of(admitted).set_up, self._pod, self._sources, self._around(admitted))

    def _around(self, admitted: Admitted) -> Surroundings:
        return structs.replace(surroundings(self._node), user_namespace=admitted.user_namespace)

    def _of(self, admitted: Admitted) -> PodVolumes:
        if self._pod_volumes is None:
            self._pod_volumes = PodVolumes(admitted.directory)
        return self._pod_volumes

    async def _configure(
        self, action: StartContainer, observed: Observed, admitted: Admitted, images: ContainerImages
    ) -> api_pb2.ContainerConfig:
        """Return the container's configuration, after making the files it mounts."""
        pod, container = self._pod, action.container
        # Volumes come first: variables may be read from files in them (fileKeyRef).
        mounted = await self._volumes(admitted)
        volumes: dict[str, MountedVolume | PlannedImage] = {**mounted, **images.volumes}
        try:
            classes = await self._classes(container)
            recursive = await self._mounts_recursively(container)
            target = _target(action, observed)

            def prepare() -> tuple[dict[str, str], list[PlannedMount]]:
                variables = environment(pod, container, self._sources, self._facts(observed, mounted))
                own = admitted.user_namespace
                owner = (0, 0) if own is None else own.volume_owner()
                container_files.write_hosts(admitted.directory, self._hosts(observed), owner)
                mounts = container_files.mounts(
                    container, action.attempt, admitted.directory, volumes, variables, owner
                )
                return variables, container_files.recursive(container, mounts, possible=recursive)

            variables, mounts = await asyncio.to_thread(prepare)
            agent = self._node.config.agent
            plan = ContainerPlan(
                handler=self._handler,
                attempt=action.attempt,
                image_ref=images.image.ref,
                image_user=images.image.user,
                environment=variables,
                mounts=mounts,
                resources=qos.linux_resources(
                    pod,
                    container,
                    self._node.memory,
                    self._node.page_sizes,
                    cfs_quota=agent.cpu_cfs_quota,
                    ends_whole=podcgroups.can_end_whole() and not agent.single_process_oom_kill,
                    no_swap=podcgroups.can_forbid_swap(),
                ),
                user_namespace=admitted.user_namespace,
                classes=classes,
                seccomp=SeccompPolicy(root=agent.seccomp_root(), is_default=agent.seccomp_default),
                devices=[
                    PlannedDevice(
                        host_path=mounted[device.name].path,
                        container_path=device.device_path,
                        read_only=mounted[device.name].read_only,
                    )
                    for device in container.volume_devices
                ],
                groups=sorted({volume.group for volume in mounted.values() if volume.group is not None}),
                target_id=target,
            )
            return container_config(pod, container, plan)
        except (PodkeepError, OSError) as error:
            hint = error.hint if isinstance(error, PodkeepError) else ""
            text = words_of(error)
            raise _failed(container, "CreateContainerConfigError", text, hint) from error

    def _facts(self, observed: Observed, mounted: Mapping[str, MountedVolume]) -> PodFacts:
        node = self._node

        def read_file(volume: str, path: str) -> str:
            if volume not in mounted:
                raise NotFound(f'cannot find the volume "{volume}" referenced by FileKeyRef')
            return env_files.read(mounted[volume].path, path)

        return PodFacts(
            pod_ips=node.host_ips if self._pod.spec.host_network else _ips(observed),
            host_ips=node.host_ips,
            node_name=node.name,
            allocatable=surroundings(node).allocatable,
            read_file=read_file,
        )

    def _hosts(self, observed: Observed) -> str:
        pod = self._pod
        domain = names.domain(pod, self._node.config.agent.cluster_domain)
        return hosts.render(pod.spec, names.hostname(pod), _ips(observed), self._node.hosts_file(), domain)

    async def _mounts_recursively(self, container: Container) -> bool:
        """Return whether the pod's handler can mount read-only recursively; it is asked only if a container asks."""
        if all(mount.recursive_read_only in {None, "Disabled"} for mount in container.volume_mounts):
            return False
        return await self._node.runtime_status.supports(self._handler, "recursive_read_only_mounts")

    async def _classes(self, container: Container) -> dict[str, str]:
        """Return the container's classes, read anew for every attempt (KEP-3008, rollback).

        :raises FailedPrecondition: if it must not run without them and the gate is off, or the runtime knows of none.
        """
        classes = class_resources.of_container(self._pod, container, self._node.gates)
        if classes:
            class_resources.require_reported(classes, await self._node.runtime_status.offers(fresh=True))
        return classes

    async def _create(
        self,
        container: Container,
        sandbox: SandboxView,
        config: api_pb2.PodSandboxConfig,
        message: api_pb2.ContainerConfig,
    ) -> str:
        request = api_pb2.CreateContainerRequest(pod_sandbox_id=sandbox.id, config=message, sandbox_config=config)
        try:
            answer = await self._node.client.runtime.CreateContainer(request)
        except PodkeepError as error:
            # Hint included, which the details of the answer are: the event of an idmap failure has its text (KEP-127).
            text, hint = str(error), ""
            if any(mount.HasField("image") for mount in message.mounts) and any(sign in text for sign in _NO_HOST_PATH):
                text = f"image volumes are not supported by the runtime: {error.message}"
                hint = "they need podkeep, containerd 2.1 or CRI-O 1.31"
            raise _failed(container, "CreateContainerError", text, hint) from error
        self._report("Created", "Container created", container)
        return answer.container_id

    async def _start(self, action: StartContainer, created: str) -> None:
        container = action.container
        try:
            await self._node.client.runtime.StartContainer(api_pb2.StartContainerRequest(container_id=created))
        except PodkeepError as error:
            raise _failed(container, "RunContainerError", str(error), "") from error
        self._report("Started", "Container started", container)
        logs = Path(names.log_directory(self._node.config.agent.pod_logs, self._pod))
        log = logs / names.log_path(container.name, action.attempt)
        self._listener.started(container.name, action.attempt, log)

    async def _note_remap(self, created: str) -> None:
        """Note how long the runtime took to give the container's images the pod's owners, if it is one that tells."""
        request = api_pb2.ContainerStatusRequest(container_id=created, verbose=True)
        try:
            answer = await self._node.client.runtime.ContainerStatus(request)
            told = msgspec.json.decode(answer.info.get("info", "{}"), type=_Told)
        except (PodkeepError, msgspec.MsgspecError):
            return  # only a measure
        remaps, uid = self._node.metrics.remaps, self._pod.metadata.uid
        remaps[uid] = remaps.get(uid, 0.0) + max(0.0, told.remap_seconds)

    async def _post_start(self, container: Container, created: str, observed: Observed) -> None:
        """Run the container's postStart hook; what comes after the container waits for it.

        :raises PostStartFailed: if it failed.
        """
        lifecycle = container.lifecycle
        if lifecycle is None or lifecycle.post_start is None:
            return
        host = self._node.probes.address(self._pod, observed)
        target = Target(container=container, id=created, pod=full_name(self._pod), host=host)
        hook = self._node.hooks.run(lifecycle.post_start, target, self._listener)
        try:
            await self._unless_interrupted(hook, container)
        except HookFailed as failure:
            raise PostStartFailed(failure.message, container=container.name, started=created) from failure

    async def _forget(self, observed: Observed, action: StartContainer) -> None:
        """Keep the attempt before this one, whose exit is worth knowing, and remove older ones with their logs."""
        attempts = observed.containers.get(action.container.name, ())
        for view in surplus(attempts, self._node.config.agent, time.time()):
            await rotation.remove(log_of(self._node.config.agent.pod_logs, self._pod, view))
            await self._remove(view.id)

    async def _remove(self, container: str) -> None:
        try:
            await self._node.client.runtime.RemoveContainer(api_pb2.RemoveContainerRequest(container_id=container))
        except NotFound:
            return

    async def _unless_interrupted(self, work: Coroutine[Any, Any, Result], container: Container) -> Result:
        """Return the result of ``work``, or give it up when the pod is to end.

        :raises StepFailed: if it was given up.
        """
        task = asyncio.ensure_future(work)
        interrupted = asyncio.ensure_future(self._interrupted.wait())
        try:
            await asyncio.wait({task, interrupted}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                cause = Cancelled("the pod is to end")
                raise _failed(container, "ContainerCreating", cause.message, "") from cause
            return await task
        finally:
            task.cancel()
            interrupted.cancel()
            await asyncio.gather(task, interrupted, return_exceptions=True)

    def _report(self, reason: str, message: str, container: Container) -> None:
        self._listener.event(Event(type="Normal", reason=reason, message=message, container=container.name))


def _ips(observed: Observed) -> tuple[str, ...]:
    return () if observed.sandbox is None else observed.sandbox.ips


def surplus(attempts: Sequence[ContainerView], agent: AgentConfig, now: float) -> list[ContainerView]:
    """Return which of the attempts of a container that have ended are not kept when the next one has started.

    :param attempts: newest first; the first is kept in any case, as its end is in the pod's status.
    :param now: seconds since 1970.
    """
    kept = agent.maximum_dead_containers_per_container
    if kept < 0:
        return []
    # One from the future was made before the clock was set.
    return [
        view for view in attempts[max(kept, 1) :] if not 0 <= now - view.created_at / 1e9 < agent.minimum_container_ttl
    ]


def _target(action: StartContainer, observed: Observed) -> str:
    """Return the ID of the container whose processes an ephemeral container sees; empty for none.

    :raises FailedPrecondition: if it does not run.
    """
    if not action.target:
        return ""
    view = observed.latest(action.target)
    if view is None or view.state is not State.RUNNING:
        raise FailedPrecondition(f"unable to find target container {action.target}")
    return view.id


def surroundings(node: Node) -> Surroundings:
    return Surroundings(
        node_name=node.name,
        labels=node.labels,
        allocatable=node.allocatable,
        images=node.gates.enabled(IMAGE_VOLUME),
    )


def _failed(container: Container, waiting: str, message: str, hint: str) -> StepFailed:
    failure = StepFailed(f"Error: {message}", reason="Failed", waiting=waiting, container=container.name, hint=hint)
    failure.detail = message  # of the status, which says it without the word
    return failure
