"""Copies of the API's database, and putting one in its place."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from podkeep.apiserver.server import backup
from podkeep.apiserver.storage.records import Key
from podkeep.apiserver.storage.store import Store
from podkeep.base.errors import AlreadyExists, DataLoss, FailedPrecondition, NotFound

KEY = Key("configmaps", "default", "a")


def _filled(root: Path) -> None:
    async def fill() -> None:
        async with Store(root / backup.DATABASE) as store:
            await store.put(KEY, {"metadata": {"name": "a"}}, None)

    asyncio.run(fill())


def _has(root: Path) -> bool:
    async def look() -> bool:
        async with Store(root / backup.DATABASE) as store:
            return store.get(KEY) is not None

    return asyncio.run(look())


def test_what_was_copied_can_be_restored(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    _filled(one)
    backup.copy(one, tmp_path / "copy")
    with pytest.raises(AlreadyExists):
        backup.copy(one, tmp_path / "copy")
    backup.restore(other, tmp_path / "copy", replace=False)
    assert _has(other)
    assert sorted(path.name for path in other.iterdir()) == [backup.DATABASE]
    assert (other / backup.DATABASE).stat().st_mode & 0o777 == 0o600


def test_a_copy_of_a_store_that_is_served(tmp_path: Path) -> None:
    async def test() -> bytes:
        async with Store(tmp_path / backup.DATABASE) as store:
            await store.put(KEY, {"metadata": {"name": "a"}}, None)
            return b"".join([piece async for piece in backup.stream(store, tmp_path)])

    copy = tmp_path / "copy"
    copy.write_bytes(asyncio.run(test()))
    restored = tmp_path / "restored"
    restored.mkdir()
    backup.restore(restored, copy, replace=False)
    assert _has(restored)
    assert not list(tmp_path.glob("backup-*"))


def test_a_database_is_replaced_only_if_that_is_meant_and_by_a_good_one(tmp_path: Path) -> None:
    _filled(tmp_path)
    backup.copy(tmp_path, tmp_path / "copy")
    (tmp_path / "broken").write_bytes(b"x" * 4096)
    with pytest.raises(FailedPrecondition, match=r"api\.db exists"):
        backup.restore(tmp_path, tmp_path / "copy", replace=False)
    with pytest.raises(DataLoss, match="broken cannot be restored"):
        backup.restore(tmp_path, tmp_path / "broken", replace=True)
    with pytest.raises(NotFound):
        backup.restore(tmp_path, tmp_path / "missing", replace=True)
    assert _has(tmp_path)
    backup.restore(tmp_path, tmp_path / "copy", replace=True)
    assert _has(tmp_path)
    with pytest.raises(NotFound, match="there is no database"):
        backup.copy(tmp_path / "copy", tmp_path / "other")
