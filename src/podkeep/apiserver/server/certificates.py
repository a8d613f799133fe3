"""The API's authority, and the certificates and keys it makes: which, where they lie, when they are renewed.

Owns the files below ``pki/``: who may read them (root), that they are whole, and what is known of them
(``issued.json``). Makes none itself: that is done in a process of its own (:mod:`.certificate_worker`), which ends
before the API has a thread, since what it needs takes 20 MB. An authority or a key that somebody else put there is used
and never replaced.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from podkeep.apiserver.auth.user import ADMIN, MASTERS, NODE, NODES
from podkeep.apiserver.server.certificate_orders import AUTHORITY_DAYS, DAYS, Delivery, Order, Pair, Wanted
from podkeep.base import atomicfile, spawn
from podkeep.base.errors import DataLoss, FailedPrecondition, PodkeepError, refused

log = logging.getLogger(__name__)

DAY = 24 * 3600
AUTHORITY = "ca"
ACCOUNTS = "sa"
"""The key of service accounts' tokens."""
_RECORDS = "issued.json"
_WORKER = "podkeep.apiserver.server.certificate_worker"
_TIMEOUT_S = 60.0
_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a certificate that was made: from its digests follows whether the files are still those."""

    certificate: str
    key: str
    not_before: int
    not_after: int
    authority: str
    """Digest of the authority's key, by which it was signed."""
    wanted: Wanted | None = None

    def due(self) -> int:
        """Return when it is to be renewed: when less than a third of its life is left."""
        return self.not_after - (self.not_after - self.not_before) // 3


class Files:
    """Where everything is."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.directory = root / "pki"

    def certificate(self, name: str) -> Path:
        return self.directory / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.directory / f"{name}.key"

    @property
    def accounts_public(self) -> Path:
        """The public key of service accounts' tokens."""
        return self.directory / f"{ACCOUNTS}.pub"

    def kubeconfig(self, name: str) -> Path:
        """Return the file with which a client of the API gets at it."""
        return self.root / f"{name}.conf"


def api_server(dns_names: Sequence[str] = (), addresses: Sequence[str] = ()) -> Wanted:
    """Return the certificate that the API proves itself with, for the names that pods and this machine know it by.

    :param addresses: where it listens, and of the service ``kubernetes``.
    """
    names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
    return Wanted(
        name="apiserver",
        common_name="kube-apiserver",
        dns_names=tuple(dict.fromkeys((*names, "localhost", *dns_names))),
        addresses=tuple(dict.fromkeys(("127.0.0.1", "::1", *addresses))),
        server=True,
    )


def client(name: str, user: str, groups: Sequence[str] = (), days: int = DAYS) -> Wanted:
    return Wanted(name=name, common_name=user, organizations=tuple(groups), client=True, days=days)


CLIENTS = (
    client("admin", ADMIN, [MASTERS]),
    client("scheduler", "system:kube-scheduler"),
    client("controller-manager", "system:kube-controller-manager"),
)
"""Those who get a kubeconfig of their own."""
KUBELET_CLIENT = client("apiserver-kubelet-client", "kube-apiserver-kubelet-client")
"""What the API shows kubelets, for logs and exec."""


def of_node(name: str, addresses: Sequence[str]) -> tuple[Wanted, Wanted]:
    """Return the certificates of a node: what its kubelet shows the API, and what it proves itself with."""
    user = f"{NODE}{name}"
    serving = Wanted(
        name="kubelet-serving",
        common_name=user,
        organizations=(NODES,),
        dns_names=(name,),
        addresses=tuple(dict.fromkeys(addresses)),
        server=True,
    )
    return client("kubelet", user, [NODES]), serving


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be made. ``adopted`` tells that the authority is there and was made by somebody else."""

    wanted: tuple[Wanted, ...] = ()
    new_authority: bool = False
    adopted: bool = False
    accounts_key: bool = False

    def __bool__(self) -> bool:
        return bool(self.wanted or self.new_authority or self.accounts_key or self.adopted)


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What is there: digests of certificates and keys by name; empty ones for files that are missing."""

    pairs: dict[str, tuple[str, str]]
    accounts_key: bool
    records: dict[str, Record]


def plan(wanted: Sequence[Wanted], found: Found, now: int) -> Plan:
    """Return what is to be made.

    :raises FailedPrecondition: if half of the authority is missing.
    """
    certificate, key = found.pairs.get(AUTHORITY, ("", ""))
    if bool(certificate) != bool(key):
        raise FailedPrecondition(
            f"of the API's authority there is only the {'certificate' if certificate else 'key'}",
            hint=f"put the other file of {AUTHORITY}.crt and {AUTHORITY}.key there too, or remove this one",
        )
    record = found.records.get(AUTHORITY)
    known = record is not None and (record.certificate, record.key) == (certificate, key)
    new = not certificate or (known and record is not None and _is_due(record, now) and record.wanted is not None)
    return Plan(
        wanted=tuple(item for item in wanted if not _is_good(item, found, key, now)),
        new_authority=new,
        adopted=bool(certificate) and not known,
        accounts_key=not found.accounts_key,
    )


def _is_good(wanted: Wanted, found: Found, authority: str, now: int) -> bool:
    record = found.records.get(wanted.name)
    return (
        record is not None
        and record.wanted == wanted
        and (record.certificate, record.key) == found.pairs.get(wanted.name)
        and record.authority == authority != ""
        and not _is_due(record, now)
    )


def _is_due(record: Record, now: int) -> bool:
    return not record.not_before <= now < record.due()


def ensure(files: Files, wanted: Sequence[Wanted], now: int) -> tuple[list[str], int]:
    """Make what is missing, no longer fits, or has less than a third of its life left; blocks.

    :returns: the names of what is new, and when (seconds since 1970) this is to be called again.
    :raises FailedPrecondition: if an authority that is there cannot be used, or files cannot be written.
    :raises ResourceExhausted: if the disk is full.
    :raises DataLoss: if the files cannot be read.
    """
    try:
        return _ensure(files, wanted, now)
    except OSError as error:
        raise refused("the API's certificates cannot be written", error) from error


def _ensure(files: Files, wanted: Sequence[Wanted], now: int) -> tuple[list[str], int]:
    files.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = _look(files, wanted)
    todo = plan(wanted, found, now)
    if not todo:
        return [], _next(found.records, wanted)
    there = bool(found.pairs[AUTHORITY][0])
    delivery = _order(
        Order(
            now=now,
            wanted=todo.wanted,
            authority=_read_authority(files) if there else None,
            new_authority=todo.new_authority,
            accounts_key=todo.accounts_key,
        )
    )
    records = _store(files, found.records, todo, delivery)
    new = [*([AUTHORITY] if todo.new_authority else []), *(item.name for item in todo.wanted)]
    new += [ACCOUNTS] if todo.accounts_key else []
    log.info("made certificates and keys: %s", ", ".join(new) or "none")
    return new, _next(records, wanted)


def issue(files: Files, wanted: Wanted, now: int) -> Pair:
    """Return a new certificate of the authority, which is kept nowhere; blocks.

    :raises FailedPrecondition: if there is no authority that can be used, or no certificate can have such a name.
    """
    return _order(Order(now=now, wanted=(wanted,), authority=_read_authority(files))).pairs[wanted.name]


def keep(files: Files, own: Files, wanted: Wanted, now: int) -> None:
    """Have a certificate of the authority of ``files`` in ``own``, made anew under the same rules as the API's; blocks.

    :raises FailedPrecondition: if there is no authority that can be used, or no certificate can have such a name.
    :raises DataLoss: if the files cannot be read.
    :raises OSError: if they cannot be written.
    """
    authority, found = _digest(files.key(AUTHORITY)), _look(own, [wanted])
    if _is_good(wanted, found, authority, now):
        return
    pair = issue(files, wanted, now)
    own.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write(own, wanted.name, pair)
    record = _record(own, wanted.name, pair, authority, wanted)
    atomicfile.write(own.directory / _RECORDS, msgspec.json.encode(found.records | {wanted.name: record}))


def _order(order: Order) -> Delivery:
    done = spawn.run(spawn.own_command(_WORKER), stdin=msgspec.json.encode(order), timeout=_TIMEOUT_S).check()
    delivery = msgspec.json.decode(done.stdout, type=Delivery)
    if delivery.problem:
        raise FailedPrecondition(delivery.problem)
    return delivery


def _look(files: Files, wanted: Sequence[Wanted]) -> Found:
    names = (AUTHORITY, *(item.name for item in wanted))
    return Found(
        pairs={name: (_digest(files.certificate(name)), _digest(files.key(name))) for name in names},
        accounts_key=files.key(ACCOUNTS).exists(),
        records=_records(files),
    )


def _digest(path: Path) -> str:
    data = _read(path)
    return hashlib.sha256(data).hexdigest() if data else ""


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise DataLoss(f"{path}: cannot be read: {error.strerror}") from error


def _read_authority(files: Files) -> tuple[str, str]:
    certificate, key = _read(files.certificate(AUTHORITY)), _read(files.key(AUTHORITY))
    # Any bytes are Latin-1: that they are no PEM is for the worker to tell.
    return certificate.decode("latin-1"), key.decode("latin-1")


def _records(files: Files) -> dict[str, Record]:
    try:
        return msgspec.json.decode(_read(files.directory / _RECORDS) or b"{}", type=dict[str, Record])
    except (msgspec.MsgspecError, UnicodeDecodeError, PodkeepError):
        log.warning("%s is damaged: all certificates are made again", files.directory / _RECORDS)
        return {}


def _store(files: Files, old: Mapping[str, Record], todo: Plan, delivery: Delivery) -> dict[str, Record]:
    """Write what was made, and then what is known of it: whatever is interrupted before is made anew."""
    records = dict(old)
    pairs = dict(delivery.pairs)
    if delivery.authority is not None and todo.new_authority:
        pairs[AUTHORITY] = delivery.authority
    for name, pair in pairs.items():
        _write(files, name, pair)
    if delivery.accounts is not None:
        private, public = delivery.accounts
        atomicfile.write(files.accounts_public, public.encode())
        atomicfile.write(files.key(ACCOUNTS), private.encode())
    authority = _digest(files.key(AUTHORITY))
    if delivery.authority is not None:
        made = Wanted(name=AUTHORITY, common_name="", days=AUTHORITY_DAYS) if todo.new_authority else None
        records[AUTHORITY] = _record(files, AUTHORITY, delivery.authority, authority, made)
    for item in todo.wanted:
        records[item.name] = _record(files, item.name, delivery.pairs[item.name], authority, item)
    atomicfile.write(files.directory / _RECORDS, msgspec.json.encode(records))
    return records


def _write(files: Files, name: str, pair: Pair) -> None:
    # Both files are whole; that they belong together is told by the digests in the records.
    atomicfile.write(files.key(name), pair.key.encode())
    atomicfile.write(files.certificate(name), pair.certificate.encode())


def _record(files: Files, name: str, pair: Pair, authority: str, wanted: Wanted | None) -> Record:
    return Record(
        certificate=_digest(files.certificate(name)),
        key=_digest(files.key(name)),
        not_before=pair.not_before,
        not_after=pair.not_after,
        authority=authority,
        wanted=wanted,
    )


def _next(records: Mapping[str, Record], wanted: Sequence[Wanted]) -> int:
    """Return when the first of what is there is due. An authority of somebody else is theirs to renew."""
    names = [AUTHORITY] if records[AUTHORITY].wanted is not None else []
    return min(records[name].due() for name in (*names, *(item.name for item in wanted)))
