"""Who has which host IDs: what records on disk say, what the runtime says, and where these contradict. Changes nothing.

Owns: reading both, and the judgement (:func:`judge`, pure). Does not own: the format of records
(``agent.user_namespaces.blocks``), repairing them (``repair``).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import structs

from podkeep.agent import kubelets, poddirs
from podkeep.agent.pod import teardown
from podkeep.agent.poddirs import PodDirs
from podkeep.agent.user_namespaces import blocks, getsubids, subordinate_ids
from podkeep.agent.user_namespaces.blocks import UNIT, Block, IdRange
from podkeep.agent.user_namespaces.subordinate_ids import Granted
from podkeep.base.config import Config
from podkeep.base.errors import NotFound, PermissionDenied, PodkeepError
from podkeep.base.frozen import FrozenStruct
from podkeep.base.ids import PodUID
from podkeep.cri import id_mappings
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2
from podkeep.kernel.namespace.idmap import IdMap, IdMapping

_AT_ONCE = 32
"""How many sandboxes the runtime is asked for side by side."""
Kind = Literal["damaged", "overlaps-pod", "overlaps-user", "outside", "unrecorded", "differs"]


class Record(FrozenStruct, kw_only=True):
    """What file ``userns`` of a pod says: its block, or the mapping that all pods have, or why it cannot be understood.

    ``dirs`` are the directories it is in, if the pod is one of this agent's. ``node_mapping``: the pod was given the
    mapping that all pods have, whatever the record says.
    """

    uid: str
    file: Path
    block: Block | None = None
    id_map: IdMap | None = None
    damage: str = ""
    dirs: PodDirs | None = None
    node_mapping: bool = False
    namespace: str = ""
    name: str = ""

    def ids(self) -> tuple[Block, ...]:
        if self.id_map is not None:
            return tuple(sorted(blocks.extents(self.id_map)))
        return () if self.block is None else (self.block,)


class Sandbox(FrozenStruct, kw_only=True):
    """A pod's user namespace as the runtime has made it: the host IDs of its users and of its groups."""

    uid: str
    namespace: str
    name: str
    ready: bool
    id_map: IdMap

    @property
    def users(self) -> tuple[Block, ...]:
        return _blocks(self.id_map.uids)

    @property
    def groups(self) -> tuple[Block, ...]:
        return _blocks(self.id_map.gids)

    def block(self) -> Block | None:
        """Return the block that it has, if that can be recorded as one."""
        if len(self.users) != 1 or self.users != self.groups:
            return None
        (block,) = self.users
        return block if block.length % UNIT == 0 and block.first % block.length == 0 and block.first else None


class Runtime(FrozenStruct, kw_only=True):
    """What the runtime holds: sandboxes with a user namespace of their own, and the UIDs of all pods."""

    sandboxes: tuple[Sandbox, ...]
    pods: frozenset[str]


class Problem(FrozenStruct, kw_only=True):
    """What is wrong with a pod's IDs. A warning is nothing that has to be repaired."""

    kind: Kind
    message: str
    warning: bool = False


class Row(FrozenStruct, kw_only=True):
    """The IDs of one pod, ``first`` to ``last`` or several of these; none if its record cannot be understood.

    ``shared``: they are those of all pods of the node.
    """

    first: int | None
    last: int | None
    more: tuple[str, ...] = ()
    shared: bool = False
    namespace: str
    name: str
    uid: str
    state: str
    file: str
    problems: tuple[Problem, ...]

    def as_json(self) -> dict[str, object]:
        return structs.asdict(self)


class Limits(FrozenStruct, kw_only=True):
    """What pods may have: the range, or why there is none; and what users have."""

    id_range: IdRange | None
    granted: tuple[Granted, ...]
    problem: str = ""


def limits(config: Config) -> Limits:
    """Return what pods of this node may have; blocks."""
    try:
        granted = subordinate_ids.read()
        return Limits(id_range=getsubids.id_range(config.agent).without(granted), granted=granted)
    except PodkeepError as error:
        return Limits(id_range=None, granted=(), problem=error.message)
    except OSError as error:
        return Limits(id_range=None, granted=(), problem=f"what users have cannot be read: {error}")


def records(config: Config) -> list[Record]:
    """Return every record on this machine: the agent's pods', and those of kubelets; blocks.

    :raises PermissionDenied: if a directory cannot be read.
    """
    try:
        own = [record for _, dirs in poddirs.places(config) for record in records_of(dirs)]
        others = kubelets.pod_directories(config, kubelets.find(config))
        found = own + [record for directory in others for record in _records(directory, None)]
    except PermissionError as error:
        raise PermissionDenied(f"{error.filename}: {error.strerror}", hint="run it as root") from error
    # The place where pods had their directories before may be a kubelet's as well.
    return list({os.path.realpath(record.file): record for record in reversed(found)}.values())[::-1]


def records_of(dirs: PodDirs) -> list[Record]:
    """Return the records of an agent's pods; blocks."""
    return list(_records(dirs.pods, dirs))


def _records(pods: Path, dirs: PodDirs | None) -> Iterator[Record]:
    for uid, file in blocks.files(pods):
        identity = None if dirs is None else dirs.identity(PodUID(uid))
        found, damage = None, ""
        try:
            found = blocks.read(file)
        except PodkeepError as error:
            damage = error.message
        except OSError as error:
            damage = error.strerror or str(error)
        if found is None and not damage:
            continue
        yield Record(
            uid=uid,
            file=file,
            block=found if isinstance(found, Block) else None,
            id_map=found if isinstance(found, IdMap) else None,
            damage=damage,
            dirs=None if identity is None else dirs,
            node_mapping=dirs is not None and dirs.has_node_mapping(PodUID(uid)),
            namespace="" if identity is None else identity.namespace,
            name="" if identity is None else identity.name,
        )


async def ask(client: CriClient) -> Runtime:
    pods = await teardown.held_pods(client)
    listed = await client.runtime.ListPodSandbox(api_pb2.ListPodSandboxRequest())
    at_once = asyncio.Semaphore(_AT_ONCE)

    async def one(sandbox: api_pb2.PodSandbox) -> Sandbox | None:
        request = api_pb2.PodSandboxStatusRequest(pod_sandbox_id=sandbox.id)
        try:
            async with at_once:
                answer = await client.runtime.PodSandboxStatus(request)
        except NotFound:
            return None
        options = answer.status.linux.namespaces.options.userns_options
        if options.mode != api_pb2.POD or not options.uids:
            return None
        return Sandbox(
            uid=sandbox.metadata.uid,
            namespace=sandbox.metadata.namespace,
            name=sandbox.metadata.name,
            ready=sandbox.state == api_pb2.SANDBOX_READY,
            id_map=IdMap(uids=id_mappings.mappings(options.uids), gids=id_mappings.mappings(options.gids)),
        )

    found = await asyncio.gather(*map(one, listed.items))
    return Runtime(
        sandboxes=tuple(item for item in found if item is not None),
        pods=frozenset(pods | {sandbox.metadata.uid for sandbox in listed.items}),
    )


def _blocks(mappings: Iterable[IdMapping]) -> tuple[Block, ...]:
    return tuple(Block(first=item.host_id, length=item.length) for item in mappings)


def judge(found: Sequence[Record], runtime: Runtime | None, allowed: Limits) -> list[Row]:
    """Return a row for each pod with IDs of its own, in the order of these. Pure.

    :param runtime: ``None``: it was not asked.
    """
    made = {} if runtime is None else running_by_uid(runtime)
    # A pod that has ended gives its IDs back, and its sandbox stays, stopped, until it is removed.
    running = {uid: item for uid, item in made.items() if item.ready}
    rows = []
    shared = {record.uid for record in found if record.id_map is not None}
    for record in found:
        theirs = tuple(_overlaps(record.uid, record.ids(), found, running, shared))
        rows.append(
            Row(
                **_shown(record.ids()),
                shared=record.id_map is not None,
                namespace=record.namespace,
                name=record.name,
                uid=record.uid,
                state=_state(record, runtime),
                file=str(record.file),
                problems=(*_of_record(record, made.get(record.uid)), *theirs, *_limits(record, allowed)),
            )
        )
    recorded = {record.uid for record in found}
    rows += [
        Row(
            **_shown(item.users),
            namespace=item.namespace,
            name=item.name,
            uid=item.uid,
            state="running",
            file="",
            problems=(
                Problem(
                    kind="unrecorded", message="the agent has no record of it, and may give its IDs to another pod"
                ),
                *_overlaps(item.uid, (*item.users, *item.groups), found, running, shared),
            ),
        )
        for uid, item in running.items()
        if uid not in recorded
    ]
    return sorted(rows, key=lambda row: (row.first is None, row.first or 0, row.uid))


def _shown(ids: Sequence[Block]) -> dict[str, Any]:
    if not ids:
        return {"first": None, "last": None}
    return {"first": ids[0].first, "last": ids[0].first + ids[0].length - 1, "more": tuple(map(str, ids[1:]))}


def running_by_uid(runtime: Runtime) -> dict[str, Sandbox]:
    """Return the sandbox of each pod; of several, one that is ready."""
    return {item.uid: item for item in sorted(runtime.sandboxes, key=lambda item: item.ready)}


def _state(record: Record, runtime: Runtime | None) -> str:
    if record.dirs is None and (runtime is None or record.uid not in runtime.pods):
        return "other agent's"
    if runtime is None:
        return "unknown"
    if record.uid not in runtime.pods:
        return "not running"
    sandbox = running_by_uid(runtime).get(record.uid)
    return "running" if sandbox is not None and sandbox.ready else "stopped"


def _of_record(record: Record, sandbox: Sandbox | None) -> Iterator[Problem]:
    if record.damage:
        yield Problem(kind="damaged", message=record.damage)
    elif sandbox is not None and {*sandbox.users, *sandbox.groups} != {*record.ids()}:
        runs = ", ".join(map(str, sandbox.users))
        yield Problem(kind="differs", message=f"it runs with the IDs {runs}, which are not those of its record")


def _overlaps(
    uid: str, ids: Sequence[Block], found: Sequence[Record], running: Mapping[str, Sandbox], shared: Collection[str]
) -> Iterator[Problem]:
    """Yield who else has some of a pod's IDs; pods with the mapping of all pods share theirs on purpose."""
    others: dict[str, str] = {}
    theirs: list[tuple[Record | Sandbox, tuple[Block, ...]]] = [(record, record.ids()) for record in found]
    theirs += [(item, (*item.users, *item.groups)) for item in running.values()]
    for pod, has in theirs:
        apart = pod.uid != uid and not (uid in shared and pod.uid in shared)
        if apart and any(one.overlaps(other) for one in ids for other in has):
            others[pod.uid] = pod_name(pod)
    for name in others.values():
        yield Problem(kind="overlaps-pod", message=f"pod {name} has some of these IDs, too")


def pod_name(pod: Record | Sandbox | Row) -> str:
    """Return how a pod is called: namespace and name, or its UID if they are not known."""
    return f"{pod.namespace}/{pod.name}" if pod.name else pod.uid


def _limits(record: Record, allowed: Limits) -> Iterator[Problem]:
    theirs = [item for item in allowed.granted if any(item.overlaps(one.first, one.length) for one in record.ids())]
    if theirs:
        shared = record.id_map is not None  # the agent has warned of it and taken it
        yield Problem(kind="overlaps-user", message=subordinate_ids.holders(theirs), warning=shared)
    elif (
        record.dirs is not None
        and record.block is not None
        and allowed.id_range is not None
        and record.block not in allowed.id_range
    ):
        message = "it is outside of the configured range, and stays until the pod is removed"
        yield Problem(kind="outside", message=message, warning=True)


def wrong(rows: Collection[Row]) -> bool:
    """Say whether something has to be repaired."""
    return any(not problem.warning for row in rows for problem in row.problems)
