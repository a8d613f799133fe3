"""Makes keys and certificates, in a process of its own: reads an order from standard input, writes what it made.

Keys leave it through the pipe to the process that started it, and are never on its command line or in a file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import msgspec
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from podkeep.apiserver.server.certificate_orders import AUTHORITY_DAYS, Delivery, Order, Pair, Wanted

_BACKDATED = timedelta(days=1)
"""By which the clocks of clients may be behind, and our own one be set back: it may have been off by a time zone."""
_Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def main() -> None:
    """Read an order, write the delivery."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    sys.stdout.buffer.write(msgspec.json.encode(deliver(order)))


def deliver(order: Order) -> Delivery:
    now = datetime.fromtimestamp(order.now, UTC)
    try:
        authority, key = _authority(order, now)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        return Delivery(problem=f"the API's authority cannot be used: {error}")
    pairs = {}
    for wanted in order.wanted:
        try:
            pairs[wanted.name] = _leaf(wanted, authority, key, now)
        except ValueError as error:  # a name that is too long for a certificate, or no name
            return Delivery(problem=f"a certificate of {wanted.common_name[:100]!r} cannot be made: {error}")
    made = _pair(authority, key)
    return Delivery(authority=made, pairs=pairs, accounts=_accounts() if order.accounts_key else None)


def _authority(order: Order, now: datetime) -> tuple[x509.Certificate, _Key]:
    if order.authority is None:
        key: _Key = ec.generate_private_key(ec.SECP256R1())
        return _self_signed(key, x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubernetes")]), now), key
    certificate = x509.load_pem_x509_certificate(order.authority[0].encode("latin-1"))
    loaded = serialization.load_pem_private_key(order.authority[1].encode("latin-1"), password=None)
    if not isinstance(loaded, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise ValueError("its key is neither RSA nor ECDSA")
    if certificate.public_key() != loaded.public_key():
        raise ValueError("its key is another certificate's")
    if order.new_authority:
        # With the same key and name, whatever it signed is still good.
        return _self_signed(loaded, certificate.subject, now), loaded
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    if not constraints.value.ca:
        raise ValueError("its certificate is no authority's")
    if certificate.not_valid_after_utc <= now:
        raise ValueError(f"its certificate has expired at {certificate.not_valid_after_utc:%Y-%m-%d %H:%M:%S}")
    return certificate, loaded


def _self_signed(key: _Key, name: x509.Name, now: datetime) -> x509.Certificate:
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_usage(authority=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _leaf(wanted: Wanted, authority: x509.Certificate, signer: _Key, now: datetime) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    end = min(now + timedelta(days=wanted.days), authority.not_valid_after_utc)
    usages = [ExtendedKeyUsageOID.SERVER_AUTH] * wanted.server + [ExtendedKeyUsageOID.CLIENT_AUTH] * wanted.client
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name(_subject(wanted)))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if names := list(_alternatives(wanted)):
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return _pair(builder.sign(signer, hashes.SHA256()), key)


def _subject(wanted: Wanted) -> Iterator[x509.NameAttribute[str]]:
    for organization in wanted.organizations:
        yield x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization)
    yield x509.NameAttribute(NameOID.COMMON_NAME, wanted.common_name)


def _alternatives(wanted: Wanted) -> Iterator[x509.GeneralName]:
    for name in wanted.dns_names:
        yield x509.DNSName(name)
    for address in wanted.addresses:
        yield x509.IPAddress(ip_address(address))


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pair(certificate: x509.Certificate, key: _Key) -> Pair:
    return Pair(
        certificate=certificate.public_bytes(serialization.Encoding.PEM).decode(),
        key=_private(key),
        not_before=int(certificate.not_valid_before_utc.timestamp()),
        not_after=int(certificate.not_valid_after_utc.timestamp()),
    )


def _private(key: _Key) -> str:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


def _accounts() -> tuple[str, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return _private(key), key.public_key().public_bytes(serialization.Encoding.PEM, form).decode()
