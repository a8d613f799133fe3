"""The state database: what is written is there again, and what cannot be read is left alone."""

from __future__ import annotations

import sqlite3
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runtime_values import IDMAP, container, sandbox

from podkeep.base.errors import AlreadyExists, DataLoss, InvalidArgument, NotFound, ResourceExhausted, Unavailable
from podkeep.base.ids import ContainerID, SandboxID
from podkeep.kernel.process.procfs import ProcessId
from podkeep.runtime.model import state as state_module
from podkeep.runtime.model.records import ContainerState, Mount, NamespaceOptions, SandboxState
from podkeep.runtime.model.state import State

SUBNET = IPv4Network("10.0.0.0/29")


def test_what_is_written_is_there_after_reopening(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    state = State(path)
    pod = sandbox(namespaces=NamespaceOptions(userns=IDMAP), labels={"a": "ä\n"}, sysctls={"net.x": "1"})
    state.add_sandbox(pod)
    status = msgspec.structs.replace(pod.status, infra=ProcessId(pid=5, start_time=6), made_cgroups=("/a", "/a/b"))
    changed = state.set_sandbox(pod.id, status)
    inside = container(mounts=(Mount(container_path="/m", host_path="/h", idmap=IDMAP),), envs=(("A", "b"),))
    state.add_container(inside)
    ended = state.set_container(inside.id, msgspec.structs.replace(inside.status, state=ContainerState.EXITED))
    address = state.take_address(pod.id, SUBNET)
    state.close()

    again = State(path)
    assert again.sandboxes() == [changed]
    assert again.containers() == [ended]
    assert again.sandbox_by_key(pod.config.key()) == changed
    assert again.container_by_key(state_module.container_key(inside.sandbox_id, inside.config)) == ended
    assert again.take_address(SandboxID("b" * 64), SUBNET) != address
    again.close()


def test_a_killed_daemon_loses_nothing_that_was_written(tmp_path: Path) -> None:
    """Whatever was written is in the files at once: another connection sees it while the first one is open."""
    state = State(tmp_path / "state.db")
    state.add_sandbox(sandbox())
    other = State(tmp_path / "state.db")
    assert [item.id for item in other.sandboxes()] == ["a" * 64]
    other.close()
    state.close()


def test_what_was_forgotten_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    state = State(path)
    pod, inside = sandbox(), container()
    state.add_sandbox(pod)
    state.add_container(inside)
    address = state.take_address(pod.id, SUBNET)
    state.forget_container(inside.id)
    state.forget_container(inside.id)
    state.forget_sandbox(pod.id)
    state.forget_sandbox(pod.id)
    state.close()
    again = State(path)
    assert again.sandboxes() == []
    assert again.containers() == []
    # The name and the address are free.
    again.add_sandbox(sandbox("b" * 64))
    assert again.take_address(SandboxID("b" * 64), SUBNET) == address
    again.close()


def test_names_are_taken_once(tmp_path: Path) -> None:
    state = State(tmp_path / "state.db")
    state.add_sandbox(sandbox())
    state.add_sandbox(sandbox("b" * 64, attempt=1))
    with pytest.raises(AlreadyExists, match="a" * 64):
        state.add_sandbox(sandbox("d" * 64))
    state.add_container(container())
    state.add_container(container("d" * 64, sandbox_id="b" * 64))
    with pytest.raises(AlreadyExists, match="c" * 64):
        state.add_container(container("e" * 64))
    assert len(state.sandboxes()) == 2
    assert [item.id for item in state.containers(SandboxID("b" * 64))] == ["d" * 64]
    assert state.containers(SandboxID("x")) == []
    state.close()


def test_prefixes_of_ids(tmp_path: Path) -> None:
    state = State(tmp_path / "state.db")
    ids = ("abcdef012345" + "1" * 52, "abcdef012345" + "2" * 52, "def" + "0" * 61)
    for number, identity in enumerate(ids):
        state.add_sandbox(sandbox(identity, name=f"n{number}"))
        state.add_container(container(identity, name=f"n{number}"))
    for find, get in ((state.find_sandbox, state.sandbox), (state.find_container, state.container)):
        assert get("def" + "0" * 9).id == ids[2]
        assert get(ids[0]).id == ids[0]
        assert find("abcdef0123451").id == ids[0]  # type: ignore[union-attr]
        for length in (1, 3, 11):
            assert find(ids[0][:length]) is None
            assert find(ids[2][:length]) is None
        assert find("xyz") is None
        with pytest.raises(InvalidArgument, match="2 IDs"):
            find("abcdef012345")
        with pytest.raises(InvalidArgument, match="no ID"):
            find("")
        with pytest.raises(NotFound, match="xyz"):
            get("xyz")
        with pytest.raises(NotFound) as caught:
            get("\x01" * 1_000_000)
        assert len(str(caught.value)) < 300
    state.close()


# addresses


def test_addresses_of_a_small_subnet(tmp_path: Path) -> None:
    state = State(tmp_path / "state.db")
    ids = [SandboxID(str(number) * 64) for number in range(6)]
    taken = [state.take_address(identity, SUBNET) for identity in ids[:5]]
    assert taken == ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"]
    with pytest.raises(ResourceExhausted, match=r"10\.0\.0\.0/29") as caught:
        state.take_address(ids[5], SUBNET)
    assert "network.subnet" in caught.value.hint
    state.free_address(ids[2])
    state.free_address(ids[2])
    assert state.take_address(ids[5], SUBNET) == "10.0.0.4"
    state.close()


def test_addresses_of_both_families(tmp_path: Path) -> None:
    state = State(tmp_path / "state.db")
    ids = [SandboxID(letter * 64) for letter in "abc"]
    wide = IPv6Network("fd00::/64")
    for number, identity in enumerate(ids[:2]):
        assert state.take_address(identity, SUBNET) == f"10.0.0.{number + 2}"
        assert state.take_address(identity, wide) == f"fd00::{number + 2}"
    assert state.addresses() == ["10.0.0.2", "fd00::2", "10.0.0.3", "fd00::3"]
    state.free_address(ids[0])
    assert state.addresses() == ["10.0.0.3", "fd00::3"]
    assert state.take_address(ids[2], wide) == "fd00::4"


def test_a_freed_address_is_used_again_last(tmp_path: Path) -> None:
    state = State(tmp_path / "state.db")
    first, second, third = (SandboxID(letter * 64) for letter in "abc")
    assert state.take_address(first, SUBNET) == "10.0.0.2"
    state.free_address(first)
    assert state.take_address(second, SUBNET) == "10.0.0.3"
    assert state.take_address(third, SUBNET) == "10.0.0.4"
    state.close()


def test_an_address_whose_sandbox_was_never_stored_is_free_again(tmp_path: Path) -> None:
    """A daemon killed between the two leaves an address of nobody."""
    state = State(tmp_path / "state.db")
    address = state.take_address(SandboxID("a" * 64), SUBNET)
    state.close()
    again = State(tmp_path / "state.db")
    assert again.take_address(SandboxID("b" * 64), SUBNET) == address
    again.close()


def test_a_changed_subnet(tmp_path: Path) -> None:
    state = State(tmp_path / "state.db")
    state.take_address(SandboxID("a" * 64), IPv4Network("10.0.0.0/24"))
    assert state.take_address(SandboxID("b" * 64), IPv4Network("10.9.0.0/29")) in {"10.9.0.2", "10.9.0.3"}
    state.close()


steps = st.lists(st.tuples(st.sampled_from(["take", "free", "reopen"]), st.integers(0, 7)), max_size=40)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(steps=steps)
def test_no_address_is_given_out_twice(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]) -> None:
    path = tmp_path_factory.mktemp("state") / "state.db"
    state, held = State(path), dict[SandboxID, str]()
    for number in range(8):
        state.add_sandbox(sandbox(str(number) * 64, name=f"n{number}"))
    for action, number in steps:
        holder = SandboxID(str(number) * 64)
        if action == "take" and holder not in held:
            if len(held) == 5:
                with pytest.raises(ResourceExhausted):
                    state.take_address(holder, SUBNET)
                continue
            address = state.take_address(holder, SUBNET)
            assert address not in held.values()
            assert address not in {"10.0.0.0", "10.0.0.1", "10.0.0.7"}
            held[holder] = address
        elif action == "free":
            state.free_address(holder)
            held.pop(holder, None)
        elif action == "reopen":
            state.close()
            state = State(path)
    state.close()


# files that cannot be read


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def refused(path: Path) -> DataLoss:
    before = files(path.parent)
    with pytest.raises(DataLoss) as caught:
        State(path)
    assert files(path.parent) == before
    assert str(path) in caught.value.message
    assert caught.value.hint
    return caught.value


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.write_bytes(b"this is no database" * 1000)
    refused(path)


def test_a_damaged_database(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    state = State(path)
    for number in range(50):
        state.add_sandbox(sandbox(f"{number:064}", name=f"n{number}"))
    state.close()
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)
    refused(path)


@pytest.mark.slow
@pytest.mark.parametrize("record", [b"", b"{", b"[]", b'{"id": 5}', b"\xff\xfe", b'{"id": "a"}'])
@pytest.mark.parametrize("table", ["sandboxes", "containers"])
def test_a_record_that_is_none(tmp_path: Path, table: str, record: bytes) -> None:
    path = tmp_path / "state.db"
    State(path).close()
    with sqlite3.connect(path) as db:
        columns = ("a", "k", record) if table == "sandboxes" else ("a", "s", "k", record)
        db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})", columns)
    db.close()
    refused(path)


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    state = State(path)
    state.add_sandbox(sandbox())
    state.close()
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {state_module.SCHEMA_VERSION + 1}")
    db.execute("PRAGMA journal_mode = DELETE")
    db.close()
    error = refused(path)
    assert f"version {state_module.SCHEMA_VERSION + 1}" in error.message
    assert "run the podkeep that wrote it" in error.hint


def test_a_database_of_the_first_version_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    state = State(path)
    state.add_sandbox(sandbox())
    state.close()
    db = sqlite3.connect(path)
    db.executescript("DROP TABLE boot; DROP TABLE pod_cidr; PRAGMA user_version = 1;")
    db.close()
    for boot in ("", "one", "two"):
        state = State(path)
        assert (state.boot, [item.id for item in state.sandboxes()]) == (boot, ["a" * 64])
        assert state.pod_cidr == (("", "") if not boot else ("10.0.0.0/16", boot))
        state.note_boot("two" if boot else "one")
        state.note_pod_cidr("10.0.0.0/16", state.boot)
        state.close()


SECOND_VERSION = """
CREATE TABLE sandboxes (id TEXT PRIMARY KEY, key TEXT NOT NULL UNIQUE, record BLOB NOT NULL) STRICT;
CREATE TABLE containers (
    id TEXT PRIMARY KEY, sandbox_id TEXT NOT NULL, key TEXT NOT NULL UNIQUE, record BLOB NOT NULL
) STRICT;
CREATE TABLE addresses (address TEXT PRIMARY KEY, sandbox_id TEXT NOT NULL) STRICT;
CREATE TABLE boot (id TEXT NOT NULL) STRICT;
PRAGMA user_version = 2;
PRAGMA journal_mode = WAL;
"""
SECOND_VERSIONS_SANDBOX = (
    """{"id":"%s","config":{"name":"old","uid":"u","namespace":"n","hostname":"old","log_directory":"/var/log/pods/x","""
    """"dns":{"servers":["192.0.2.53"]},"cgroup_parent":"/podkeep","namespaces":{"pid":1},"handler":"crun"},"""
    """"status":{"state":"ready","created_at":1,"address":"10.0.0.2","made_cgroups":["/podkeep"]}}"""
)
SECOND_VERSIONS_CONTAINER = (
    """{"id":"%s","sandbox_id":"%s","config":{"name":"c","image":"busybox","mounts":[{"container_path":"/m","""
    """"host_path":"/h"}],"namespaces":{"pid":1},"security":{"add_capabilities":["NET_ADMIN"]}},"image_id":"i","""
    """"image_ref":"r","status":{"state":"running","created_at":1,"started_at":2,"""
    """"process":{"pid":7,"start_time":8},"monitor":{"pid":9,"start_time":10}}}"""
)


def test_a_database_that_the_second_version_wrote_is_taken_over(tmp_path: Path) -> None:
    """Its records have none of the fields that came later, and its pods keep their addresses."""
    path = tmp_path / "state.db"
    pod, inside = "a" * 64, "c" * 64
    db = sqlite3.connect(path, isolation_level=None)
    db.executescript(SECOND_VERSION)
    record = (SECOND_VERSIONS_SANDBOX % pod).encode()
    db.execute("INSERT INTO sandboxes VALUES (?, 'n/old/u/0', ?)", (pod, record))
    record = (SECOND_VERSIONS_CONTAINER % (inside, pod)).encode()
    db.execute("INSERT INTO containers VALUES (?, ?, ?, ?)", (inside, pod, f"{pod}/c/0", record))
    db.execute("INSERT INTO addresses VALUES ('10.0.0.2', ?)", (pod,))
    db.execute("INSERT INTO boot VALUES ('that boot')")
    db.close()
    state = State(path)
    assert state.boot == "that boot"
    assert state.pod_cidr == ("", "")
    assert state.addresses() == ["10.0.0.2"]
    (old,) = state.sandboxes()
    assert (old.status.state, old.status.address, old.status.network) == (SandboxState.READY, "10.0.0.2", None)
    assert state.sandbox_by_key("n/old/u/0") == old
    (running,) = state.containers(old.id)
    assert running.status.process == ProcessId(pid=7, start_time=8)
    assert state.take_address(SandboxID("b" * 64), SUBNET) == "10.0.0.3"
    state.set_sandbox(old.id, old.status)
    state.close()


# what is not in the file


def test_a_full_disk_swallows_no_later_write(tmp_path: Path) -> None:
    """A transaction that failed is taken back; the writes after it are stored."""
    path = tmp_path / "state.db"
    state = State(path)
    state.add_sandbox(sandbox())
    (pages,) = state._db.execute("PRAGMA page_count").fetchone()
    state._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(ResourceExhausted, match="disk is full"):
        state.note_pod_cidr("10.0.0.0/16", "x" * 100_000)
    with pytest.raises(ResourceExhausted, match="disk is full"):
        state.note_boot("x" * 100_000)
    assert (state.boot, state.pod_cidr) == ("", ("", ""))
    state.set_sandbox(SandboxID("a" * 64), sandbox(state=SandboxState.NOTREADY).status)
    other = State(path)
    assert [item.status.state for item in other.sandboxes()] == [SandboxState.NOTREADY]
    other.close()
    state.close()


def test_a_database_that_is_locked_is_not_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.db"
    state = State(path)
    state.add_sandbox(sandbox())
    state.close()
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *given, **more: connect(*given, timeout=0.01, **more))
    holder = connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(Unavailable, match="cannot be opened: database is locked") as caught:
        State(path)
    assert "remove" not in caught.value.hint
    holder.close()


def _modes(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()}


def test_only_root_reads_the_files(tmp_path: Path) -> None:
    """They hold the environment of every container."""
    state = State(tmp_path / "state.db")
    state.add_sandbox(sandbox())
    private = {"state.db": 0o600, "state.db-wal": 0o600, "state.db-shm": 0o600}
    assert _modes(tmp_path) == private
    for path in tmp_path.iterdir():
        path.chmod(0o644)
    again = State(tmp_path / "state.db")
    assert _modes(tmp_path) == private
    again.close()
    state.close()


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE contacts (name TEXT)")
    db.commit()
    db.close()
    refused(path)


def test_a_daemon_killed_while_it_made_the_database(tmp_path: Path) -> None:
    """The tables come into being together: after any part of the script, the next daemon can start."""
    statements = []
    text = ""
    for piece in state_module._SCHEMA.split(";"):
        text += piece + ";"
        if sqlite3.complete_statement(text):
            statements.append(text)
            text = ""
    assert len(statements) > 3
    for count in range(len(statements) + 1):
        path = tmp_path / f"{count}.db"
        db = sqlite3.connect(path, isolation_level=None)
        for statement in statements[:count]:
            db.execute(statement)
        db.close()
        state = State(path)
        state.add_sandbox(sandbox())
        state.add_container(container())
        state.close()


def test_states_of_both_records_are_stored(tmp_path: Path) -> None:
    state = State(tmp_path / "state.db")
    for number, value in enumerate(SandboxState):
        state.add_sandbox(sandbox(str(number) * 64, state=value, name=f"n{number}"))
    for number, kind in enumerate(ContainerState):
        one = container(str(number) * 64, name=f"n{number}")
        state.add_container(one)
        state.set_container(ContainerID(one.id), msgspec.structs.replace(one.status, state=kind))
    state.close()
    again = State(tmp_path / "state.db")
    assert [item.status.state for item in again.sandboxes()] == list(SandboxState)
    assert [item.status.state for item in again.containers()] == list(ContainerState)
    again.close()
