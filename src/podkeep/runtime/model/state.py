"""The runtime's memory: every sandbox, container and address, on disk before anything is made of it.

Owns: the state database (SQLite, WAL) and the copy of it in memory. Does not own: what the records mean. Used on the
event loop's thread only; a write takes about 0.1 ms.

A record is written *before* the resources it names are made and deleted *after* they are gone, so that whatever a
killed daemon leaves behind is named by a record (``recovery.py``).

What begins needs the disk, and is refused when it is full. What ends does not: stopping and removing pods is how a node
gets its disk back. An end that cannot be written is kept in memory and written before anything else is. A daemon that
is killed until then finds an older record of something that is gone; it comes to the same end.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from podkeep.base import sqlite
from podkeep.base.errors import (
    AlreadyExists,
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PodkeepError,
    ResourceExhausted,
)
from podkeep.base.ids import ContainerID, SandboxID
from podkeep.base.text.printable import quoted
from podkeep.runtime.model.records import (
    Container,
    ContainerConfig,
    ContainerState,
    ContainerStatus,
    NamespaceMode,
    Sandbox,
    SandboxStatus,
)

log = logging.getLogger(__name__)

SCHEMA_VERSION = 3
_MODE = 0o600
MIN_ID_PREFIX = 12
"""Shortest prefix of an ID that is looked up: what programs print (crictl 13, docker 12). Less is a mistake, and which
one it means changes with what else is there.
"""

# In one transaction: a daemon that is killed in between leaves an empty database, and not a part of one.
_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE sandboxes (id TEXT PRIMARY KEY, key TEXT NOT NULL UNIQUE, record BLOB NOT NULL) STRICT;
CREATE TABLE containers (
    id TEXT PRIMARY KEY, sandbox_id TEXT NOT NULL, key TEXT NOT NULL UNIQUE, record BLOB NOT NULL
) STRICT;
CREATE TABLE addresses (address TEXT PRIMARY KEY, sandbox_id TEXT NOT NULL) STRICT;
CREATE TABLE boot (id TEXT NOT NULL) STRICT;
CREATE TABLE pod_cidr (configured TEXT NOT NULL, subnets TEXT NOT NULL) STRICT;
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""
_MIGRATIONS = {
    1: """
BEGIN IMMEDIATE;
CREATE TABLE boot (id TEXT NOT NULL) STRICT;
PRAGMA user_version = 2;
COMMIT;
""",
    2: """
BEGIN IMMEDIATE;
CREATE TABLE pod_cidr (configured TEXT NOT NULL, subnets TEXT NOT NULL) STRICT;
PRAGMA user_version = 3;
COMMIT;
""",
}
"""What brings a database of this version to the next one."""
Observer: TypeAlias = Callable[[Sandbox | Container | None, Sandbox | Container | None], None]
"""Called with a record as it was and as it is after a change; None: there was, or is, none."""

_encode = msgspec.json.Encoder().encode
_decode_sandbox = msgspec.json.Decoder(Sandbox).decode
_decode_container = msgspec.json.Decoder(Container).decode


class State:
    """The records by ID, written through to the database."""

    def __init__(self, path: Path) -> None:
        """Open or create the database at ``path``.

        :raises DataLoss: if the file is no readable state of this or an older version; it is left as it is.
        :raises ResourceExhausted: if its disk is full.
        :raises Unavailable: if it cannot be opened for another reason that is not in the file: a lock, the disk.
        """
        self._path = path
        self._sandboxes: dict[SandboxID, Sandbox] = {}
        self._containers: dict[ContainerID, Container] = {}
        self._sandbox_keys: dict[str, SandboxID] = {}
        self._container_keys: dict[str, ContainerID] = {}
        self._addresses: dict[str, SandboxID] = {}
        self._last_address = {4: 0, 6: 0}
        self._sizes: dict[str, int] = {}
        self.pod_cidr = ("", "")
        """The subnets of the configuration, and those that a client told to use in their place; empty: none."""
        self.observers: list[Observer] = []
        """Told of every change of a record, one after the other, right after it is written."""
        self._unwritten: dict[tuple[str, str], tuple[str, tuple[Any, ...]]] = {}
        """Statements about ends that the disk had no room for, by table and ID."""
        self.boot = ""
        """The boot in which the records were last compared with the machine; empty: it was not noted."""
        # Made here, because SQLite would make it readable by all.
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, _MODE))
        try:
            # Each statement commits by itself. A transaction of Python's that a full disk leaves open would swallow
            # later writes.
            self._db = sqlite3.connect(path, isolation_level=None)
            try:
                self._prepare()
                self._load()
            except BaseException:
                self._db.close()
                raise
        except (sqlite3.DatabaseError, msgspec.DecodeError) as error:
            # What is in the file is not to blame, and must not be given up for it.
            if sqlite.is_passing(error):
                raise self._refusal("opened", error) from error
            raise DataLoss(
                f"the state file {path} cannot be read: {error}",
                hint=f"restore it, or give up its pods: stop their processes and remove {path}*",
            ) from error

    def _prepare(self) -> None:
        # Nothing is written, not even the journal's mode, before it is known whose file this is.
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        (tables,) = self._db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if version not in (0, *_MIGRATIONS, SCHEMA_VERSION):
            raise DataLoss(
                f"the state file {self._path} has version {version}; this podkeep reads up to {SCHEMA_VERSION}",
                hint="run the podkeep that wrote it",
            )
        if version == 0 and tables:
            raise DataLoss(f"{self._path} is another program's database", hint="move it away")
        self._restrict()
        self._db.execute("PRAGMA journal_mode = WAL")
        # In WAL mode a killed process loses nothing by that; a power loss may take the last records
        # (lifecycle/orphans.py).
        self._db.execute("PRAGMA synchronous = NORMAL")
        if version == 0:
            self._db.executescript(_SCHEMA)
            return
        for older in range(version, SCHEMA_VERSION):
            self._db.executescript(_MIGRATIONS[older])

    def _restrict(self) -> None:
        """Let only root read the files: they hold the environment of every container. SQLite makes new ones alike."""
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                Path(f"{self._path}{suffix}").chmod(_MODE)

    def _load(self) -> None:
        for (record,) in self._db.execute("SELECT record FROM sandboxes"):
            sandbox = _decode_sandbox(record)
            self._sandboxes[sandbox.id] = sandbox
            self._sandbox_keys[sandbox.config.key()] = sandbox.id
            self._sizes[sandbox.id] = len(record)
        for (record,) in self._db.execute("SELECT record FROM containers"):
            container = _decode_container(record)
            self._containers[container.id] = container
            self._container_keys[container_key(container.sandbox_id, container.config)] = container.id
            self._sizes[container.id] = len(record)
        # A daemon that was killed between reserving an address and storing its sandbox left an address of nobody.
        self._db.execute("DELETE FROM addresses WHERE sandbox_id NOT IN (SELECT id FROM sandboxes)")
        self._addresses = dict(self._db.execute("SELECT address, sandbox_id FROM addresses"))
        for (boot,) in self._db.execute("SELECT id FROM boot"):
            self.boot = boot
        for configured, subnets in self._db.execute("SELECT configured, subnets FROM pod_cidr"):
            self.pod_cidr = (configured, subnets)

    def close(self) -> None:
        """Write what is pending and close the database."""
        try:
            self._write_unwritten()
        except sqlite3.OperationalError as error:
            log.warning("the ends of %d containers and sandboxes are not stored: %s", len(self._unwritten), error)
        self._db.close()

    def _write_unwritten(self) -> None:
        for key, (statement, values) in list(self._unwritten.items()):
            self._db.execute(statement, values)
            del self._unwritten[key]

    def _write(self, statement: str, values: tuple[Any, ...], *, end_of: tuple[str, str] | None = None) -> None:
        """Carry out one statement, which SQLite commits by itself.

        :param end_of: table and ID of what ends by it; it is carried out later then, if it cannot be now.
        :raises ResourceExhausted: if the disk is full; nothing is changed then.
        :raises Unavailable: if the disk fails otherwise, or the database is locked or read-only.
        """
        try:
            # First, for the statement may need what an end gives back: a name is UNIQUE until its record is deleted.
            self._write_unwritten()
            self._db.execute(statement, values)
        except sqlite3.OperationalError as error:
            refusal = self._refusal("written", error)
            if end_of is None:
                raise refusal from error
            log.warning("an end is not stored yet (table %s, ID %s): %s", *end_of, refusal)
            # What comes later of a record takes the place of what was pending of it: a deletion needs no update before.
            self._unwritten[end_of] = (statement, values)

    def _refusal(self, what: str, error: Exception) -> PodkeepError:
        return sqlite.refusal(f"the state database {self._path} cannot be {what}", error)

    def _replace(self, table: str, row: tuple[str, ...]) -> None:
        """Make ``row`` the only one of a table; all or nothing.

        :raises ResourceExhausted: as :meth:`_write`; likewise Unavailable.
        """
        try:
            self._write_unwritten()
            with sqlite.transaction(self._db):
                self._db.execute(f"DELETE FROM {table}")
                self._db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
        except sqlite3.OperationalError as error:
            raise self._refusal("written", error) from error

    def note_boot(self, boot: str) -> None:
        """Note in which boot of the machine the records' processes are; see ``kernel.process.procfs.boot_id``.

        That another one has ended counts also if the database cannot be written now: the next write brings it.
        """
        if self.boot:
            self._write("UPDATE boot SET id = ?", (boot,), end_of=("boot", self.boot))
        else:
            self._replace("boot", (boot,))
        self.boot = boot

    def note_pod_cidr(self, configured: str, subnets: str) -> None:
        """Note which subnets a client told to use in place of the configured ones; see ``network/networks.py``."""
        self._replace("pod_cidr", (configured, subnets))
        self.pod_cidr = (configured, subnets)

    def _tell(self, before: Sandbox | Container | None, after: Sandbox | Container | None) -> None:
        for observer in self.observers:
            observer(before, after)

    def size(self, record: Sandbox | Container) -> int:
        """Return how many bytes a record has, as it was written last; observers may ask also of one that is deleted."""
        return self._sizes[record.id]

    # sandboxes

    def add_sandbox(self, sandbox: Sandbox) -> None:
        """Store a new sandbox.

        :raises AlreadyExists: if its name is taken.
        """
        key = sandbox.config.key()
        if key in self._sandbox_keys:
            raise AlreadyExists(f"pod sandbox {key} exists as {self._sandbox_keys[key]}")
        record = _encode(sandbox)
        self._write("INSERT INTO sandboxes VALUES (?, ?, ?)", (sandbox.id, key, record))
        self._sandboxes[sandbox.id] = sandbox
        self._sizes[sandbox.id] = len(record)
        self._sandbox_keys[key] = sandbox.id
        self._tell(None, sandbox)

    def set_sandbox(self, sandbox_id: SandboxID, status: SandboxStatus, *, ending: bool = False) -> Sandbox:
        """Replace the status of a sandbox and return the new record.

        :param ending: it ends or goes, which counts also if the database cannot be written now (see the module).
        :raises ResourceExhausted: as :meth:`_write`, if it is not ending; likewise Unavailable.
        """
        before = self._sandboxes[sandbox_id]
        sandbox = msgspec.structs.replace(before, status=status)
        end_of = ("sandboxes", sandbox_id) if ending else None
        record = _encode(sandbox)
        self._write("UPDATE sandboxes SET record = ? WHERE id = ?", (record, sandbox_id), end_of=end_of)
        self._sandboxes[sandbox_id] = sandbox
        self._sizes[sandbox_id] = len(record)
        self._tell(before, sandbox)
        return sandbox

    def forget_sandbox(self, sandbox_id: SandboxID) -> None:
        """Delete a sandbox and free its address; unknown ones are no error."""
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is None:
            return
        self.free_address(sandbox_id)
        self._write("DELETE FROM sandboxes WHERE id = ?", (sandbox_id,), end_of=("sandboxes", sandbox_id))
        del self._sandboxes[sandbox_id]
        self._sandbox_keys.pop(sandbox.config.key(), None)
        self._tell(sandbox, None)
        del self._sizes[sandbox_id]

    def sandboxes(self) -> list[Sandbox]:
        return list(self._sandboxes.values())

    def sandbox_by_key(self, key: str) -> Sandbox | None:
        """Return the sandbox that has this name, if any."""
        found = self._sandbox_keys.get(key)
        return None if found is None else self._sandboxes[found]

    def find_sandbox(self, text: str) -> Sandbox | None:
        """Return the sandbox whose ID is ``text`` or starts with it, from :data:`MIN_ID_PREFIX` characters on.

        :raises InvalidArgument: if several do.
        """
        found = _match(text, self._sandboxes)
        return None if found is None else self._sandboxes[SandboxID(found)]

    def sandbox(self, text: str) -> Sandbox:
        """Return the sandbox whose ID is ``text`` or starts with it.

        :raises NotFound: if there is none.
        """
        found = self.find_sandbox(text)
        if found is None:
            raise NotFound(f"pod sandbox {quoted(text)} not found", hint=_hint(text))
        return found

    # containers

    def add_container(self, container: Container) -> None:
        """Store a new container.

        :raises AlreadyExists: if its name is taken.
        """
        key = container_key(container.sandbox_id, container.config)
        if key in self._container_keys:
            raise AlreadyExists(f"container {key} exists as {self._container_keys[key]}")
        record = _encode(container)
        self._write("INSERT INTO containers VALUES (?, ?, ?, ?)", (container.id, container.sandbox_id, key, record))
        self._containers[container.id] = container
        self._sizes[container.id] = len(record)
        self._container_keys[key] = container.id
        self._tell(None, container)

    def set_container(self, container_id: ContainerID, status: ContainerStatus, *, ending: bool = False) -> Container:
        """Replace the status of a container and return the new record.

        :param ending: it ends or goes, which counts also if the database cannot be written now: what ended must not
            look as if it ran. A daemon that starts again finds out the same as this one did.
        :raises ResourceExhausted: as :meth:`_write`, if it is not ending; likewise Unavailable.
        """
        before = self._containers[container_id]
        container = msgspec.structs.replace(before, status=status)
        end_of = ("containers", container_id) if ending else None
        record = _encode(container)
        self._write("UPDATE containers SET record = ? WHERE id = ?", (record, container_id), end_of=end_of)
        self._containers[container_id] = container
        self._sizes[container_id] = len(record)
        self._tell(before, container)
        return container

    def forget_container(self, container_id: ContainerID) -> None:
        """Delete a container; unknown ones are no error."""
        container = self._containers.get(container_id)
        if container is None:
            return
        self._write("DELETE FROM containers WHERE id = ?", (container_id,), end_of=("containers", container_id))
        del self._containers[container_id]
        self._container_keys.pop(container_key(container.sandbox_id, container.config), None)
        self._tell(container, None)
        del self._sizes[container_id]

    def containers(self, sandbox_id: SandboxID | None = None) -> list[Container]:
        """Return every container, or those of one sandbox; any thread may ask."""
        return [item for item in list(self._containers.values()) if sandbox_id in (None, item.sandbox_id)]

    def shares_processes(self, container: Container) -> bool:
        """Say whether processes outside of a container are in sight in it, or will be of one that is being made."""
        if container.config.namespaces.pid is not NamespaceMode.CONTAINER:
            return True
        # Of any target: that may have been made beside this one, and removed since.
        others = self.containers(container.sandbox_id)
        return any(item.config.namespaces.pid is NamespaceMode.TARGET for item in others)

    def container_by_key(self, key: str) -> Container | None:
        """Return the container that has this name, if any."""
        found = self._container_keys.get(key)
        return None if found is None else self._containers[found]

    def find_container(self, text: str) -> Container | None:
        """Return the container whose ID is ``text`` or starts with it, from :data:`MIN_ID_PREFIX` characters on.

        :raises InvalidArgument: if several do.
        """
        found = _match(text, self._containers)
        return None if found is None else self._containers[ContainerID(found)]

    def container(self, text: str) -> Container:
        """Return the container whose ID is ``text`` or starts with it.

        :raises NotFound: if there is none.
        """
        found = self.find_container(text)
        if found is None:
            raise NotFound(f"container {quoted(text)} not found", hint=_hint(text))
        return found

    def running_container(self, text: str) -> Container:
        """Return the container whose ID is ``text`` or starts with it, which runs.

        :raises NotFound: if there is none.
        :raises FailedPrecondition: if it does not run.
        """
        found = self.container(text)
        if found.status.state is not ContainerState.RUNNING:
            pod = self.sandbox(found.sandbox_id).config
            raise FailedPrecondition(
                f"container {found.config.name} of pod {pod.namespace}/{pod.name} is {found.status.state.value},"
                f" not running ({found.id[:12]})"
            )
        return found

    # addresses

    def addresses(self) -> list[str]:
        return list(self._addresses)

    def take_address(self, sandbox_id: SandboxID, subnet: IPv4Network | IPv6Network) -> str:
        """Reserve and return an address of ``subnet`` for a sandbox: the next one after the last that was given out.

        The network's own, the gateway's (the first) and the last one (IPv4: broadcast) are never given out.

        :raises ResourceExhausted: if none is free.
        """
        first, last = 2, subnet.num_addresses - 2
        span = last - first + 1
        # After the last one, so that an address that was freed is used again last.
        for step in range(max(span, 0)):
            offset = first + (self._last_address[subnet.version] + step) % span
            address = str(subnet.network_address + offset)
            if address not in self._addresses:
                self._write("INSERT INTO addresses VALUES (?, ?)", (address, sandbox_id))
                self._addresses[address] = sandbox_id
                self._last_address[subnet.version] = offset - first + 1
                return address
        raise ResourceExhausted(
            f"no address of {subnet} is free: {len(self._addresses)} are in use",
            hint="remove pods, or set network.subnet to a larger one",
        )

    def free_address(self, sandbox_id: SandboxID) -> None:
        mine = [address for address, holder in self._addresses.items() if holder == sandbox_id]
        if mine:
            statement = "DELETE FROM addresses WHERE sandbox_id = ?"
            self._write(statement, (sandbox_id,), end_of=("addresses", sandbox_id))
        for address in mine:
            del self._addresses[address]


def container_key(sandbox: SandboxID, config: ContainerConfig) -> str:
    """Return what makes a container the same for a caller that repeats its request."""
    return "/".join((sandbox, config.name, str(config.attempt)))


def _match(text: str, known: dict[SandboxID, Sandbox] | dict[ContainerID, Container]) -> str | None:
    if text in known:
        return text
    if len(text) < MIN_ID_PREFIX:
        if not text:
            raise InvalidArgument("the request names no ID")
        return None
    found = [item for item in known if item.startswith(text)]
    if len(found) > 1:
        raise InvalidArgument(f"{quoted(text)} is the start of {len(found)} IDs", hint="write more characters")
    return found[0] if found else None


def _hint(text: str) -> str:
    return f"write at least {MIN_ID_PREFIX} characters of an ID" if len(text) < MIN_ID_PREFIX else ""
