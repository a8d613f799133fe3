"""Bearer tokens: of files and of service accounts, good, bad and hostile."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.hmac import HMAC

from podkeep.apiserver.auth import jwt
from podkeep.apiserver.auth.authenticators import BearerAuthenticator
from podkeep.apiserver.auth.jwt import InvalidToken, SigningKey
from podkeep.apiserver.auth.service_account_tokens import ServiceAccountTokens
from podkeep.apiserver.auth.signed_tokens import REMEMBERED_TOKENS
from podkeep.apiserver.auth.token_request import request_token
from podkeep.apiserver.auth.tokens import StaticTokens, read_static_tokens
from podkeep.apiserver.auth.user import User
from podkeep.apiserver.meta.status import StatusError
from podkeep.base.errors import FailedPrecondition, InvalidArgument
from support.objects import Objects

ISSUER = "https://kubernetes.default.svc.cluster.local"
NOW = datetime(2026, 11, 23, 12, 0, 0, tzinfo=UTC)


def pem(key: Any) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    data: bytes = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    return data


def public_pem(key: Any) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    data: bytes = key.public_key().public_bytes(serialization.Encoding.PEM, form)
    return data


RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
KEYS = {"RS256": RSA, "ES256": EC}
SIGNING = {name: jwt.read_signing_key(pem(key)) for name, key in KEYS.items()}
OTHER_EC = ec.generate_private_key(ec.SECP256R1())
OTHER = jwt.read_signing_key(pem(OTHER_EC))


def account(uid: str = "u-sa", **more: Any) -> dict[str, Any]:
    return {"kind": "ServiceAccount", "metadata": {"name": "robot", "namespace": "ns", "uid": uid, **more}}


def pod(uid: str = "u-pod", node: str = "n1", name: str = "robot", **more: Any) -> dict[str, Any]:
    spec = {"serviceAccountName": name} | ({"nodeName": node} if node else {})
    return {"kind": "Pod", "metadata": {"name": "web", "namespace": "ns", "uid": uid, **more}, "spec": spec}


def node(uid: str = "u-node", **more: Any) -> dict[str, Any]:
    return {"kind": "Node", "metadata": {"name": "n1", "uid": uid, **more}}


def secret(uid: str = "u-secret", **more: Any) -> dict[str, Any]:
    return {"kind": "Secret", "metadata": {"name": "s", "namespace": "ns", "uid": uid, **more}}


class World:
    """Service accounts' tokens over objects, at a time that can be set."""

    def __init__(self, algorithm: str = "ES256") -> None:
        self.objects = Objects(account(), pod(), node(), secret())
        self.now = NOW
        self.signing = SIGNING[algorithm]
        self.tokens = ServiceAccountTokens(
            ISSUER, [ISSUER], self.signing, self.objects, now=lambda: self.now.timestamp()
        )

    def request(self, **spec: Any) -> dict[str, Any]:
        value = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": {}, "spec": spec}
        return request_token(value, ("ns", "robot"), self.objects, self.tokens, now=self.now)

    def token(self, **spec: Any) -> str:
        text: str = self.request(**spec)["status"]["token"]
        return text


def bound(kind: str, name: str, uid: str = "") -> dict[str, Any]:
    return {"boundObjectRef": {"apiVersion": "v1", "kind": kind, "name": name} | ({"uid": uid} if uid else {})}


def claims(token: str) -> dict[str, Any]:
    payload = token.split(".")[1]
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(payload + "=="))
    return found


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
def test_a_token_is_a_users(algorithm: str) -> None:
    world = World(algorithm)
    token = world.token()
    found = world.tokens.authenticate(token)
    assert found is not None
    jti = claims(token)["jti"]
    assert found.user == User(
        name="system:serviceaccount:ns:robot",
        uid="u-sa",
        groups=("system:serviceaccounts", "system:serviceaccounts:ns"),
        extra={"authentication.kubernetes.io/credential-id": (f"JTI={jti}",)},
    )
    assert found.audiences == (ISSUER,)
    header = json.loads(base64.urlsafe_b64decode(token.split(".")[0] + "=="))
    assert header == {"alg": algorithm, "kid": world.signing.public.identifier}


def test_a_pods_token_has_upstreams_claims() -> None:
    world = World()
    answer = world.request(expirationSeconds=600, audiences=["a", ISSUER], **bound("Pod", "web", "u-pod"))
    found = claims(answer["status"]["token"])
    start = int(NOW.timestamp())
    assert found == {
        "aud": ["a", ISSUER],
        "exp": start + 600,
        "iat": start,
        "iss": ISSUER,
        "jti": found["jti"],
        "kubernetes.io": {
            "namespace": "ns",
            "node": {"name": "n1", "uid": "u-node"},
            "pod": {"name": "web", "uid": "u-pod"},
            "serviceaccount": {"name": "robot", "uid": "u-sa"},
        },
        "nbf": start,
        "sub": "system:serviceaccount:ns:robot",
    }
    assert answer["status"]["expirationTimestamp"] == "2026-11-23T12:10:00Z"
    assert answer["metadata"] == {
        "name": "robot",
        "namespace": "ns",
        "uid": "u-sa",
        "creationTimestamp": "2026-11-23T12:00:00Z",
    }
    user = world.tokens.authenticate(answer["status"]["token"])
    assert user is not None
    assert {key.rpartition("/")[2]: value for key, value in user.user.extra.items() if "JTI" not in value[0]} == {
        "pod-name": ("web",),
        "pod-uid": ("u-pod",),
        "node-name": ("n1",),
        "node-uid": ("u-node",),
    }


@pytest.mark.parametrize(
    ("spec", "lasts", "warns"),
    [
        ({}, 3600, None),
        ({"expirationSeconds": 3607}, 3607, None),
        ({"expirationSeconds": 3607, **bound("Pod", "web")}, 365 * 24 * 3600, 3607),
        ({"expirationSeconds": 3607, "audiences": ["vault"], **bound("Pod", "web")}, 3607, None),
        ({"expirationSeconds": 600, **bound("Secret", "s", "u-secret")}, 600, None),
        ({"expirationSeconds": 600, **bound("Node", "n1")}, 600, None),
    ],
)
def test_how_long_a_token_lasts(spec: dict[str, Any], lasts: int, warns: int | None) -> None:
    found = claims(World().token(**spec))
    start = int(NOW.timestamp())
    assert found["exp"] - start == lasts
    assert found["kubernetes.io"].get("warnafter") == (None if warns is None else start + warns)


REFUSED_REQUESTS: list[tuple[dict[str, Any], int, str]] = [
    (
        {"expirationSeconds": 599},
        422,
        'TokenRequest.authentication.k8s.io "" is invalid: spec.expirationSeconds: Invalid value: 599: may not specify'
        " a duration less than 10 minutes",
    ),
    (
        {"expirationSeconds": (1 << 32) + 1},
        422,
        'TokenRequest.authentication.k8s.io "" is invalid: spec.expirationSeconds: Invalid value: 4294967297: may not'
        " specify a duration larger than 2^32 seconds",
    ),
    (bound("Pod", "gone"), 404, 'pods "gone" not found'),
    (bound("Secret", "gone"), 404, 'secrets "gone" not found'),
    (bound("Node", "gone"), 404, 'nodes "gone" not found'),
    (
        bound("Pod", "web", "x"),
        409,
        'Operation cannot be fulfilled on Pod "web": the UID in the bound object reference (x) does not match the UID'
        " in record. The object might have been deleted and then recreated",
    ),
    (
        {"audiences": ["x" * 16_384]},
        400,
        "the token would be longer than 16384 characters: name fewer audiences",
    ),
    (bound("ConfigMap", "a"), 400, "cannot bind token to object of type /v1, Kind=ConfigMap"),
    (
        {"boundObjectRef": {"apiVersion": "apps/v1", "kind": "Pod", "name": "a"}},
        400,
        "cannot bind token to object of type apps/v1, Kind=Pod",
    ),
]


@pytest.mark.parametrize(("spec", "code", "message"), REFUSED_REQUESTS)
def test_what_a_token_cannot_be_made_for(spec: dict[str, Any], code: int, message: str) -> None:
    with pytest.raises(StatusError) as caught:
        World().request(**spec)
    assert (caught.value.code, caught.value.message) == (code, message)


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        ({"name": "x"}, 422, "must match the service account name if specified"),
        ({"namespace": "x"}, 422, "must match the service account namespace if specified"),
        ({"uid": "x"}, 409, "the UID in the token request (x) does not match the UID of the service account (u-sa)"),
    ],
)
def test_a_request_is_for_the_account_of_its_path(fields: dict[str, str], code: int, message: str) -> None:
    world = World()
    with pytest.raises(StatusError, match="service account") as caught:
        request_token({"metadata": fields}, ("ns", "robot"), world.objects, world.tokens, now=NOW)
    assert caught.value.code == code
    assert message in caught.value.message


def test_a_token_for_another_pods_account_is_refused() -> None:
    world = World()
    world.objects.put(pod(name="other"))
    with pytest.raises(StatusError, match="pod running with different serviceaccount name"):
        world.request(**bound("Pod", "web"))
    world.objects.delete(account())
    with pytest.raises(StatusError, match='serviceaccounts "robot" not found'):
        world.request()


POD = bound("Pod", "web")
GONE: list[tuple[dict[str, Any], Any, str]] = [
    ({}, lambda objects: objects.delete(account()), 'serviceaccounts "robot" not found'),
    ({}, lambda objects: objects.put(account("new")), "service account UID (new) does not match claim (u-sa)"),
    (
        {},
        lambda objects: objects.put(account(deletionTimestamp="2026-11-23T11:58:00Z")),
        "service account ns/robot has been deleted",
    ),
    ({}, lambda objects: objects.put(account(deletionTimestamp="2026-11-23T11:59:30Z")), ""),
    (POD, lambda objects: objects.delete(pod()), "service account token has been invalidated"),
    (
        POD,
        lambda objects: objects.put(pod("new")),
        "pod UID (new) does not match service account pod ref claim (u-pod)",
    ),
    (
        POD,
        lambda objects: objects.put(pod(deletionTimestamp="2026-11-23T11:58:00Z")),
        "service account token has been invalidated",
    ),
    (POD, lambda objects: objects.delete(node()), ""),
    (bound("Node", "n1"), lambda objects: objects.delete(node()), "service account token has been invalidated"),
    (
        bound("Node", "n1"),
        lambda objects: objects.put(node("new")),
        "node UID (new) does not match service account node ref claim (u-node)",
    ),
    (bound("Secret", "s"), lambda objects: objects.delete(secret()), "service account token has been invalidated"),
    (
        bound("Secret", "s"),
        lambda objects: objects.put(secret("new")),
        "secret UID (new) does not match service account secret ref claim (u-secret)",
    ),
]


@pytest.mark.parametrize(("spec", "change", "problem"), GONE)
def test_a_token_goes_with_what_it_is_bound_to(spec: dict[str, Any], change: Any, problem: str) -> None:
    world = World()
    token = world.token(**spec)
    assert world.tokens.authenticate(token) is not None  # so that its signature is remembered
    change(world.objects)
    assert outcome(world, token) == problem


def outcome(world: World, token: str, audiences: list[str] | None = None) -> str:
    """Return why a token is not taken; empty: it is; ``not ours``: others may know it."""
    try:
        return "not ours" if world.tokens.authenticate(token, audiences) is None else ""
    except InvalidToken as error:
        return str(error)


@pytest.mark.parametrize(
    ("seconds", "problem"),
    [
        (0, ""),
        (3600 + 59, ""),
        (3600 + 61, "service account token has expired"),
        (-59, ""),
        (-61, "service account token is not valid yet"),
    ],
)
def test_a_token_is_good_for_a_time(seconds: int, problem: str) -> None:
    world = World()
    token = world.token()
    world.now = datetime.fromtimestamp(NOW.timestamp() + seconds, UTC)
    assert outcome(world, token) == problem


@pytest.mark.parametrize(
    ("asked", "wanted", "problem"),
    [
        ([], None, ""),
        (["vault"], None, f'token audiences ["vault"] is invalid for the target audiences ["{ISSUER}"]'),
        (["vault"], ["vault", "x"], ""),
        (["vault", ISSUER], None, ""),
        ([], ["vault"], f'token audiences ["{ISSUER}"] is invalid for the target audiences ["vault"]'),
    ],
)
def test_a_token_is_for_its_audiences(asked: list[str], wanted: list[str] | None, problem: str) -> None:
    world = World()
    assert outcome(world, world.token(audiences=asked), wanted) == problem


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def forged(header: dict[str, Any], payload: Any, sign: Any = lambda _: b"") -> str:
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    signed = f"{b64(json.dumps(header).encode())}.{b64(body)}"
    return f"{signed}.{b64(sign(signed.encode()))}"


def good_claims() -> dict[str, Any]:
    return claims(World().token())


def hmac_with_the_public_key(data: bytes) -> bytes:
    keyed = HMAC(public_pem(EC), hashes.SHA256())
    keyed.update(data)
    return keyed.finalize()


KID = SIGNING["ES256"].public.identifier
HOSTILE: list[tuple[str, Any, str]] = [
    ("alg none", lambda good: forged({"alg": "none"}, good), "invalid signature"),
    ("alg None with a key", lambda good: forged({"alg": "None", "kid": KID}, good), "invalid signature"),
    ("no alg", lambda good: forged({"kid": KID}, good, SIGNING["ES256"].sign), "invalid signature"),
    (
        "HMAC with the public key",
        lambda good: forged({"alg": "HS256", "kid": KID}, good, hmac_with_the_public_key),
        "invalid signature",
    ),
    (
        "another algorithm than the key's",
        lambda good: forged({"alg": "RS256", "kid": KID}, good, SIGNING["RS256"].sign),
        "invalid signature",
    ),
    ("another key", lambda good: jwt.encode(good, OTHER), "invalid signature, no keys found"),
    (
        "another key under this one's name",
        lambda good: forged({"alg": "ES256", "kid": KID}, good, OTHER.sign),
        "invalid signature",
    ),
    ("another key without a name", lambda good: forged({"alg": "ES256"}, good, OTHER.sign), "invalid signature"),
    ("a key of its own", lambda good: forged({"alg": "ES256", "jwk": {}}, good, OTHER.sign), "invalid signature"),
    (
        "critical extensions",
        lambda good: forged({"alg": "ES256", "kid": KID, "crit": ["b64"], "b64": False}, good, SIGNING["ES256"].sign),
        "the token's header has critical extensions, none of which is known",
    ),
    ("zeros", lambda good: forged({"alg": "ES256", "kid": KID}, good, lambda _: bytes(64)), "invalid signature"),
    ("short", lambda good: forged({"alg": "ES256", "kid": KID}, good, lambda _: b"x"), "invalid signature"),
    ("long", lambda good: forged({"alg": "ES256", "kid": KID}, good, lambda _: b"x" * 4096), "invalid signature"),
    ("header is a list", lambda good: f"{b64(b'[]')}.{b64(json.dumps(good).encode())}.", "header is malformed"),
    ("header is deep", lambda good: f"{b64(b'[' * 5000)}.{b64(json.dumps(good).encode())}.", "header is malformed"),
    (
        "alg is a list",
        lambda good: forged({"alg": ["ES256"], "kid": KID}, good, SIGNING["ES256"].sign),
        "header is malformed",
    ),
    ("other issuer", lambda good: jwt.encode({**good, "iss": "x"}, SIGNING["ES256"]), "not ours"),
    ("no issuer", lambda good: jwt.encode({"sub": "x"}, SIGNING["ES256"]), "not ours"),
    ("no expiry", lambda good: jwt.encode({**good, "exp": None}, SIGNING["ES256"]), "claims are malformed"),
    ("no account", lambda good: jwt.encode({**good, "kubernetes.io": {}}, SIGNING["ES256"]), "claims are malformed"),
    ("no JSON", lambda good: forged({"alg": "ES256"}, b"\xff\x00", SIGNING["ES256"].sign), "not ours"),
    ("no UTF-8", lambda good: forged({"alg": "ES256"}, b'{"iss":"\xe5"}', SIGNING["ES256"].sign), "not ours"),
    (
        "header is no UTF-8",
        lambda good: b64(b'{"alg":"\xe5"}') + f".{b64(json.dumps(good).encode())}.",
        "header is malformed",
    ),
    ("deep", lambda good: forged({"alg": "ES256"}, b'{"iss":' + b"[" * 5000, SIGNING["ES256"].sign), "not ours"),
    ("oversized", lambda good: jwt.encode({**good, "x": "x" * 20_000}, SIGNING["ES256"]), "not ours"),
    ("two parts", lambda good: jwt.encode(good, SIGNING["ES256"]).rpartition(".")[0], "not ours"),
    ("four parts", lambda good: jwt.encode(good, SIGNING["ES256"]) + ".x", "not ours"),
    ("padding", lambda good: jwt.encode(good, SIGNING["ES256"]) + "=", "not ours"),
    ("a space", lambda good: " " + jwt.encode(good, SIGNING["ES256"]), "not ours"),
    ("JSON form", lambda good: json.dumps({"payload": "x", "signatures": []}), "not ours"),
    ("nothing", lambda good: "", "not ours"),
    ("dots", lambda good: "." * 10_000, "not ours"),
    ("no ASCII", lambda good: "ü.ü.ü", "not ours"),
    ("surrogates", lambda good: "\udcff.\udcff.\udcff", "not ours"),
]


@pytest.mark.parametrize(("make", "problem"), [case[1:] for case in HOSTILE], ids=[case[0] for case in HOSTILE])
def test_hostile_tokens_are_refused(make: Any, problem: str) -> None:
    world = World()
    assert problem in outcome(world, make(good_claims()))
    assert outcome(world, make(good_claims())) != ""


@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_token_that_was_changed_anywhere_is_refused(part: int) -> None:
    world = World()
    token = world.token()
    parts = token.split(".")
    for place in range(0, len(parts[part]), 7):
        text = parts[part]
        changed = text[:place] + ("A" if text[place] != "A" else "B") + text[place + 1 :]
        assert outcome(world, ".".join([*parts[:part], changed, *parts[part + 1 :]])) != "", place


def test_the_last_character_of_a_signature_counts() -> None:
    world = World()
    token = world.token()
    for character in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_":
        assert (outcome(world, token[:-1] + character) == "") is (character == token[-1])


def test_only_so_many_tokens_are_remembered() -> None:
    world = World()
    sign = SigningKey(public=world.signing.public, sign=world.signing.sign)
    good = good_claims()
    tokens = [jwt.encode({**good, "jti": str(number)}, sign) for number in range(20)]
    for token in tokens:
        assert outcome(world, token) == ""
    verified: dict[bytes, Any] = world.tokens._signed._verified
    verified |= {bytes([number % 256, number // 256]): None for number in range(REMEMBERED_TOKENS)}
    assert outcome(world, world.token()) == ""
    assert len(verified) <= REMEMBERED_TOKENS + len(tokens)
    for token in tokens:
        assert outcome(world, token) == ""


def test_tokens_of_earlier_keys_are_taken_too() -> None:
    world = World()
    token = jwt.encode(good_claims(), SIGNING["RS256"])
    assert outcome(world, token) == "invalid signature, no keys found"
    keys = jwt.read_verification_keys(public_pem(EC) + b"\n" + public_pem(RSA))
    world.tokens = ServiceAccountTokens(ISSUER, [ISSUER], OTHER, world.objects, keys, now=NOW.timestamp)
    assert outcome(world, token) == ""
    assert [key.identifier for key in keys] == [SIGNING[name].public.identifier for name in ("ES256", "RS256")]
    assert jwt.read_verification_keys(pem(RSA))[0].identifier == SIGNING["RS256"].public.identifier


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nonsense",
        b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
        pem(ec.generate_private_key(ec.SECP384R1())),
        pem(ed25519.Ed25519PrivateKey.generate()),
        EC.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        ),
    ],
    ids=["empty", "nonsense", "broken", "P-384", "Ed25519", "password"],
)
def test_keys_that_cannot_be_used_are_named_as_such(data: bytes) -> None:
    with pytest.raises(FailedPrecondition, match="cannot be used"):
        jwt.read_signing_key(data)
    with pytest.raises(FailedPrecondition, match="cannot be used"):
        jwt.read_verification_keys(data)


def test_a_key_of_podkeep_tells_the_same_before_and_after_it_is_loaded() -> None:
    """It is loaded with the first signature, as a key of another form is at once."""
    traditional = EC.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    late, early = jwt.read_signing_key(pem(EC)), jwt.read_signing_key(traditional)
    assert late.public.web_key == early.public.web_key
    assert late.public.verify(b"data", early.sign(b"data"))
    assert early.public.verify(b"data", late.sign(b"data"))
    assert not late.public.verify(b"other", early.sign(b"data"))


def test_a_key_with_the_public_half_of_another_signs_and_verifies_nothing() -> None:
    bodies = [base64.b64decode(b"".join(pem(key).splitlines()[1:-1])) for key in (EC, OTHER_EC)]
    joined = base64.encodebytes(bodies[0][:-64] + bodies[1][-64:])
    key = jwt.read_signing_key(b"-----BEGIN PRIVATE KEY-----\n" + joined + b"-----END PRIVATE KEY-----\n")
    with pytest.raises(FailedPrecondition, match="cannot be used"):
        key.sign(b"data")
    with pytest.raises(FailedPrecondition, match="cannot be used"):
        key.public.verify(b"data", OTHER.sign(b"data"))


ANN = User(name="ann", uid="1", groups=("dev", "ops"))
BOB = User(name="bob", uid="2", groups=("dev",))


@pytest.mark.parametrize(
    ("text", "users", "warnings"),
    [
        ('t1,ann,1,"dev,ops"\n', {"t1": ANN}, []),
        (
            "t1,ann,1\n\nt2,bob,2,dev\n",
            {"t1": User(name="ann", uid="1"), "t2": BOB},
            [],
        ),
        (",ann,1\n", {}, ["empty token has been found in token file 'f', record number '1'"]),
        (
            "t1,eve,2\nt1,ann,1,dev\n",
            {"t1": User(name="ann", uid="1", groups=("dev",))},
            ["duplicate token has been found in token file 'f', record number '2'"],
        ),
        ("", {}, []),
    ],
)
def test_a_file_lists_tokens(text: str, users: dict[str, User], warnings: list[str]) -> None:
    found, said = read_static_tokens(text, "f")
    tokens = StaticTokens(found, [ISSUER])
    assert said == warnings
    assert len(found) == len(users)
    for token, user in users.items():
        assert tokens.authenticate(token) == (user, (ISSUER,))
        assert tokens.authenticate(token, ["vault"]) is None
        assert tokens.authenticate(token + "x") is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("t1,ann\n", "token file 'f' must have at least 3 columns (token, user name, user uid), found 2"),
        ('t1,"ann\n', "token file 'f': unexpected end of data"),
        ("t1," + "x" * 200_000 + ",1", "token file 'f': field larger than field limit"),
    ],
)
def test_a_broken_file_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read_static_tokens(text, "f")
    assert problem in caught.value.message


def test_what_is_wrong_is_told_to_who_reviews_a_token() -> None:
    world = World()
    users, _ = read_static_tokens("t1,ann,1\n", "f")
    reviewer = BearerAuthenticator([StaticTokens(users, [ISSUER]), world.tokens])
    assert reviewer.review("t1").user == User(name="ann", uid="1", groups=("system:authenticated",))
    with pytest.raises(InvalidToken, match=r"^invalid bearer token$"):
        reviewer.review("x")
    token = world.token()
    world.objects.delete(account())
    with pytest.raises(InvalidToken, match="not found"):
        reviewer.review(token)
