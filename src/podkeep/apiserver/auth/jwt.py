"""JSON Web Tokens in their compact form (RFC 7519, RFC 7515), signed with RS256 or ES256.

Owns keys and signatures; what a token says is not looked at here. ``cryptography`` takes 10 MB, which an API whose
clients have certificates alone does not need: with a key as podkeep makes it, it is imported when the first token is
signed or verified.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from podkeep.base.errors import FailedPrecondition
from podkeep.base.frozen import FrozenStruct

MAX_CHARACTERS = 16 << 10
"""Of a token; those of service accounts have some 1,200."""
_MIN_RSA_BITS = 2048
_ES256_BYTES = 32
"""Of each of the two numbers that a signature is."""
_PEM = b"-----BEGIN PRIVATE KEY-----\n", b"-----END PRIVATE KEY-----"
# PKCS #8 with a key of RFC 5915 on P-256, which is followed by its public point; and the public key in X.509.
_PKCS8_P256 = bytes.fromhex("308187020100301306072a8648ce3d020106082a8648ce3d030107046d306b0201010420")
_POINT_OF_PKCS8 = bytes.fromhex("a14403420004")
_SPKI_P256 = bytes.fromhex("3059301306072a8648ce3d020106082a8648ce3d03010703420004")


class InvalidToken(Exception):
    """A token that is not taken; the text is for whoever asks about it (TokenReview), never the token itself."""


class VerificationKey(FrozenStruct, kw_only=True):
    """A public key. ``identifier`` is that of ``kid``; ``verify`` tells whether a signature is right."""

    identifier: str
    algorithm: str
    verify: Callable[[bytes, bytes], bool]
    numbers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """What the key consists of, as members of a JSON Web Key (RFC 7518, section 6)."""

    @property
    def web_key(self) -> dict[str, str]:
        """The JSON Web Key (RFC 7517) with which others verify tokens."""
        return {"use": "sig", "kid": self.identifier, "alg": self.algorithm, **self.numbers}


class SigningKey(FrozenStruct, kw_only=True):
    """A private key, and the public one of it."""

    public: VerificationKey
    sign: Callable[[bytes], bytes]


class _Header(msgspec.Struct, forbid_unknown_fields=False):
    alg: str = ""
    kid: str = ""
    crit: Any = None


_encode = msgspec.json.Encoder().encode
_header = msgspec.json.Decoder(_Header).decode


def encode(claims: Any, key: SigningKey) -> str:
    header = {"alg": key.public.algorithm, "kid": key.public.identifier}
    signed = f"{_base64(_encode(header))}.{_base64(_encode(claims))}"
    return f"{signed}.{_base64(key.sign(signed.encode()))}"


def split(token: str) -> tuple[bytes, bytes, bytes] | None:
    """Return header, payload and signature of what looks like a token, none of them verified; None: it is not one."""
    # Whoever sends this is nobody yet: what is decoded and hashed for them has a bound.
    parts = token.split(".", 3) if len(token) <= MAX_CHARACTERS else ()
    if len(parts) != 3:
        return None
    try:
        header, payload, signature = map(_bytes, parts)
    except (binascii.Error, ValueError):
        return None
    return header, payload, signature


def verify(token: str, keys: Mapping[str, VerificationKey]) -> bytes:
    """Return the payload of a token that one of the keys signed.

    :param keys: by their identifiers. The token's header chooses one; it never chooses the algorithm.
    :raises InvalidToken: if it is malformed, or none of them did.
    """
    parts = split(token)
    if parts is None:
        raise InvalidToken("the token is malformed")
    try:
        header = _header(parts[0])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InvalidToken("the token's header is malformed") from None
    # Extensions that are not understood make the token invalid (RFC 7515, section 4.1.11).
    if header.crit is not None:
        raise InvalidToken("the token's header has critical extensions, none of which is known")
    candidates = keys.values() if not header.kid else filter(None, [keys.get(header.kid)])
    found = list(candidates)
    if not found:
        raise InvalidToken("invalid signature, no keys found")
    signed = token.rpartition(".")[0].encode()
    # No key has `none` as its algorithm, nor HMAC, for which a public key would do as the secret.
    if not any(key.algorithm == header.alg and key.verify(signed, parts[2]) for key in found):
        raise InvalidToken("invalid signature")
    return parts[1]


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    if "=" in text or not text.isascii():
        raise ValueError
    data = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
    if _base64(data) != text:  # bits after the last byte: the same token in another form
        raise ValueError
    return data


def read_signing_key(pem: bytes) -> SigningKey:
    """Return a private key.

    :param pem: RSA of 2048 bits or more, or ECDSA on P-256; without a password. That a key on P-256 is right, if it has
        the form of those that podkeep makes, is told by :meth:`SigningKey.sign` and :meth:`VerificationKey.verify`.
    :raises FailedPrecondition: if it is something else.
    """
    point = _public_point(pem)
    if point is None:
        return _loaded(pem)
    # One turn of the event loop takes the 15 ms for it, once.
    load = cache(lambda: _loaded(pem))
    public = _public_p256(point, lambda data, signature: load().public.verify(data, signature))
    return SigningKey(public=public, sign=lambda data: load().sign(data))


def _public_point(pem: bytes) -> bytes | None:
    """Return both coordinates of a key's public point; None: it has another form than the keys that podkeep makes."""
    start, end = _PEM
    text = pem.strip()
    if not text.startswith(start) or not text.endswith(end):
        return None
    try:
        der = base64.b64decode(text.removeprefix(start).removesuffix(end).replace(b"\n", b""), validate=True)
    except binascii.Error:
        return None
    secret = len(_PKCS8_P256) + _ES256_BYTES
    point = der[secret + len(_POINT_OF_PKCS8) :]
    is_ours = der.startswith(_PKCS8_P256) and der.startswith(_POINT_OF_PKCS8, secret) and len(point) == 2 * _ES256_BYTES
    return point if is_ours else None


def _loaded(pem: bytes) -> SigningKey:
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise _unusable(str(error)) from None
    if isinstance(key, rsa.RSAPrivateKey):
        rsa_key = key

        def sign_rsa(data: bytes) -> bytes:
            return rsa_key.sign(data, padding.PKCS1v15(), hashes.SHA256())

        return SigningKey(public=_verification_key(key.public_key()), sign=sign_rsa)
    if isinstance(key, ec.EllipticCurvePrivateKey):
        ec_key = key

        def sign_ec(data: bytes) -> bytes:
            # OpenSSL has both numbers as DER, a token side by side (RFC 7518, section 3.4).
            pair = decode_dss_signature(ec_key.sign(data, ec.ECDSA(hashes.SHA256())))
            return b"".join(number.to_bytes(_ES256_BYTES, "big") for number in pair)

        return SigningKey(public=_verification_key(key.public_key()), sign=sign_ec)
    raise _unusable("it is neither RSA nor ECDSA")


def read_verification_keys(pem: bytes) -> Sequence[VerificationKey]:
    """Return the public keys of a PEM file, or the public one of a private key.

    :raises FailedPrecondition: if there are none, or one that cannot be used.
    """
    from cryptography.hazmat.primitives import serialization

    if b"PRIVATE KEY" in pem:
        return [read_signing_key(pem).public]
    end = b"-----END PUBLIC KEY-----"
    blocks = [block + end for block in pem.split(end)[:-1]]
    try:
        found = [_verification_key(serialization.load_pem_public_key(block.strip())) for block in blocks]
    except (ValueError, TypeError) as error:
        raise _unusable(str(error)) from None
    if not found:
        raise _unusable("it is no PEM file of public keys")
    return found


def _verification_key(key: Any) -> VerificationKey:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

    def verify_rsa(data: bytes, signature: bytes) -> bool:
        try:
            key.verify(signature, data, padding.PKCS1v15(), hashes.SHA256())
        except InvalidSignature:
            return False
        return True

    def verify_ec(data: bytes, signature: bytes) -> bool:
        if len(signature) != 2 * _ES256_BYTES:
            return False
        first, second = signature[:_ES256_BYTES], signature[_ES256_BYTES:]
        encoded = encode_dss_signature(int.from_bytes(first, "big"), int.from_bytes(second, "big"))
        try:
            key.verify(encoded, data, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return False
        return True

    if isinstance(key, rsa.RSAPublicKey):
        if key.key_size < _MIN_RSA_BITS:
            raise _unusable(f"it has {key.key_size} bits, and RSA needs {_MIN_RSA_BITS}")
        values = key.public_numbers()
        numbers = {"kty": "RSA", "n": _number(values.n), "e": _number(values.e)}
        der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        return _public("RS256", der, verify_rsa, numbers)
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        point = key.public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)
        return _public_p256(point.removeprefix(b"\x04"), verify_ec)
    raise _unusable("it is neither RSA nor ECDSA on P-256")


def _public_p256(point: bytes, verify: Callable[[bytes, bytes], bool]) -> VerificationKey:
    first, second = point[:_ES256_BYTES], point[_ES256_BYTES:]
    numbers = {"kty": "EC", "crv": "P-256", "x": _base64(first), "y": _base64(second)}
    return _public("ES256", _SPKI_P256 + point, verify, numbers)


def _public(
    algorithm: str, der: bytes, verify: Callable[[bytes, bytes], bool], numbers: Mapping[str, str]
) -> VerificationKey:
    # As kube-apiserver derives it, so that tokens say which key they need, and not what it is.
    identifier = _base64(hashlib.sha256(der).digest())
    return VerificationKey(identifier=identifier, algorithm=algorithm, verify=verify, numbers=numbers)


def _number(number: int) -> str:
    """Return a number of a JSON Web Key."""
    return _base64(number.to_bytes(max(1, (number.bit_length() + 7) // 8), "big"))


def _unusable(why: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"a key of service accounts' tokens cannot be used: {why}", hint="use RSA of 2048 bits or more, or P-256"
    )
