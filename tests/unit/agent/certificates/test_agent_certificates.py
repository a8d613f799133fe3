"""Certificates of a node: what is asked for, when it is renewed, where it is kept."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from podkeep.agent.certificates import orders
from podkeep.agent.certificates.manager import (
    CLIENT_SIGNER,
    CertificateManager,
    certificate_of,
    client_certificate,
    renew_at,
    request_name,
    serving_certificate,
)
from podkeep.agent.certificates.orders import Order
from podkeep.agent.certificates.store import CertificateStore
from podkeep.base.backoff import Backoff
from podkeep.base.errors import FailedPrecondition, PermissionDenied
from podkeep.client.client import Client
from podkeep.client.settings import Settings


def test_renewal_is_between_seventy_and_ninety_percent() -> None:
    assert renew_at(1000, 2000, 0.0) == 1700
    assert renew_at(1000, 2000, 1.0) == pytest.approx(1900)


def test_the_name_of_a_request_follows_from_the_key() -> None:
    kind = client_certificate("n1")
    assert kind.signer == CLIENT_SIGNER
    assert request_name(kind, b"key") == request_name(kind, b"key")
    others = {request_name(kind, b"other"), request_name(client_certificate("n2"), b"key")}
    assert request_name(kind, b"key") not in others
    assert len(request_name(kind, b"key")) <= 63


@pytest.mark.slow
def test_a_request_is_for_its_subject() -> None:
    kind = serving_certificate("n1", ("n1.example",), ("192.0.2.1",))
    made = asyncio.run(orders.deliver(Order(subject=kind.subject)))
    request = x509.load_pem_x509_csr(made.request.encode())
    assert request.subject.rfc4514_string() == "CN=system:node:n1,O=system:nodes"
    names = request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == ["n1.example", "192.0.2.1"]
    assert request.is_signature_valid
    again = asyncio.run(orders.deliver(Order(subject=kind.subject, key=made.key)))
    assert again.public_key == made.public_key


@pytest.mark.slow
def test_what_is_no_certificate() -> None:
    with pytest.raises(FailedPrecondition, match="cannot be used"):
        asyncio.run(orders.deliver(Order(certificate="none")))


def test_an_answer_to_a_request() -> None:
    assert certificate_of({"status": {}}) == ""
    data = base64.b64encode(b"PEM").decode()
    assert certificate_of({"status": {"certificate": data}}) == "PEM"
    denied = {"type": "Denied", "reason": "No", "message": "who are you"}
    with pytest.raises(PermissionDenied, match="node-csr-1 is denied, reason: No, message: who are you"):
        certificate_of({"metadata": {"name": "node-csr-1"}, "status": {"conditions": [denied]}})


def test_what_is_signed_and_no_certificate() -> None:
    for data in ("=", "w6k="):
        with pytest.raises(FailedPrecondition, match="certificate signing request node-csr-1 is no PEM"):
            certificate_of({"metadata": {"name": "node-csr-1"}, "status": {"certificate": data}})


Sign = Callable[[x509.CertificateSigningRequest], str]
CLIENT = client_certificate("n1")


def signed(request: x509.CertificateSigningRequest, *, name: str = CLIENT.subject.common_name, days: int = 1) -> str:
    """Return a certificate for a request, as a CertificateSigningRequest has it; it ends in so many days."""
    issuer, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(request.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=9))
        .not_valid_after(now + timedelta(days=days))
        .sign(issuer, hashes.SHA256())
    )
    return base64.b64encode(made.public_bytes(serialization.Encoding.PEM)).decode()


class Signer:
    """An API that knows nothing but requests for certificates, and answers them one after the other.

    None: the request waits, and its watch ends at once.
    """

    def __init__(self, *answers: Sign | None) -> None:
        self._answers = list(answers)
        self._asked: dict[str, Any] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readline():
            length = 0
            while (line := await reader.readline()).strip():
                name, _, value = line.partition(b":")
                length = int(value) if name.lower() == b"content-length" else length
            body = await reader.readexactly(length)
            found = b"" if b"watch=true" in head else json.dumps(self._answer(body)).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(found), found))
        writer.close()

    def _answer(self, body: bytes) -> dict[str, Any]:
        if body:
            self._asked = json.loads(body)
            return self._asked
        sign = self._answers.pop(0)
        request = x509.load_pem_x509_csr(base64.b64decode(self._asked["spec"]["request"]))
        status = {} if sign is None else {"certificate": sign(request)}
        return {"metadata": {"resourceVersion": "1"}, "items": [self._asked | {"status": status}]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answers", "waits"),
    [
        ((None, None, signed), 2),
        ((lambda _: "=", signed), 1),
        ((partial(signed, days=-1), signed), 1),
        ((partial(signed, name="system:node:n2"), signed), 1),
    ],
    ids=["watches that end at once", "no base64", "expired", "another's"],
)
def test_an_api_that_gives_nothing_usable_is_not_asked_without_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: tuple[Sign | None, ...], waits: int
) -> None:
    """It was asked as fast as it answered, and each time a key was made, and the certificate that was good replaced."""
    waited: list[Backoff] = []

    def counted(backoff: Backoff) -> float:
        waited.append(backoff)
        return 0.0

    monkeypatch.setattr(Backoff, "next", counted)

    async def main() -> None:
        server = await asyncio.start_unix_server(Signer(*answers).serve, tmp_path / "s")
        client = Client(Settings(server=f"unix://{tmp_path}/s"))
        manager = CertificateManager(CertificateStore(tmp_path / "pki", "kubelet-client"), CLIENT)
        try:
            await manager.obtain(client)
            assert await manager.current() is not None
        finally:
            await client.close()
            server.close()

    asyncio.run(main())
    assert len(waited) == waits


def test_the_current_pair_is_replaced_at_once(tmp_path: Path) -> None:
    store = CertificateStore(tmp_path / "pki", "kubelet-client")
    assert store.read() == ""
    store.keep_pending_key("KEY")
    assert store.pending_key() == "KEY"
    store.replace("CERT", "KEY")
    assert store.read() == "CERT\nKEY\n"
    assert store.pending_key() == ""
    assert store.current.is_symlink()
    assert stat.S_IMODE(os.stat(store.current).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(tmp_path / "pki").st_mode) == 0o700
    store.replace("CERT 2", "KEY 2")
    assert store.read() == "CERT 2\nKEY 2\n"
