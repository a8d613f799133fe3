"""Certificates of a node: what is asked for, when it is renewed, where it is kept."""

from __future__ import annotations

import asyncio
import base64
import os
import stat
from pathlib import Path

import pytest
from cryptography import x509

from podkeep.agent.certificates import orders
from podkeep.agent.certificates.manager import (
    CLIENT_SIGNER,
    certificate_of,
    client_certificate,
    renew_at,
    request_name,
    serving_certificate,
)
from podkeep.agent.certificates.orders import Order
from podkeep.agent.certificates.store import CertificateStore
from podkeep.base.errors import FailedPrecondition, PermissionDenied


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
