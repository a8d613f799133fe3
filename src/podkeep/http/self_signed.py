"""A certificate that a server made for itself, for clients that do not verify it (kubelet: ``kubelet.crt``).

It is made in a process of its own, since what that needs takes 20 MB; the key comes back through a pipe.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import msgspec

from podkeep.base import atomicfile, spawn

_DAYS = 365
_TIMEOUT_S = 60.0
_BACKDATED = timedelta(minutes=5)
"""By which the clocks of clients may be behind."""
_RENEWED_S = 30 * 24 * 3600
"""Before its end, if the server starts then."""


class _Order(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be made."""

    name: str
    dns_names: tuple[str, ...]
    addresses: tuple[str, ...]
    now: float


def ensure(certificate: Path, key: Path, name: str, dns_names: Sequence[str], addresses: Sequence[str]) -> None:
    """Make a certificate and its key, unless there are some that are good for a while; blocks.

    :param name: who it is for: its common name.
    """
    now = time.time()
    try:
        # The file's time stands for the certificate's: to read that would take the 20 MB of memory in this process.
        if key.exists() and certificate.stat().st_mtime + _DAYS * 24 * 3600 - now > _RENEWED_S:
            return
    except FileNotFoundError:
        pass
    order = _Order(name=name, dns_names=tuple(dns_names), addresses=tuple(addresses), now=now)
    made = spawn.run(spawn.own_command(__name__), stdin=msgspec.json.encode(order), timeout=_TIMEOUT_S).check()
    pair = msgspec.json.decode(made.stdout, type=tuple[str, str])
    certificate.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # The certificate last, whose time tells that both are good: what is interrupted before is made anew.
    atomicfile.write(key, pair[1].encode())
    atomicfile.write(certificate, pair[0].encode())


def _made(order: _Order) -> tuple[str, str]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, order.name[:64])])
    start = datetime.fromtimestamp(order.now, UTC) - _BACKDATED
    others: list[x509.GeneralName] = [x509.DNSName(item) for item in order.dns_names]
    others += [x509.IPAddress(ip_address(item)) for item in order.addresses]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=_DAYS))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(others), critical=False)
        .sign(key, hashes.SHA256())
    )
    form = serialization.PrivateFormat.PKCS8
    private = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    return certificate.public_bytes(serialization.Encoding.PEM).decode(), private.decode()


def main() -> None:
    """Read an order from standard input, write the pair."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=_Order)
    sys.stdout.buffer.write(msgspec.json.encode(_made(order)))
