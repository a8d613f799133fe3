"""Which host IDs each pod's user namespace gets: blocks of one length, recorded in the pod's directory.

Owns: the file ``userns`` in a pod directory (the kubelet's format), and the rule that blocks of live pods never
overlap, whatever length they have and also between several processes, nor what /etc/subuid and /etc/subgid give to
users (``subordinate_ids``).
Does not own: pod directories (``poddirs``); the user namespace itself, which the runtime makes from the mapping it is
given (KEP-127: the runtime never picks mappings).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path

import msgspec

from podkeep.agent.user_namespaces import subordinate_ids
from podkeep.agent.user_namespaces.subordinate_ids import Granted
from podkeep.base import atomicfile
from podkeep.base.errors import DataLoss, InvalidArgument, PodkeepError, ResourceExhausted
from podkeep.base.frozen import FrozenStruct
from podkeep.kernel.files import openat
from podkeep.kernel.namespace.idmap import IdMap, IdMapping

log = logging.getLogger(__name__)

UNIT = 65536
"""Blocks are of a multiple of so many IDs (KubeletConfiguration, userNamespaces.idsPerPod); 65536 by default."""
FILE_NAME = "userns"
MAX_BYTES = 1 << 16
"""Of a ``userns`` file; a record of a block has less than 200, one of a mapping with all extents 45,000."""
NO_ID = (1 << 32) - 1
"""``(uid_t) -1`` is no ID: the kernel refuses a mapping that reaches it."""
TICK_NS = 20_000_000
"""More than the longest tick of a kernel (CONFIG_HZ=100: 10 ms)."""
_NOTHING = (NO_ID, NO_ID + 1)
"""A series of units that is beyond all there are."""


class Block(FrozenStruct, kw_only=True, order=True):
    """``length`` host IDs from ``first`` on, of users and of groups: those of one pod, from its ID 0 on."""

    first: int
    length: int = UNIT

    def __str__(self) -> str:
        return f"{self.first}-{self.first + self.length - 1}"

    def overlaps(self, other: Block) -> bool:
        return self.first < other.first + other.length and other.first < self.first + self.length

    def units(self) -> range:
        """Return the numbers of the units it has an ID of."""
        return range(self.first // UNIT, (self.first + self.length - 1) // UNIT + 1)


@dataclass(frozen=True, kw_only=True)
class IdRange:
    """The host IDs this node may give to pods: ``blocks`` blocks of ``length`` IDs from ``first`` on, below ``end``.

    Blocks with an ID that is ``granted`` to a user are left out, and as many further ones are taken, as far as there
    are any. ``wanted``: how many pods are to have one at a time.
    """

    first: int
    blocks: int
    wanted: int
    length: int = UNIT
    end: int = NO_ID
    granted: tuple[Granted, ...] = ()

    def __post_init__(self) -> None:
        if self.first % self.length:
            raise InvalidArgument(f"kubelet user assigned ID {self.first} is not a multiple of {self.length}")
        if self.first < self.length:
            raise InvalidArgument(f"kubelet user assigned ID {self.first} must be greater or equal to {self.length}")
        if self.first + self.blocks * self.length > self.end:
            most = (self.end - self.first) // self.length
            raise InvalidArgument(
                f"{self.blocks} blocks of {self.length} IDs from {self.first} on do not fit into 32 bits",
                hint=f"set agent.max_pods to at most {most}",
            )

    def starts(self) -> Iterator[int]:
        """Yield the first host ID of every block, in ascending order; fewer than ``blocks`` if users have the rest."""
        step, at, last = self.length // UNIT, self.first // UNIT, min(self.end, NO_ID) // UNIT
        left, taken = self.blocks, iter(self._taken)
        first, beyond = next(taken, _NOTHING)
        while left and at + step <= last:
            # Units at a time and both series in order: a range of all IDs has 65,535 units, and users can have 40,000
            # ranges.
            if beyond <= at:
                first, beyond = next(taken, _NOTHING)
            elif first < at + step:
                # Rounded up to a whole block: a block starts at a multiple of its length, as a kubelet's check of
                # records demands.
                at += -(-(beyond - at) // step) * step
            else:
                yield at * UNIT
                at, left = at + step, left - 1

    @cached_property
    def _taken(self) -> list[tuple[int, int]]:
        """The units that users have an ID of: the first of each series, and the first one behind it, ascending."""
        ranges = sorted((item.first // UNIT, (item.first + item.count - 1) // UNIT + 1) for item in self.granted)
        merged: list[tuple[int, int]] = []
        for first, beyond in ranges:
            if merged and first <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(merged[-1][1], beyond)
            else:
                merged.append((first, beyond))
        return merged

    def __contains__(self, block: object) -> bool:
        if not isinstance(block, Block) or block.length != self.length or block.first % self.length:
            return False
        beyond = min(self.end, NO_ID)
        if self.first + (self.blocks + 1) * self.length > beyond:
            # It has all blocks that there are: tens of thousands, perhaps.
            inside = self.first <= block.first <= beyond - self.length
            return inside and not self.granted_in(block)
        return block.first in self._starts

    @cached_property
    def _starts(self) -> frozenset[int]:
        return frozenset(self.starts())

    def without(self, granted: Iterable[Granted]) -> IdRange:
        """Return this range without the blocks that have an ID of ``granted``."""
        return replace(self, granted=(*self.granted, *granted))

    def granted_in(self, block: Block) -> list[Granted]:
        return [item for item in self.granted if item.overlaps(block.first, block.length)]

    def shortage(self) -> str:
        """Return how many blocks are left out and who has them, if there are fewer than wanted; else nothing."""
        left = sum(1 for _ in islice(self.starts(), self.wanted))
        if left == self.wanted:
            return ""
        whole = Block(first=self.first, length=min(self.end, NO_ID) - self.first)
        left_out = whole.length // self.length - left
        blocks = "block is" if left_out == 1 else "blocks are"
        return f"{left_out} {blocks} left out, as {subordinate_ids.holders(self.granted_in(whole))}"


def default_range(max_pods: int, length: int = UNIT) -> IdRange:
    """Return the range used without configuration: the first ``length`` IDs stay the host's, then a block for each pod.

    :raises InvalidArgument: if that many blocks do not fit into the 32-bit ID space (KEP-127, configuration of ranges).
    """
    return IdRange(first=length, blocks=max_pods, length=length, wanted=max_pods)


class _Extent(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    host_id: int
    container_id: int
    length: int


class _Record(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    """A ``userns`` file as a kubelet's; ``node_mapping`` is not in those: such a pod has no block of its own."""

    uid_mappings: tuple[_Extent, ...] = ()
    gid_mappings: tuple[_Extent, ...] = ()
    node_mapping: bool = False


def parse(data: bytes) -> Block | IdMap:
    """Return what a ``userns`` file records: a block of any length that a node may give, or the mapping of the node.

    :raises DataLoss: saying what is wrong with the record.
    """
    try:
        record = msgspec.json.decode(data, type=_Record)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataLoss(f"invalid user namespace mappings file: {error}") from error
    return _mapping_of_node(record) if record.node_mapping else _block(record)


def _block(record: _Record) -> Block:
    if not record.uid_mappings or not record.gid_mappings:
        raise DataLoss("invalid user namespace mappings file: it maps nothing")
    if len(record.uid_mappings) > 1 or len(record.gid_mappings) > 1:
        raise DataLoss("invalid user namespace configuration: no more than one mapping allowed.")
    if record.uid_mappings != record.gid_mappings:
        raise DataLoss("invalid user namespace configuration: GID and UID mappings should be identical.")
    (extent,) = record.uid_mappings
    if extent.container_id != 0:
        raise DataLoss("invalid user namespace configuration: UID 0 must be mapped")
    if extent.length < UNIT or extent.length % UNIT:
        raise DataLoss(f"wrong user namespace length {extent.length}")
    if extent.host_id % extent.length:
        raise DataLoss(f"wrong user namespace offset specified {extent.host_id}")
    if not extent.length <= extent.host_id <= NO_ID - extent.length:
        raise DataLoss(f"id {extent.host_id} is out of range")
    return Block(first=extent.host_id, length=extent.length)


def _mapping_of_node(record: _Record) -> IdMap:
    uids, gids = (
        tuple(IdMapping(container_id=i.container_id, host_id=i.host_id, length=i.length) for i in side)
        for side in (record.uid_mappings, record.gid_mappings)
    )
    found = IdMap(uids=uids, gids=gids)
    try:
        found.validate()
    except InvalidArgument as error:
        raise DataLoss(f"invalid user namespace mappings file: {error.message}") from error
    # A record that somebody wrote must not make a pod's user root of the node.
    if any(item.host_id == 0 for item in (*uids, *gids)):
        raise DataLoss("invalid user namespace mappings file: it maps ID 0 of the node")
    return found


def render(given: Block | IdMap) -> bytes:
    """Return the content of a ``userns`` file of a pod that has a block, or the mapping of the node."""
    if isinstance(given, Block):
        extents = (_Extent(host_id=given.first, container_id=0, length=given.length),)
        return msgspec.json.encode(_Record(uid_mappings=extents, gid_mappings=extents))
    uids, gids = (
        tuple(_Extent(host_id=i.host_id, container_id=i.container_id, length=i.length) for i in side)
        for side in (given.uids, given.gids)
    )
    return msgspec.json.encode(_Record(uid_mappings=uids, gid_mappings=gids, node_mapping=True))


class Blocks:
    """Which block belongs to which pod, in memory; pure."""

    def __init__(self, id_range: IdRange) -> None:
        self._range = id_range
        self._by_pod: dict[str, Block] = {}
        self._units: dict[int, str] = {}
        """Whose each unit is; that of another agent's pod is nobody's."""

    def record(self, uid: str, block: Block) -> None:
        """Note that pod ``uid`` holds ``block``.

        A block outside of the range or of another length, left from an earlier configuration, is noted too: it keeps
        what it has, and must not keep other pods from running.

        :raises DataLoss: if the pod holds another block, or an ID of the block belongs to another pod.
        """
        held = self._by_pod.get(uid)
        if held is not None and held != block:
            raise DataLoss(f'different user namespace range already used by pod "{uid}"')
        for unit in block.units():
            if (owner := self._units.get(unit, uid)) not in ("", uid):
                raise DataLoss(f'range picked for pod "{uid}" already taken by pod "{owner}"')
        if granted := self._range.granted_in(block):
            who = subordinate_ids.holders(granted)
            log.warning("pod %s keeps the IDs %s until it is removed, but they overlap: %s", uid, block, who)
        elif block not in self._range:
            log.warning("pod %s keeps the IDs %s, which are outside of the configured range", uid, block)
        # By units of the least length, so that blocks of different lengths, from before and after a change of the
        # setting, cannot overlap.
        self._units.update(dict.fromkeys(block.units(), uid))
        self._by_pod[uid] = block

    def reserve(self, block: Block) -> None:
        """Note that another agent's pod holds ``block``; a pod of ours that has it keeps it."""
        for unit in block.units():
            # Not an error: a pod that has both a record of ours and one of another agent goes on; no new pod gets the
            # IDs.
            self._units.setdefault(unit, "")

    def allocate(self, uid: str) -> Block:
        """Return the block of pod ``uid``: the one it holds, or the first free one.

        :raises ResourceExhausted: if no block is free.
        """
        if uid in self._by_pod:
            return self._by_pod[uid]
        for start in self._range.starts():
            block = Block(first=start, length=self._range.length)
            if self._units.keys().isdisjoint(block.units()):
                self.record(uid, block)
                return block
        shortage = self._range.shortage()
        raise ResourceExhausted(
            "can't allocate user namespace: could not find an empty slot to allocate a user namespace",
            hint="remove a pod with `hostUsers: false`, or "
            + (f"give users fewer IDs: {shortage}" if shortage else "raise agent.max_pods"),
        )

    def release(self, uid: str) -> None:
        """Forget pod ``uid``; nothing happens if it holds no block."""
        block = self._by_pod.pop(uid, None)
        if block is not None:
            for unit in block.units():
                del self._units[unit]

    def held(self) -> Mapping[str, Block]:
        return dict(self._by_pod)


_Identity = tuple[int, int, int, int, int]
"""Which file a record was read from, and in which state: device, inode, size, and times of both kinds of change."""


class Records:
    """Records as they were read last, of all pods of some directories: what has not changed is not read again.

    Other processes write records too, so each file is looked at every time. Not thread-safe: whoever allocates holds
    the lock of ``poddirs``.
    """

    def __init__(self) -> None:
        self._known: dict[Path, dict[str, tuple[_Identity, Block | IdMap]]] = {}

    def files(self, pods: Path) -> list[tuple[str, Path]]:
        """Return what :func:`files` does, and forget the records of pods that are not there any more."""
        found = files(pods)
        kept = self._known.get(pods, {})
        self._known[pods] = {uid: kept[uid] for uid, _ in found if uid in kept}
        return found

    def read(self, pods: Path, uid: str) -> Block | IdMap | None:
        """Return what :func:`read` does for the record of pod ``uid``, with the same errors."""
        known, file = self._known.setdefault(pods, {}), pods / uid / FILE_NAME
        # Before it is read: if it changes meanwhile, it is another one next time.
        identity = _identity(file)
        was = known.pop(uid, None)
        if was is not None and was[0] == identity:
            known[uid] = was
            return was[1]
        found = read(file)
        if found is not None and identity is not None:
            known[uid] = identity, found
        return found


def _identity(file: Path) -> _Identity | None:
    """Return what tells a file's states apart; ``None`` if it is not there, or so new that a change might not show.

    Time stamps have the resolution of the kernel's tick: of two changes within one the second is not seen by them.
    """
    now = time.time_ns()
    try:
        found = os.stat(file, follow_symlinks=False)  # as it is opened
    except OSError:
        return None
    if not 0 <= found.st_ctime_ns < now - TICK_NS:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def read_all(pods: Path, id_range: IdRange, known: Records | None = None) -> Blocks:
    """Return the blocks that the pod directories under ``pods`` record.

    IDs of pods with the node's mapping are nobody's block.

    :param known: what was read before.
    :raises DataLoss: naming pod and file, if a record cannot be read or contradicts another one.
    """
    blocks, known = Blocks(id_range), known or Records()
    for uid, file in known.files(pods):
        found = _read_of(uid, file, partial(known.read, pods, uid))
        if found is None:
            continue
        if isinstance(found, IdMap):
            for extent in extents(found):
                blocks.reserve(extent)
            continue
        try:
            blocks.record(uid, found)
        except PodkeepError as error:
            raise _unreadable(uid, file, error.message) from error
    return blocks


def recorded(pods: Path, uid: str) -> Block | None:
    """Return the block of pod ``uid``, and nothing if it has none; other pods' are not read.

    :raises DataLoss: naming pod and file, if its record cannot be read.
    """
    found = record(pods, uid)
    return found if isinstance(found, Block) else None


def record(pods: Path, uid: str) -> Block | IdMap | None:
    """Return what pod ``uid`` has: a block, the mapping of the node as it was then (``mapping``), or neither.

    :raises DataLoss: naming pod and file, if its record cannot be read.
    """
    file = pods / uid / FILE_NAME
    return _read_of(uid, file, partial(read, file))


def _read_of(uid: str, file: Path, reading: Callable[[], Block | IdMap | None]) -> Block | IdMap | None:
    try:
        return reading()
    except OSError as error:
        raise _unreadable(uid, file, error.strerror or str(error)) from error
    except PodkeepError as error:
        raise _unreadable(uid, file, error.message) from error


def read(file: Path) -> Block | IdMap | None:
    """Return what a ``userns`` file records; nothing if it is not there.

    :raises DataLoss: if it is no record.
    :raises OSError: if it cannot be read.
    """
    try:
        fd = openat.open_named_regular(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if fd is None:
        raise DataLoss("invalid user namespace mappings file: it is not a regular file")
    with openat.closing(fd):
        data = openat.read_bytes(fd, MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise DataLoss(f"invalid user namespace mappings file: it has more than {MAX_BYTES} bytes")
    return parse(data)


def extents(id_map: IdMap) -> list[Block]:
    """Return the host IDs of a mapping of the node: no block with one of them is given to a pod for itself."""
    return [Block(first=item.host_id, length=item.length) for item in {*id_map.uids, *id_map.gids}]


def _of_others(pods: Path, known: Records) -> Iterator[Block]:
    """Yield each block that another agent has recorded; what it cannot read either is no block."""
    for uid, file in known.files(pods):
        try:
            found = known.read(pods, uid)
        except (OSError, PodkeepError) as error:
            log.warning("the user namespace of another agent's pod cannot be read: %s: %s", file, error)
            continue
        if isinstance(found, IdMap):
            yield from extents(found)
        elif found is not None:
            yield found


def files(pods: Path) -> list[tuple[str, Path]]:
    """Return each pod's UID and where its record is if it has one, by the pod directories under ``pods``."""
    try:
        return [(uid, pods / uid / FILE_NAME) for uid in sorted(os.listdir(pods))]
    except FileNotFoundError:
        return []


def _unreadable(uid: str, file: Path, why: str) -> DataLoss:
    return DataLoss(
        f"user namespace of pod {uid}: {file}: {why}",
        hint=f"`podkeep userns check --repair` puts the file aside, if no container of the pod runs: rm {file}",
    )


def allocate(
    pods: Path, uid: str, id_range: IdRange, others: Iterable[Path] = (), known: Records | None = None
) -> Block:
    """Return the block of pod ``uid``, recorded on disk before this returns.

    The caller holds the lock of ``poddirs`` and has made the pod's directory.

    :param others: directories of other agents' pods, whose blocks are not handed out.
    :param known: what earlier calls read, kept for the next one.
    :raises ResourceExhausted: if no block is free.
    :raises DataLoss: if any pod's record cannot be read.
    :raises OSError: if the record cannot be written; nothing is taken then.
    """
    known = known or Records()
    blocks = read_all(pods, id_range, known)
    for directory in others:
        for block in _of_others(directory, known):
            blocks.reserve(block)
    block = blocks.allocate(uid)
    # A pod that is taken on again keeps its record as it is, also one of an earlier length.
    if (pods / uid / FILE_NAME).exists():
        atomicfile.sync_directory(pods / uid)  # for the record of the pod, which may have come just before
    else:
        write(pods, uid, block)
    return block


def write(pods: Path, uid: str, given: Block | IdMap) -> None:
    """Record what pod ``uid`` has, its own block or the mapping of the node, on disk before this returns.

    :raises OSError: if it cannot be written.
    """
    # A directory that is lost with the power takes along what had these IDs: the pod's volumes.
    atomicfile.write(pods / uid / FILE_NAME, render(given), mode=0o600)


def release(pods: Path, uid: str) -> None:
    """Remove the record of pod ``uid``; nothing happens if there is none.

    :raises OSError: if it is there and cannot be removed.
    """
    (pods / uid / FILE_NAME).unlink(missing_ok=True)
