"""What others verify tokens with."""

from __future__ import annotations

import base64

import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from podkeep.apiserver.auth.jwt import read_signing_key
from podkeep.apiserver.discovery import openid


def _integer(text: str) -> int:
    return int.from_bytes(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), "big")


@pytest.mark.parametrize("kind", ["RSA", "EC"])
def test_the_keys_of_tokens_are_published(kind: str) -> None:
    private: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
    private = rsa.generate_private_key(65537, 2048) if kind == "RSA" else ec.generate_private_key(ec.SECP256R1())
    form = serialization.PrivateFormat.PKCS8
    pem = private.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    key = read_signing_key(pem).public
    found = openid.documents("https://issuer", "https://10.0.0.9:6443", [key])

    content_type, body = found["/.well-known/openid-configuration"]
    assert content_type == "application/json"
    assert msgspec.json.decode(body) == {
        "issuer": "https://issuer",
        "jwks_uri": "https://10.0.0.9:6443/openid/v1/jwks",
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": [key.algorithm],
    }
    content_type, body = found["/openid/v1/jwks"]
    assert content_type == "application/jwk-set+json"
    (published,) = msgspec.json.decode(body)["keys"]
    assert (published["use"], published["kid"], published["kty"]) == ("sig", key.identifier, kind)
    if isinstance(private, rsa.RSAPrivateKey):
        numbers = private.public_key().public_numbers()
        assert (_integer(published["n"]), published["e"], published["alg"]) == (numbers.n, "AQAB", "RS256")
    else:
        point = private.public_key().public_numbers()
        assert (_integer(published["x"]), _integer(published["y"])) == (point.x, point.y)
        assert (published["crv"], published["alg"], len(published["x"])) == ("P-256", "ES256", 43)
