"""Which host IDs each pod's user namespace gets: blocks of 65536, recorded in the pod's directory.

Owns: the file ``userns`` in a pod directory (the kubelet's format), and the rule that blocks of live pods never
overlap, also between several processes, nor what /etc/subuid and /etc/subgid give to users (``subordinate_ids``).
Does not own: pod directories (``poddirs``); the user namespace itself, which the runtime makes from the mapping it is
given (KEP-127: the runtime never picks mappings).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, islice
from pathlib import Path

import msgspec

from podkeep.agent.user_namespaces import subordinate_ids
from podkeep.agent.user_namespaces.subordinate_ids import Granted
from podkeep.base import atomicfile
from podkeep.base.errors import DataLoss, InvalidArgument, PodkeepError, ResourceExhausted

log = logging.getLogger(__name__)

BLOCK_LENGTH = 65536
"""IDs per pod; container IDs 0 to 65535 (KEP-127, support for pods)."""
FILE_NAME = "userns"
_NO_ID = (1 << 32) - 1
"""``(uid_t) -1`` is no ID: the kernel refuses a mapping that reaches it."""


_ALL_BLOCKS = _NO_ID // BLOCK_LENGTH
"""Blocks below that number have no ID that is none."""


@dataclass(frozen=True, kw_only=True)
class IdRange:
    """The host IDs this node may give to pods: ``blocks`` blocks from ``first`` on.

    Blocks with an ID that is ``granted`` to a user are left out, and as many further ones are taken, up to the last.
    """

    first: int
    blocks: int
    granted: tuple[Granted, ...] = ()

    def __post_init__(self) -> None:
        if self.first % BLOCK_LENGTH:
            raise InvalidArgument(f"kubelet user assigned ID {self.first} is not a multiple of {BLOCK_LENGTH}")
        if self.first < BLOCK_LENGTH:
            raise InvalidArgument(f"kubelet user assigned ID {self.first} must be greater or equal to {BLOCK_LENGTH}")
        if self.first + self.blocks * BLOCK_LENGTH > _NO_ID:
            most = (_NO_ID - self.first) // BLOCK_LENGTH
            raise InvalidArgument(
                f"{self.blocks} blocks of {BLOCK_LENGTH} IDs from {self.first} on do not fit into 32 bits",
                hint=f"set agent.max_pods to at most {most}",
            )

    def starts(self) -> Iterator[int]:
        """Yield the first host ID of every block, in ascending order; fewer than ``blocks`` if users have the rest."""
        changes = [0] * (_ALL_BLOCKS + 1)
        for item in self.granted:
            changes[min(item.first // BLOCK_LENGTH, _ALL_BLOCKS)] += 1
            changes[min((item.first + item.count - 1) // BLOCK_LENGTH + 1, _ALL_BLOCKS)] -= 1
        free = (number for number, ranges in enumerate(accumulate(changes[:-1])) if ranges == 0)
        above = (number * BLOCK_LENGTH for number in free if number * BLOCK_LENGTH >= self.first)
        return islice(above, self.blocks)

    def __contains__(self, start: object) -> bool:
        return start in self._starts

    @cached_property
    def _starts(self) -> frozenset[int]:
        return frozenset(self.starts())

    def without(self, granted: Iterable[Granted]) -> IdRange:
        """Return this range without the blocks that have an ID of ``granted``."""
        return replace(self, granted=(*self.granted, *granted))

    def granted_in(self, start: int, count: int = BLOCK_LENGTH) -> list[Granted]:
        """Return what of ``count`` IDs from ``start`` on is granted to users."""
        return [item for item in self.granted if item.overlaps(start, count)]

    def shortage(self) -> str:
        """Return how many blocks are left out and who has them, if there are fewer than ``blocks``; else nothing."""
        left = len(self._starts)
        if left == self.blocks:
            return ""
        left_out = _ALL_BLOCKS - self.first // BLOCK_LENGTH - left
        granted = self.granted_in(self.first, _NO_ID - self.first)
        return f"{left_out} blocks are left out, as {subordinate_ids.holders(granted)}"


def default_range(max_pods: int) -> IdRange:
    """Return the range used without configuration: 0 to 65535 stays the host's, then a block for each pod.

    :raises InvalidArgument: if that many blocks do not fit into the 32-bit ID space (KEP-127, configuration of ranges).
    """
    return IdRange(first=BLOCK_LENGTH, blocks=max_pods)


class _Mapping(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    host_id: int
    container_id: int
    length: int


class _Record(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    uid_mappings: tuple[_Mapping, ...] = ()
    gid_mappings: tuple[_Mapping, ...] = ()


def parse(data: bytes) -> int:
    """Return the first host ID of the block that a ``userns`` file records.

    :raises DataLoss: saying what is wrong with the record.
    """
    try:
        record = msgspec.json.decode(data, type=_Record)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataLoss(f"invalid user namespace mappings file: {error}") from error
    if not record.uid_mappings or not record.gid_mappings:
        raise DataLoss("invalid user namespace mappings file: it maps nothing")
    if len(record.uid_mappings) > 1 or len(record.gid_mappings) > 1:
        raise DataLoss("invalid user namespace configuration: no more than one mapping allowed.")
    if record.uid_mappings != record.gid_mappings:
        raise DataLoss("invalid user namespace configuration: GID and UID mappings should be identical.")
    (mapping,) = record.uid_mappings
    if mapping.container_id != 0:
        raise DataLoss("invalid user namespace configuration: UID 0 must be mapped")
    if mapping.length != BLOCK_LENGTH:
        raise DataLoss(f"wrong user namespace length {mapping.length}")
    if mapping.host_id % BLOCK_LENGTH:
        raise DataLoss(f"wrong user namespace offset specified {mapping.host_id}")
    if not BLOCK_LENGTH <= mapping.host_id <= _NO_ID - BLOCK_LENGTH:
        raise DataLoss(f"id {mapping.host_id} is out of range")
    return mapping.host_id


def render(start: int) -> bytes:
    """Return the content of a ``userns`` file for the block that starts at host ID ``start``."""
    mapping = (_Mapping(host_id=start, container_id=0, length=BLOCK_LENGTH),)
    return msgspec.json.encode(_Record(uid_mappings=mapping, gid_mappings=mapping))


class Blocks:
    """Which block belongs to which pod, in memory; pure."""

    def __init__(self, id_range: IdRange) -> None:
        self._range = id_range
        self._by_start: dict[int, str] = {}
        self._by_pod: dict[str, int] = {}
        self._reserved: set[int] = set()

    def record(self, uid: str, start: int) -> None:
        """Note that pod ``uid`` holds the block at ``start``.

        A block outside of the range, left from an earlier configuration, is noted too: it can collide with nothing
        inside, and must not keep other pods from running.

        :raises DataLoss: if the pod holds another block, or the block belongs to another pod.
        """
        held = self._by_pod.get(uid)
        if held is not None and held != start:
            raise DataLoss(f'different user namespace range already used by pod "{uid}"')
        if self._by_start.get(start, uid) != uid:
            raise DataLoss(f'range picked for pod "{uid}" already taken by pod "{self._by_start[start]}"')
        if granted := self._range.granted_in(start):
            who = subordinate_ids.holders(granted)
            log.warning("pod %s keeps the IDs from %d on until it is removed, but they overlap: %s", uid, start, who)
        elif start not in self._range:
            log.warning("pod %s keeps the IDs from %d on, which are outside of the configured range", uid, start)
        self._by_start[start] = uid
        self._by_pod[uid] = start

    def reserve(self, start: int) -> None:
        """Note that another agent's pod holds the block at ``start``; a pod of ours that has it keeps it."""
        self._reserved.add(start)

    def allocate(self, uid: str) -> int:
        """Return the block of pod ``uid``: the one it holds, or the first free one.

        :raises ResourceExhausted: if no block is free.
        """
        if uid in self._by_pod:
            return self._by_pod[uid]
        for start in self._range.starts():
            if start not in self._by_start and start not in self._reserved:
                self.record(uid, start)
                return start
        shortage = self._range.shortage()
        raise ResourceExhausted(
            "can't allocate user namespace: could not find an empty slot to allocate a user namespace",
            hint="remove a pod with `hostUsers: false`, or "
            + (f"give users fewer IDs: {shortage}" if shortage else "raise agent.max_pods"),
        )

    def release(self, uid: str) -> None:
        """Forget pod ``uid``; nothing happens if it holds no block."""
        start = self._by_pod.pop(uid, None)
        if start is not None:
            del self._by_start[start]

    def held(self) -> Mapping[str, int]:
        """Return the first host ID of each pod's block."""
        return dict(self._by_pod)


def read_all(pods: Path, id_range: IdRange) -> Blocks:
    """Return the blocks that the pod directories under ``pods`` record.

    :raises DataLoss: naming pod and file, if a record cannot be read or contradicts another one.
    """
    blocks = Blocks(id_range)
    for uid, file in _files(pods):
        start = recorded(pods, uid)
        if start is None:
            continue
        try:
            blocks.record(uid, start)
        except PodkeepError as error:
            raise _unreadable(uid, file, error.message) from error
    return blocks


def recorded(pods: Path, uid: str) -> int | None:
    """Return the first host ID of the block of pod ``uid``, and nothing if it has none; other pods' are not read.

    :raises DataLoss: naming pod and file, if its record cannot be read.
    """
    file = pods / uid / FILE_NAME
    try:
        return parse(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _unreadable(uid, file, error.strerror or str(error)) from error
    except PodkeepError as error:
        raise _unreadable(uid, file, error.message) from error


def _starts(pods: Path) -> Iterator[int]:
    """Yield the first host ID of each block that another agent has recorded; what it cannot read either is no block."""
    for _, file in _files(pods):
        try:
            yield parse(file.read_bytes())
        except (OSError, PodkeepError) as error:
            if file.exists():
                log.warning("the user namespace of another agent's pod cannot be read: %s: %s", file, error)


def _files(pods: Path) -> list[tuple[str, Path]]:
    try:
        return [(uid, pods / uid / FILE_NAME) for uid in sorted(os.listdir(pods))]
    except FileNotFoundError:
        return []


def _unreadable(uid: str, file: Path, why: str) -> DataLoss:
    return DataLoss(
        f"user namespace of pod {uid}: {file}: {why}",
        hint=f"remove the pod with `podkeep rm`, or the file if no container of the pod runs: rm {file}",
    )


def allocate(pods: Path, uid: str, id_range: IdRange, others: Iterable[Path] = ()) -> int:
    """Return the first host ID of the block of pod ``uid``, recorded on disk before this returns.

    The caller holds the lock of ``poddirs`` and has made the pod's directory.

    :param others: directories of other agents' pods, whose blocks are not handed out.
    :raises ResourceExhausted: if no block is free.
    :raises DataLoss: if any pod's record cannot be read.
    :raises OSError: if the record cannot be written; nothing is taken then.
    """
    blocks = read_all(pods, id_range)
    for directory in others:
        for start in _starts(directory):
            blocks.reserve(start)
    start = blocks.allocate(uid)
    file = pods / uid / FILE_NAME
    if not file.exists():
        atomicfile.write(file, render(start), mode=0o600)
        # The directory itself must survive a power cut with its file.
        atomicfile.sync_directory(pods)
    return start


def release(pods: Path, uid: str) -> None:
    """Remove the record of pod ``uid``; nothing happens if there is none.

    :raises OSError: if it is there and cannot be removed.
    """
    (pods / uid / FILE_NAME).unlink(missing_ok=True)
