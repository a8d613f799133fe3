"""Makes keys and certificate requests, and reads certificates, in a process of its own.

Keys leave it through the pipe to the process that started it, and are never on its command line or in a file.
"""

from __future__ import annotations

import sys
from ipaddress import ip_address

import msgspec
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from podkeep.agent.certificates.orders import Delivery, Order, Subject

_Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def main() -> None:
    """Read an order, write the delivery."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    try:
        delivery = _request(order.subject, order.key) if order.subject is not None else _read(order)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        delivery = Delivery(problem=f"the certificate or key cannot be used: {error}")
    sys.stdout.buffer.write(msgspec.json.encode(delivery))


def _request(subject: Subject, given: str) -> Delivery:
    key = _loaded(given) if given else ec.generate_private_key(ec.SECP256R1())
    names = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, name) for name in subject.organizations]
    names.append(x509.NameAttribute(NameOID.COMMON_NAME, subject.common_name))
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(names))
    others: list[x509.GeneralName] = [x509.DNSName(name) for name in subject.dns_names]
    others += [x509.IPAddress(ip_address(address)) for address in subject.addresses]
    if others:
        builder = builder.add_extension(x509.SubjectAlternativeName(others), critical=False)
    public = serialization.PublicFormat.SubjectPublicKeyInfo
    return Delivery(
        key=key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode(),
        request=builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode(),
        public_key=key.public_key().public_bytes(serialization.Encoding.DER, public),
    )


def _loaded(pem: str) -> _Key:
    key = serialization.load_pem_private_key(pem.encode(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise ValueError("its key is neither RSA nor ECDSA")
    return key


def _read(order: Order) -> Delivery:
    certificate = x509.load_pem_x509_certificates(order.certificate.encode())[0]
    if order.key and _loaded(order.key).public_key() != certificate.public_key():
        raise ValueError("the key is another certificate's")
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return Delivery(
        not_before=int(certificate.not_valid_before_utc.timestamp()),
        not_after=int(certificate.not_valid_after_utc.timestamp()),
        common_name=str(names[0].value) if names else "",
    )
