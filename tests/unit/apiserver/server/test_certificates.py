"""Certificates and keys: what is made when, who can read it, and whom TLS believes."""

from __future__ import annotations

import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from podkeep.apiserver.auth import jwt
from podkeep.apiserver.server import certificate_worker, certificates
from podkeep.apiserver.server.certificates import (
    AUTHORITY,
    CLIENTS,
    DAY,
    KUBELET_CLIENT,
    Delivery,
    Files,
    Found,
    Order,
    Pair,
    Plan,
    Record,
    Wanted,
    plan,
)
from podkeep.apiserver.server.kubeconfig import is_own, kubeconfig, server_url, write_all
from podkeep.base.errors import FailedPrecondition
from podkeep.http.tls import server_context

NOW = int(os.stat("/proc").st_mtime) // DAY * DAY
ADMIN = CLIENTS[0]
SERVER = certificates.api_server(addresses=["192.0.2.7"])


def record(wanted: Wanted | None = ADMIN, start: int = NOW, days: int = 90, authority: str = "k") -> Record:
    return Record(
        certificate="c", key="k", not_before=start, not_after=start + days * DAY, authority=authority, wanted=wanted
    )


OURS = Wanted(name=AUTHORITY, common_name="")
GOOD = {AUTHORITY: record(OURS, days=3650), "admin": record()}
PAIRS = {AUTHORITY: ("c", "k"), "admin": ("c", "k")}


def found(
    records: dict[str, Record], pairs: dict[str, tuple[str, str]] | None = None, *, accounts: bool = True
) -> Found:
    return Found(pairs=PAIRS | (pairs or {}), accounts_key=accounts, records=records)


@pytest.mark.parametrize(
    ("there", "now", "expected"),
    [
        (found(GOOD), NOW, Plan()),
        (found(GOOD), NOW + 60 * DAY - 1, Plan()),
        (found(GOOD), NOW + 60 * DAY, Plan(wanted=(ADMIN,))),
        (found(GOOD), NOW - 1, Plan(wanted=(ADMIN,), new_authority=True)),
        (found(GOOD, accounts=False), NOW, Plan(accounts_key=True)),
        (found(GOOD, {"admin": ("x", "k")}), NOW, Plan(wanted=(ADMIN,))),
        (found(GOOD, {"admin": ("c", "")}), NOW, Plan(wanted=(ADMIN,))),
        (found(GOOD | {"admin": record(SERVER)}), NOW, Plan(wanted=(ADMIN,))),
        (found(GOOD | {"admin": record(authority="other")}), NOW, Plan(wanted=(ADMIN,))),
        (found({AUTHORITY: GOOD[AUTHORITY]}), NOW, Plan(wanted=(ADMIN,))),
        (found({}), NOW, Plan(wanted=(ADMIN,), adopted=True)),
        (
            found({}, {AUTHORITY: ("", ""), "admin": ("", "")}, accounts=False),
            NOW,
            Plan(wanted=(ADMIN,), new_authority=True, accounts_key=True),
        ),
        # Somebody else's authority is theirs to renew.
        (found(GOOD | {AUTHORITY: record(None, days=30)}), NOW + 25 * DAY, Plan()),
        (found(GOOD | {AUTHORITY: record(OURS, days=30)}), NOW + 25 * DAY, Plan(new_authority=True)),
        (found(GOOD, {AUTHORITY: ("x", "y")}), NOW, Plan(wanted=(ADMIN,), adopted=True)),
    ],
)
def test_what_is_to_be_made(there: Found, now: int, expected: Plan) -> None:
    assert plan([ADMIN], there, now) == expected


@pytest.mark.parametrize(("pair", "what"), [(("c", ""), "certificate"), (("", "k"), "key")])
def test_half_an_authority_is_refused(pair: tuple[str, str], what: str) -> None:
    with pytest.raises(FailedPrecondition, match=f"only the {what}"):
        plan([ADMIN], found(GOOD, {AUTHORITY: pair}), NOW)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Certificates as a first start makes them."""
    made = Files(tmp_path_factory.mktemp("api"))
    new, due = certificates.ensure(made, [SERVER, *CLIENTS, KUBELET_CLIENT], NOW)
    assert new == [AUTHORITY, "apiserver", *(client.name for client in CLIENTS), KUBELET_CLIENT.name, "sa"]
    assert due == pytest.approx(NOW + 365 * DAY * 2 / 3, abs=DAY)
    return made


def test_files_are_for_root_alone(files: Files) -> None:
    modes = {path.name: path.stat().st_mode & 0o777 for path in files.directory.iterdir()}
    assert set(modes.values()) == {0o600}
    assert files.directory.stat().st_mode & 0o777 == 0o700
    assert len(modes) == 15


def test_a_second_start_makes_nothing(files: Files) -> None:
    before = {path: path.read_bytes() for path in files.directory.iterdir()}
    assert certificates.ensure(files, [SERVER, *CLIENTS, KUBELET_CLIENT], NOW + DAY)[0] == []
    assert {path: path.read_bytes() for path in files.directory.iterdir()} == before


def test_a_clock_that_was_a_time_zone_ahead_makes_nothing_new(files: Files) -> None:
    """With another authority everything that trusts it would have to take the new one."""
    assert certificates.ensure(files, [SERVER, *CLIENTS, KUBELET_CLIENT], NOW - 14 * 3600)[0] == []


def test_the_key_of_accounts_signs_tokens(files: Files) -> None:
    signing = jwt.read_signing_key(files.key("sa").read_bytes())
    (public,) = jwt.read_verification_keys(files.accounts_public.read_bytes())
    assert jwt.verify(jwt.encode({"a": 1}, signing), {public.identifier: public}) == b'{"a":1}'


def copied(files: Files, root: Path) -> Files:
    made = Files(root)
    made.directory.mkdir(parents=True)
    for path in files.directory.iterdir():
        (made.directory / path.name).write_bytes(path.read_bytes())
    return made


def changed(files: Files, before: dict[str, bytes]) -> list[str]:
    return sorted(path.name for path in files.directory.iterdir() if path.read_bytes() != before.get(path.name))


RENEWALS: list[tuple[str, Callable[[Files], Any], list[Wanted], int, list[str]]] = [
    ("a third of its life is left", lambda _: None, [ADMIN], NOW + 300 * DAY, ["admin"]),
    ("a file is gone", lambda files: files.certificate("admin").unlink(), [ADMIN], NOW, ["admin"]),
    ("a file is damaged", lambda files: files.key("admin").write_text("x"), [ADMIN], NOW, ["admin"]),
    ("another address", lambda _: None, [certificates.api_server(addresses=["192.0.2.8"])], NOW, ["apiserver"]),
    (
        "what is known is damaged",
        lambda files: (files.directory / "issued.json").write_text("{"),
        [ADMIN, SERVER],
        NOW,
        ["admin", "apiserver"],
    ),
    ("the clock was set back", lambda _: None, [ADMIN], NOW - 30 * DAY, ["admin", "ca"]),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", RENEWALS, ids=[case[0] for case in RENEWALS])
def test_what_is_made_anew(files: Files, tmp_path: Path, case: Any) -> None:
    _, damage, wanted, now, names = case
    mine = copied(files, tmp_path / "api")
    damage(mine)
    before = {path.name: path.read_bytes() for path in mine.directory.iterdir()}
    new, _ = certificates.ensure(mine, wanted, now)
    assert sorted(new) == names
    # The key of the authority stays, so that what it signed is still good.
    expected = {f"{name}.{end}" for name in names for end in ("crt", "key")} - {"ca.key"} | {"issued.json"}
    assert set(changed(mine, before)) == expected
    assert certificates.ensure(mine, wanted, now)[0] == []


@pytest.mark.slow
def test_somebody_elses_authority_is_used_and_stays(files: Files, tmp_path: Path) -> None:
    mine = Files(tmp_path / "api")
    mine.directory.mkdir(parents=True)
    for path in (files.certificate(AUTHORITY), files.key(AUTHORITY), files.key("sa")):
        (mine.directory / path.name).write_bytes(path.read_bytes())
    assert certificates.ensure(mine, [ADMIN], NOW)[0] == ["admin"]
    for path in (files.certificate(AUTHORITY), files.key(AUTHORITY), files.key("sa")):
        assert (mine.directory / path.name).read_bytes() == path.read_bytes()
    records = json.loads((mine.directory / "issued.json").read_bytes())
    assert records[AUTHORITY]["wanted"] is None
    assert certificates.ensure(mine, [ADMIN], NOW)[0] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("certificate", "key", "problem"),
    [
        ("x", "y", "the API's authority cannot be used"),
        ("admin.crt", "admin.key", "its certificate is no authority's"),
        ("ca.crt", "admin.key", "its key is another certificate's"),
    ],
)
def test_an_authority_that_cannot_be_used_is_named(
    files: Files, tmp_path: Path, certificate: str, key: str, problem: str
) -> None:
    mine = Files(tmp_path)
    mine.directory.mkdir()
    for name, target in ((certificate, "ca.crt"), (key, "ca.key")):
        source = files.directory / name
        (mine.directory / target).write_bytes(source.read_bytes() if source.exists() else b"x")
    with pytest.raises(FailedPrecondition, match=problem):
        certificates.ensure(mine, [ADMIN], NOW)


def test_a_directory_that_cannot_be_written_is_named(files: Files, tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match="the API's certificates cannot be written: '/proc/nothing'"):
        certificates.ensure(Files(Path("/proc/nothing")), [ADMIN], NOW)
    mine = copied(files, tmp_path / "api")
    mine.certificate(AUTHORITY).unlink()
    with pytest.raises(FailedPrecondition, match="kubeconfigs of the API cannot be written"):
        write_all(mine, "https://127.0.0.1:6443")


def ordered(**more: Any) -> Delivery:
    return certificate_worker.deliver(Order(now=NOW, **more))


def pem_pair(delivery: Delivery) -> tuple[str, str]:
    assert delivery.authority is not None
    return delivery.authority.certificate, delivery.authority.key


def test_certificates_end_with_their_authority() -> None:
    authority = pem_pair(ordered())
    late = NOW + 3600 * DAY
    made = certificate_worker.deliver(Order(now=late, wanted=(ADMIN,), authority=authority))
    assert made.authority is not None
    assert made.pairs["admin"].not_after == made.authority.not_after == NOW + 3650 * DAY
    expired = certificate_worker.deliver(Order(now=NOW + 3651 * DAY, wanted=(ADMIN,), authority=authority))
    assert "has expired" in expired.problem


@pytest.mark.parametrize("name", ["", "x" * 65])
def test_a_name_that_no_certificate_can_have_is_refused(name: str) -> None:
    assert "cannot be made" in ordered(wanted=(certificates.client("user", name),)).problem


# whom TLS believes


@pytest.fixture(scope="module")
def other() -> Delivery:
    """Another authority, with a certificate of the same administrator."""
    return ordered(wanted=(ADMIN,))


def peer_of(files: Files, tmp_path: Path, client: Pair | tuple[str, str] | None) -> dict[str, Any] | None:
    """Connect to a server with the API's certificate; return the client's, as the server is told.

    :raises ssl.SSLError: if one of them is not believed.
    """
    serving = server_context(
        "the API",
        str(files.certificate("apiserver")),
        str(files.key("apiserver")),
        str(files.certificate(AUTHORITY)),
    )
    asking = ssl.create_default_context(cafile=str(files.certificate(AUTHORITY)))
    if client is not None:
        certificate, key = (client.certificate, client.key) if isinstance(client, Pair) else client
        (tmp_path / "client.crt").write_text(certificate)
        (tmp_path / "client.key").write_text(key)
        asking.load_cert_chain(tmp_path / "client.crt", tmp_path / "client.key")
    mine, theirs = socket.socketpair()
    told: list[Any] = []

    def serve() -> None:
        try:
            with serving.wrap_socket(theirs, server_side=True) as connection:
                told.append(connection.getpeercert())
                connection.send(b"x")
        except (ssl.SSLError, OSError) as error:
            told.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with asking.wrap_socket(mine, server_hostname="kubernetes.default.svc") as connection:
            connection.recv(1)
    except ssl.SSLError as error:
        told.append(error)
    thread.join()
    problem = next((item for item in told if isinstance(item, ssl.SSLError)), None)
    if problem is not None:
        raise problem
    found: dict[str, Any] | None = told[0]
    return found


def own(files: Files, name: str) -> tuple[str, str]:
    return files.certificate(name).read_text(), files.key(name).read_text()


@pytest.fixture(scope="module")
def current(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Certificates that are good today."""
    made = Files(tmp_path_factory.mktemp("today"))
    certificates.ensure(made, [SERVER, *CLIENTS], int(time.time()))
    return made


def test_the_administrators_certificate_names_them(current: Files, tmp_path: Path) -> None:
    peer = peer_of(current, tmp_path, own(current, "admin"))
    assert peer is not None
    assert peer["subject"] == ((("organizationName", "system:masters"),), (("commonName", "kubernetes-admin"),))
    assert not peer_of(current, tmp_path, None)


@pytest.mark.slow
def test_a_new_certificate_of_a_user_is_believed(current: Files, tmp_path: Path) -> None:
    wanted = certificates.client("user", "ann", ["dev", "ops"], days=1)
    pair = certificates.issue(current, wanted, int(time.time()))
    peer = peer_of(current, tmp_path, pair)
    assert peer is not None
    assert [value for part in peer["subject"] for _, value in part] == ["dev", "ops", "ann"]


def hostile(current: Files, other: Delivery) -> dict[str, Any]:
    authority = own(current, AUTHORITY)
    early = Order(now=1_000_000_000, wanted=(ADMIN,), authority=None)
    old = certificate_worker.deliver(early)
    assert old.authority is not None
    expired = certificate_worker.deliver(msgspec.structs.replace(early, authority=authority)).pairs["admin"]
    return {
        "of another authority": other.pairs["admin"],
        "of the server": own(current, "apiserver"),
        "expired": expired,
        "signed by itself": old.authority,
    }


@pytest.mark.parametrize("kind", ["of another authority", "of the server", "expired", "signed by itself"])
def test_hostile_certificates_are_refused(current: Files, other: Delivery, tmp_path: Path, kind: str) -> None:
    with pytest.raises(ssl.SSLError):
        peer_of(current, tmp_path, hostile(current, other)[kind])


def test_an_authority_that_is_renewed_is_the_same_to_what_it_signed(current: Files, tmp_path: Path) -> None:
    mine = copied(current, tmp_path / "api")
    authority = own(mine, AUTHORITY)
    order = Order(now=int(time.time()) + DAY, authority=authority, new_authority=True)
    renewed = certificate_worker.deliver(msgspec.structs.replace(order, now=int(time.time())))
    assert renewed.authority is not None
    mine.certificate(AUTHORITY).write_text(renewed.authority.certificate)
    assert renewed.authority.certificate != authority[0]
    assert peer_of(mine, tmp_path, own(mine, "admin")) is not None


# kubeconfig


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "https://127.0.0.1:6443"),
        ("0.0.0.0", "https://127.0.0.1:6443"),
        ("::", "https://[::1]:6443"),
        ("fd00::1", "https://[fd00::1]:6443"),
    ],
)
def test_where_clients_find_the_api(host: str, url: str) -> None:
    assert server_url(host, 6443) == url


def test_kubeconfigs_are_written_when_they_differ(current: Files, tmp_path: Path) -> None:
    mine = copied(current, tmp_path / "api")
    written = write_all(mine, "https://127.0.0.1:6443")
    assert [path.name for path in written] == ["admin.conf", "scheduler.conf", "controller-manager.conf"]
    assert {path.stat().st_mode & 0o777 for path in written} == {0o600}
    assert write_all(mine, "https://127.0.0.1:6443") == []
    assert len(write_all(mine, "https://127.0.0.1:7443")) == 3


def test_the_kubeconfig_of_a_node_names_files_which_are_read_again(current: Files, tmp_path: Path) -> None:
    """An agent runs for longer than a certificate is good, and reads its kubeconfig once."""
    mine = copied(current, tmp_path / "api")
    *_, written = write_all(mine, "https://127.0.0.1:6443", "n1")
    assert (written.name, written.stat().st_mode & 0o777) == ("kubelet.conf", 0o600)
    value = msgspec.yaml.decode(written.read_bytes())
    assert is_own(written.read_bytes())
    assert value["clusters"][0]["cluster"]["certificate-authority"] == str(mine.certificate(AUTHORITY))
    assert value["users"][0] == {
        "name": "system:node:n1",
        "user": {"client-certificate": str(mine.certificate("kubelet")), "client-key": str(mine.key("kubelet"))},
    }


def test_a_kubeconfig_is_what_clients_read() -> None:
    value = msgspec.yaml.decode(kubeconfig("https://x:1", "CA", 'a: "b"\n', ("CERT", "KEY")))
    assert value["current-context"] == value["contexts"][0]["name"] == 'a: "b"\n@podkeep'
    assert value["contexts"][0]["context"] == {"cluster": "podkeep", "user": 'a: "b"\n'}
    assert value["clusters"][0]["cluster"] == {"certificate-authority-data": "Q0E=", "server": "https://x:1"}
    assert value["users"][0]["user"] == {"client-certificate-data": "Q0VSVA==", "client-key-data": "S0VZ"}
