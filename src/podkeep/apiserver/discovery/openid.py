"""What others need to verify service accounts' tokens (OpenID Connect Discovery; ``serviceaccount/openidmetadata``).

RBAC decides who reads it: ``system:service-account-issuer-discovery``, bound to all service accounts. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from podkeep.apiserver.auth.jwt import VerificationKey

CONFIGURATION = "/.well-known/openid-configuration"
KEYS = "/openid/v1/jwks"
CACHE_CONTROL = "public, max-age=3600"


def documents(issuer: str, base: str, keys: Sequence[VerificationKey]) -> Mapping[str, tuple[str, bytes]]:
    """Return the documents with their content types, by path.

    :param base: URL of the API, without a path.
    """
    configuration = {
        "issuer": issuer,
        "jwks_uri": f"{base}{KEYS}",
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": sorted({key.algorithm for key in keys}),
    }
    return {
        CONFIGURATION: ("application/json", msgspec.json.encode(configuration)),
        KEYS: ("application/jwk-set+json", msgspec.json.encode({"keys": [key.web_key for key in keys]})),
    }
