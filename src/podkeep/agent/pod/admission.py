"""Taking a pod on: may it run here, its directory, its lock, and its block of IDs, all before its sandbox is asked for.

Several processes admit pods side by side; the lock of the agent's root orders them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from podkeep.agent import kubelets
from podkeep.agent.convert import names
from podkeep.agent.events import Event, PodRejected, StepFailed
from podkeep.agent.node import Node
from podkeep.agent.objects.sources import ObjectReader, Sources, StaticObjects
from podkeep.agent.pod import count_limits, teardown
from podkeep.agent.poddirs import PodDir, PodIdentity, places
from podkeep.agent.resources import cgroup_names, class_resources, podcgroups
from podkeep.agent.resources.node_selection import selects
from podkeep.agent.user_namespaces import blocks as userns
from podkeep.agent.user_namespaces import choice, mapping, model, subordinate_ids
from podkeep.agent.user_namespaces.blocks import Block
from podkeep.agent.user_namespaces.choice import BoundSource, Choice, Outcome
from podkeep.agent.user_namespaces.model import PodUserNamespace
from podkeep.agent.volumes.claims import PodClaims
from podkeep.api.feature_gates import USER_NAMESPACES
from podkeep.api.pod import Pod
from podkeep.base.concurrency.tasks import on_thread
from podkeep.base.errors import AlreadyExists, FailedPrecondition, InvalidArgument, PodkeepError, words_of
from podkeep.base.failpoints import reach
from podkeep.base.frozen import FrozenStruct
from podkeep.base.ids import PodUID, parse_pod_uid
from podkeep.base.text import rfc3339
from podkeep.cri.v1 import api_pb2
from podkeep.kernel.namespace.idmap import IdMap

log = logging.getLogger(__name__)

FAILED_SANDBOX = "FailedCreatePodSandBox"
_PREFIX = "Failed to create pod sandbox: "
_GATE_IS_OFF = f'the feature gate "{USER_NAMESPACES.name}" is disabled: can\'t set spec.HostUsers'
_SHARES_NODES = "HostUserNamespace"
"""Reason of the event that a pod was defaulted to the node's user namespace."""
_NO_OBJECTS = StaticObjects(Sources())
_SWITCH_ON = "switch it on in [agent] feature_gates, or make the pod without `hostUsers: false`"


class Admitted(FrozenStruct, kw_only=True):
    """A pod that this process runs. ``lock`` is a descriptor that holds it; ``user_namespace`` is its own, if any."""

    uid: PodUID
    directory: PodDir
    lock: int
    user_namespace: PodUserNamespace | None
    events: Sequence[Event] = ()
    """What there is to say about it."""

    def release(self) -> None:
        """Give up the pod's lock; its state stays."""
        os.close(self.lock)


class _Wanted(FrozenStruct, kw_only=True):
    """Which user namespace a pod is to get. ``id_map`` is the node's mapping as it is for this pod, if it gets that.

    ``kept``: what it has already.
    """

    choice: Choice
    id_map: IdMap | None = None
    kept: PodUserNamespace | None = None


def with_identity(pod: Pod) -> Pod:
    """Return ``pod`` with a UID and a creation time, which a pod that comes from a file does not have yet."""
    metadata = pod.metadata
    return msgspec.structs.replace(
        pod,
        metadata=msgspec.structs.replace(
            metadata,
            uid=metadata.uid or str(uuid.uuid4()),
            creation_timestamp=metadata.creation_timestamp or rfc3339.of_seconds(time.time()),
        ),
    )


async def admit(pod: Pod, node: Node, *, objects: ObjectReader = _NO_OBJECTS, adopt: bool = False) -> Admitted:
    """Take on ``pod``; when this fails nothing of it is left.

    :param objects: where the claims are that it refers to.
    :param adopt: the caller has all pods of the node: it takes on again what an earlier process of it has begun, as it
        is, and removes by itself what dead processes have left.

    Only a new pod is judged: one that runs goes on when the node does not offer its classes any more (KEP-3008,
    rollback).

    :raises FailedPrecondition: if a kubelet that runs would remove the pod's directory, logs, cgroup or containers.
    :raises PodRejected: if it asks for classes that the node does not offer, or has more containers or mounts than a
        pod may; before anything else, as a kubelet admits.
    :raises AlreadyExists: if a pod of this namespace and name is there.
    :raises StepFailed: with reason FailedCreatePodSandBox, if its user namespace is impossible; with FailedMount, if it
        depends on a claim that is not ready.
    """
    uid = parse_pod_uid(pod.metadata.uid)
    identity = PodIdentity(namespace=pod.metadata.namespace, name=pod.metadata.name)
    if adopt and await asyncio.to_thread(node.dirs.identity, uid) == identity:
        return await _adopt(pod, node, identity, objects)
    # Before anything is made: the housekeeping of a kubelet removes what it does not know.
    found = await node.kubelets.require_apart()
    await require_possible(pod, node)
    wanted = await _wanted(pod, node, objects)
    async with node.dirs.held():
        if not adopt:
            await teardown.reclaim_orphans(node.client, node.dirs, node.config)
            await _require_new(pod, node, identity)
        lock = node.dirs.own(uid)
        try:
            others = kubelets.pod_directories(node.config, found)
            own = await on_thread(partial(_prepare, pod, node, identity, others, wanted, managed=adopt))
        except BaseException as error:
            os.close(lock)
            await on_thread(partial(_undo, node, uid))
            if (failure := _failure(error)) is not None:
                raise failure from error
            raise
    events = _said(pod, wanted.choice)
    return Admitted(uid=uid, directory=node.dirs.directory(uid), lock=lock, user_namespace=own, events=events)


async def require_possible(pod: Pod, node: Node) -> None:
    """Check that the node can run ``pod`` if there is room for it.

    :raises PodRejected: if it is for another node, has more containers or mounts than a pod may, or asks for classes
        that the node does not offer.
    """
    _require_node(pod, node)
    _require_counts(pod)
    await _require_classes(pod, node)


async def _wanted(pod: Pod, node: Node, objects: ObjectReader) -> _Wanted:
    """Decide which user namespace ``pod`` gets, and check that the node can give it.

    :raises StepFailed: if it cannot, or if it is not known yet what is behind a claim.
    """
    one_mapping, found = node.one_mapping is not None, {}
    if choice.needs_claims(pod, one_mapping=one_mapping, gates=node.gates):
        found = await _claims(pod, objects)
    chosen = choice.choose(pod, one_mapping=one_mapping, gates=node.gates, claims=found)
    if chosen.own:
        await _require_user_namespaces(pod, node)
    if node.one_mapping is None or chosen.outcome is not Outcome.NODE_MAPPING:
        return _Wanted(choice=chosen)
    security = pod.spec.security_context
    group = None if security is None else security.fs_group
    try:
        id_map = node.one_mapping if group is None else mapping.with_fs_group(node.one_mapping, group)
    except InvalidArgument as error:
        raise StepFailed(_PREFIX + error.message, reason=FAILED_SANDBOX, hint=error.hint) from error
    return _Wanted(choice=chosen, id_map=id_map)


async def _claims(pod: Pod, objects: ObjectReader) -> dict[str, BoundSource]:
    """Return what is behind the claims of a pod, by the names of its volumes.

    :raises StepFailed: if a claim is not ready: which user namespace the pod gets depends on it.
    """
    try:
        claimed = PodClaims(pod, await objects.read(pod))
        return {
            volume.name: BoundSource(kind=claimed.source_kind(volume))
            for volume in pod.spec.volumes
            if volume.persistent_volume_claim is not None or volume.ephemeral is not None
        }
    except PodkeepError as error:
        raise StepFailed(error.message, reason="FailedMount", waiting="ContainerCreating", hint=error.hint) from error


def _said(pod: Pod, chosen: Choice) -> tuple[Event, ...]:
    """Say why a pod shares the node's user namespace that did not ask for it: that lowers its isolation."""
    if not chosen.triggers:
        return ()
    message = (
        f"the pod shares the user namespace of the node, as it would not work in one of its own: "
        f"{'; '.join(chosen.triggers)}. `hostUsers: true` asks for that, `hostUsers: false` forbids it"
    )
    log.warning("%s: %s", names.full_name(pod), message)
    return (Event(type="Warning", reason=_SHARES_NODES, message=message),)


def _require_node(pod: Pod, node: Node) -> None:
    """Raise if the pod is for another node, in the words of a kubelet's admission."""
    if pod.spec.node_name not in {"", node.name}:
        raise PodRejected(
            "Predicate NodeName failed: node(s) didn't match the requested node name",
            reason="NodeName",
            hint=f"this node is {node.name}: leave nodeName out",
        )
    labels = node.labels
    if not selects(pod.spec, node.name, labels):
        raise PodRejected(
            "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
            reason="NodeAffinity",
            hint="leave nodeSelector and node affinity out; this node is labelled "
            + ", ".join(f"{key}={value}" for key, value in sorted(labels.items())),
        )


def _require_counts(pod: Pod) -> None:
    """Raise if the pod has more of something than it may: a runtime would be asked for it for ever."""
    if (excess := count_limits.excess_of_pod(pod)) is not None:
        raise PodRejected(excess.message, reason=excess.reason, hint=excess.hint)


async def _adopt(pod: Pod, node: Node, identity: PodIdentity, objects: ObjectReader) -> Admitted:
    """Take on again a pod that an earlier process has begun; it goes on whatever the node offers now.

    :raises FailedPrecondition: if another process has it.
    :raises StepFailed: if it had not got its IDs or its cgroup yet, and cannot get them now.
    """
    try:
        wanted = await asyncio.to_thread(_had, pod, node)
    except PodkeepError as error:
        raise StepFailed(_PREFIX + error.message, reason=FAILED_SANDBOX, hint=error.hint) from error
    # A record is written before a sandbox is asked for: without one, nothing of the pod is in a user namespace.
    step = _resume if wanted is not None else partial(_prepare, identity=identity, managed=True)
    wanted = wanted or await _wanted(pod, node, objects)
    uid = parse_pod_uid(pod.metadata.uid)
    # No require_apart: a pod that runs goes on, but its IDs must not be those of a kubelet's pod.
    others = kubelets.pod_directories(node.config, await node.kubelets.found())
    async with node.dirs.held():
        lock = node.dirs.own(uid)
        try:
            own = await on_thread(partial(step, pod, node, others=others, wanted=wanted))
        except BaseException as error:
            os.close(lock)
            if (failure := _failure(error)) is not None:
                raise failure from error
            raise
    events = _said(pod, wanted.choice)
    return Admitted(uid=uid, directory=node.dirs.directory(uid), lock=lock, user_namespace=own, events=events)


def _had(pod: Pod, node: Node) -> _Wanted | None:
    """Return what a pod has that an earlier process has begun; ``None`` if it had not got its user namespace yet.

    :raises DataLoss: if its record cannot be read.
    """
    uid = parse_pod_uid(pod.metadata.uid)
    # What the flags and gates of today would choose does not count: the containers of the pod run already.
    if pod.spec.host_users is not False and not node.dirs.has_user_namespace(uid):
        return _Wanted(choice=Choice(outcome=Outcome.HOST))
    kept = userns.record(node.dirs.pods, uid)
    if kept is None:
        return None
    outcome = Outcome.NODE_MAPPING if isinstance(kept, IdMap) else Outcome.BLOCK
    return _Wanted(choice=Choice(outcome=outcome), kept=model.of(kept))


def _failure(error: BaseException) -> StepFailed | None:
    """Return how a pod fails because of ``error``; ``None`` for a cancellation, and for a fault of ours."""
    if isinstance(error, PodkeepError):
        return StepFailed(_PREFIX + error.message, reason=FAILED_SANDBOX, hint=error.hint)
    # An OSError is the node's (a full disk): it may pass, so it is the failure of this attempt and not of the process.
    return StepFailed(_PREFIX + words_of(error), reason=FAILED_SANDBOX) if isinstance(error, OSError) else None


def _prepare(
    pod: Pod, node: Node, identity: PodIdentity, others: Sequence[Path], wanted: _Wanted, *, managed: bool
) -> PodUserNamespace | None:
    defaulted = wanted.choice.own and pod.spec.host_users is None
    # First of all: a directory that no pod.json claims for this runtime is taken for somebody else's and never removed.
    node.dirs.identify(
        parse_pod_uid(pod.metadata.uid),
        identity,
        managed=managed,
        user_namespace=defaulted,
        node_mapping=wanted.id_map is not None,
        is_last=not wanted.choice.own,
    )
    return _resume(pod, node, others, wanted)


def _resume(pod: Pod, node: Node, others: Sequence[Path], wanted: _Wanted) -> PodUserNamespace | None:
    """Make what is not there yet of a pod's cgroup and IDs; return the user namespace that it has for itself."""
    uid = parse_pod_uid(pod.metadata.uid)
    podcgroups.create(cgroup_names.root(node.config), pod, node.config.agent)
    if not wanted.choice.own or wanted.kept is not None:
        return wanted.kept
    given: Block | IdMap
    if wanted.id_map is not None:
        given = wanted.id_map
        userns.write(node.dirs.pods, uid, given)
    else:
        # Read for each pod, since ranges can be added at any time: with newuidmap(1) the user of a range that overlaps
        # would be root of the pod's files.
        id_range = node.id_range().without(subordinate_ids.read())
        given = userns.allocate(node.dirs.pods, uid, id_range, others, node.user_namespaces)
    reach("agent.userns.recorded")
    return model.of(given)


def _undo(node: Node, uid: PodUID) -> None:
    podcgroups.remove(cgroup_names.root(node.config), uid)
    node.dirs.remove(uid)


async def _require_new(pod: Pod, node: Node, identity: PodIdentity) -> None:
    selector = api_pb2.PodSandboxFilter(
        label_selector={names.POD_NAMESPACE: identity.namespace, names.POD_NAME: identity.name}
    )
    listed = await node.client.runtime.ListPodSandbox(api_pb2.ListPodSandboxRequest(filter=selector))
    if not listed.items and not await asyncio.to_thread(_found, node, identity):
        uid = parse_pod_uid(pod.metadata.uid)
        if node.dirs.is_taken(uid):
            raise AlreadyExists(f"a pod with UID {uid} already exists: {node.dirs.directory(uid).path}")
        return
    option = "" if identity.namespace == "default" else f" --namespace {identity.namespace}"
    raise AlreadyExists(
        f"pod {identity.namespace}/{identity.name} already exists",
        hint=f"remove it with `podkeep rm{option} {identity.name}`",
    )


def _found(node: Node, identity: PodIdentity) -> bool:
    """Say whether a pod of this name has a directory, also where they were by default before."""
    return any(dirs.find(identity) for _, dirs in places(node.config))


async def _require_classes(pod: Pod, node: Node) -> None:
    """Ask the runtime whether it offers what the pod asks for (KEP-3008, Kubelet)."""
    try:
        asks = class_resources.asks(pod, node.gates)
    except FailedPrecondition as error:
        raise PodRejected(error.message, reason=class_resources.UNAVAILABLE, hint=error.hint) from error
    if not asks:
        return
    refusal = class_resources.refusal(pod, node.gates, await node.runtime_status.offers(fresh=True))
    if refusal is not None:
        raise PodRejected(refusal.message, reason=class_resources.UNAVAILABLE, hint=refusal.hint)


async def _require_user_namespaces(pod: Pod, node: Node) -> None:
    """Check that the gate is on, and that the pod's handler can give it a user namespace (KEP-127, version skew).

    The gate is for pods that ask; that of the node's mapping was looked at when the node read its mapping.
    """
    if pod.spec.host_users is False and not node.gates.enabled(USER_NAMESPACES):
        raise StepFailed(_PREFIX + _GATE_IS_OFF, reason=FAILED_SANDBOX, hint=_SWITCH_ON)
    try:
        handler = node.runtime_classes.handler(pod)
    except FailedPrecondition as error:
        raise StepFailed(_PREFIX + error.message, reason=FAILED_SANDBOX, hint=error.hint) from error
    await require_user_namespaces(handler, node)


async def require_user_namespaces(handler: str, node: Node, *, fresh: bool = False) -> None:
    """Check that ``handler`` can give a pod a user namespace: a runtime that cannot may ignore that one is asked for.

    :param fresh: ask the runtime in any case.
    :raises StepFailed: if it cannot.
    """
    # Fail closed: a runtime that reports no handlers gives no user namespaces (KEP-127, version skew).
    if await node.runtime_status.supports(handler, "user_namespaces", fresh=fresh):
        return
    answer = await node.runtime_status.read()
    raise StepFailed(
        f"{_PREFIX}user namespaces is not supported by the runtime",
        reason=FAILED_SANDBOX,
        hint=_why_not(handler, [known.name for known in answer.runtime_handlers]),
    )


def _why_not(handler: str, known: list[str]) -> str:
    """Return what to do about a handler that gives no user namespaces; the default one is called ``""`` (CRI)."""
    if known and handler not in known:
        configured = ", ".join(sorted(name for name in known if name)) or "only the default one"
        return f"runtime handler {handler!r} is not configured; configured: {configured}"
    called = f"runtime handler {handler!r} (runtimeClassName)" if handler else "default runtime handler"
    return f"the {called} cannot run pods in user namespaces: `podkeep doctor` and the runtime's log say why"
