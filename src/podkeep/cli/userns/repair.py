"""Repairing records of blocks: what no agent could read or accept is put aside, or written anew as the runtime says.

Never frees IDs that are in use: a pod that the runtime holds keeps its block, and one that another process works on is
left alone. Everything is found out before the first change.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from podkeep.agent.user_namespaces import blocks
from podkeep.agent.user_namespaces.blocks import Block
from podkeep.base import atomicfile
from podkeep.base.errors import FailedPrecondition
from podkeep.base.frozen import FrozenStruct
from podkeep.base.ids import PodUID
from podkeep.cli.userns.inventory import Record, Runtime, running_by_uid
from podkeep.kernel.namespace.idmap import IdMap

_ASIDE = f"{blocks.FILE_NAME}.damaged"
_MAX_ASIDE = 1000


class Step(FrozenStruct, kw_only=True):
    """What is done about one record: it is put aside, and what is ``given`` recorded in its place: a block, or the
    mapping of all pods.

    ``refusal``: why nothing can be done, and what the administrator can do.
    """

    record: Record
    why: str
    given: Block | IdMap | None = None
    refusal: str = ""


class Done(FrozenStruct, kw_only=True):
    """What was done about the record of a pod."""

    uid: str
    file: str
    message: str
    repaired: bool


def plan(found: Sequence[Record], runtime: Runtime) -> list[Step]:
    """Return what is to be done about damaged records, those that runtime contradicts, and those that overlap. Pure."""
    made = {uid: frozenset((*item.users, *item.groups)) for uid, item in running_by_uid(runtime).items()}
    # Not what a stopped sandbox had: a pod that has ended gave its IDs back, and another one may have them.
    kept = {uid: made[uid] for uid, item in running_by_uid(runtime).items() if item.ready}
    steps = []
    # Who runs keeps what it has; of others, who comes first.
    for record in sorted(found, key=lambda record: (record.uid not in runtime.pods, record.dirs is not None)):
        why = _fault(record, made.get(record.uid), kept)
        if not why:
            kept[record.uid] = frozenset(record.ids())
            continue
        step = _step(record, why, runtime, kept)
        steps.append(step)
        if isinstance(step.given, Block):
            kept[record.uid] = frozenset({step.given})
    return steps


def _fault(record: Record, own: frozenset[Block] | None, kept: Mapping[str, frozenset[Block]]) -> str:
    """Return what is wrong with a record; empty if nothing is.

    :param own: what the pod's sandbox has; ``None`` without one.
    """
    if record.damage:
        return record.damage
    if own is not None and own != {*record.ids()}:
        return f"it says {', '.join(map(str, record.ids()))}, and the pod runs with {', '.join(map(str, sorted(own)))}"
    if record.block is None:
        return ""  # it has the IDs of all pods, and shares them
    others = _others(record.uid, record.block, kept)
    return f"it says {record.block}, of which pod {others[0]} has IDs" if others else ""


def _others(uid: str, block: Block, kept: Mapping[str, frozenset[Block]]) -> list[str]:
    """Return which other pods have an ID of a block."""
    return [other for other, ids in kept.items() if other != uid and any(one.overlaps(block) for one in ids)]


def _step(record: Record, why: str, runtime: Runtime, kept: Mapping[str, frozenset[Block]]) -> Step:
    if record.dirs is None:
        refusal = "it is not of a pod of this agent: ask the one whose it is, and remove the file if the pod is gone"
        return Step(record=record, why=why, refusal=refusal)
    if record.uid not in runtime.pods:
        return Step(record=record, why=why)
    sandbox = running_by_uid(runtime).get(record.uid)
    if record.node_mapping and sandbox is not None:
        return Step(record=record, why=why, given=sandbox.id_map)
    own = None if sandbox is None else sandbox.block()
    if own is None:
        return Step(record=record, why=why, refusal="the pod is in use, with IDs that are no block: remove the pod")
    if others := _others(record.uid, own, kept):
        refusal = f"it runs with IDs that pod {others[0]} has, too: remove one of the pods"
        return Step(record=record, why=why, refusal=refusal)
    return Step(record=record, why=why, given=own)


def execute(step: Step) -> Done:
    """Do one step, under the lock of the directories' root, which the caller holds; blocks.

    :raises OSError: if the file cannot be renamed or written; it is as it was then, or put aside.
    """
    record = step.record
    if step.refusal or record.dirs is None:
        return _left(step, step.refusal)
    if step.given is None:
        # A process that works on the pod may be about to ask for a sandbox with these IDs.
        try:
            lock = record.dirs.own(PodUID(record.uid))
        except FailedPrecondition as error:
            return _left(step, f"{error.message}: stop the agent, or remove the pod")
        try:
            aside = _put_aside(record.file)
        finally:
            os.close(lock)
        message = f"{step.why}; put aside as {aside.name}"
    else:
        aside = _put_aside(record.file)
        blocks.write(record.dirs.pods, record.uid, step.given)
        what = step.given if isinstance(step.given, Block) else "the mapping of all pods"
        message = f"{step.why}; put aside as {aside.name}, and {what} recorded, with which the pod runs"
    return Done(uid=record.uid, file=str(record.file), message=message, repaired=True)


def _left(step: Step, refusal: str) -> Done:
    record = step.record
    return Done(uid=record.uid, file=str(record.file), message=f"{step.why}; left alone: {refusal}", repaired=False)


def _put_aside(file: Path) -> Path:
    """Rename a record to a name that nothing reads, on disk before this returns."""
    names = (file.with_name(_ASIDE if number == 0 else f"{_ASIDE}.{number}") for number in range(_MAX_ASIDE))
    aside = next((name for name in names if not os.path.lexists(name)), None)
    if aside is None:
        raise FailedPrecondition(f"{file}: {_MAX_ASIDE} damaged records lie beside it", hint=f"rm {file}.damaged*")
    file.rename(aside)
    atomicfile.sync_directory(file.parent)
    return aside
