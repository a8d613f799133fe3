"""Tokens of service accounts that are kept in Secrets: made by the controller, taken while the Secret has them."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from podkeep.apiserver.auth import jwt
from podkeep.apiserver.auth.jwt import InvalidToken
from podkeep.apiserver.auth.secret_tokens import SecretTokens
from podkeep.apiserver.auth.user import User
from podkeep.apiserver.controllers.controller import Change, Delete, Patch, Plan
from podkeep.apiserver.controllers.token_secrets import TokenSecrets
from podkeep.apiserver.kinds.cluster.configuration import MAX_BYTES
from podkeep.apiserver.meta.lister import Part
from podkeep.apiserver.storage.records import Event, EventType, Key, Stored
from support.controllers import told
from support.objects import Objects, place

NOW = datetime(2026, 11, 23, 6, 0, tzinfo=UTC)
API = "https://kubernetes.default.svc.cluster.local"
ROOT_CA = "-----BEGIN CERTIFICATE-----\n"
KEY = jwt.read_signing_key(
    ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
)
NAME = "kubernetes.io/service-account.name"
UID = "kubernetes.io/service-account.uid"


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def account(uid: str = "u-sa", **more: Any) -> dict[str, Any]:
    return {"kind": "ServiceAccount", "metadata": {"name": "robot", "namespace": "ns", "uid": uid, **more}}


def secret(
    data: dict[str, str] | None = None, annotations: dict[str, str] | None = None, **more: Any
) -> dict[str, Any]:
    fields = {"name": "s", "namespace": "ns", "uid": "u-s", "resourceVersion": "7"}
    fields["annotations"] = {NAME: "robot"} | (annotations or {})  # type: ignore[assignment]
    kind = "kubernetes.io/service-account-token"
    found = {"kind": "Secret", "metadata": fields | more.pop("metadata", {}), "type": kind, **more}
    return found | ({"data": data} if data else {})


class World:
    """A service account, its Secret, and who makes and takes tokens."""

    def __init__(self, *objects: dict[str, Any]) -> None:
        self.objects = Objects(*objects)
        self.tokens = SecretTokens([API], KEY, self.objects)
        self.controller = TokenSecrets(ROOT_CA, self.tokens.issue)
        for value in objects:
            if value["kind"] == "Secret":
                told(self.controller, ("secrets", value))

    def plan(self, resource: str = "secrets", name: str = "s") -> Plan:
        return self.controller.reconcile(Key(resource, "ns", name), self.objects, NOW)

    def filled(self) -> str:
        """Let the controller fill the Secret, and return its token."""
        [patch] = self.plan().writes
        assert isinstance(patch, Patch)
        found = secret(patch.patch["data"], patch.patch["metadata"]["annotations"])
        self.objects.put(found)
        return base64.b64decode(found["data"]["token"]).decode()


def test_a_secret_gets_what_upstreams_has() -> None:
    world = World(account(), secret())
    token = world.filled()
    found = world.objects.get("secrets", "ns", "s")
    assert found is not None
    assert found["metadata"]["annotations"] == {NAME: "robot", UID: "u-sa"}
    assert found["data"] == {"ca.crt": encoded(ROOT_CA), "namespace": encoded("ns"), "token": encoded(token)}
    payload = token.split(".")[1]
    assert msgspec.json.decode(base64.urlsafe_b64decode(payload + "==")) == {
        "iss": "kubernetes/serviceaccount",
        "kubernetes.io/serviceaccount/namespace": "ns",
        "kubernetes.io/serviceaccount/secret.name": "s",
        "kubernetes.io/serviceaccount/service-account.name": "robot",
        "kubernetes.io/serviceaccount/service-account.uid": "u-sa",
        "sub": "system:serviceaccount:ns:robot",
    }
    assert list(world.plan().writes) == []


def test_its_token_is_the_service_accounts() -> None:
    world = World(account(), secret())
    found = world.tokens.authenticate(world.filled())
    assert found is not None
    groups = ("system:serviceaccounts", "system:serviceaccounts:ns")
    assert found.user == User(name="system:serviceaccount:ns:robot", uid="u-sa", groups=groups)
    assert found.audiences == (API,)


def test_a_certificate_that_is_another_is_replaced_and_the_token_stays() -> None:
    world = World(account(), secret({"ca.crt": encoded("old"), "namespace": encoded("ns"), "token": encoded("t")}))
    [patch] = world.plan().writes
    assert isinstance(patch, Patch)
    assert patch.patch["data"] == {"ca.crt": encoded(ROOT_CA)}


def test_secrets_of_others_are_not_decoded_for_an_account_that_goes() -> None:
    """All Secrets of the namespace were read, each time: a third of a second for 256 MiB of them."""
    read: list[str] = []

    class Named(Objects):
        def get(self, resource: str, namespace: str, name: str) -> Mapping[str, Any] | None:
            read.append(name)
            return super().get(resource, namespace, name)

        def parts(self, resource: str, namespace: str, of: type[Part]) -> Iterator[Part]:
            raise AssertionError

        def list(self, resource: str, namespace: str = "") -> Iterator[Mapping[str, Any]]:
            raise AssertionError

    world = World()
    others = [secret(metadata={"name": f"o{number}", "annotations": {NAME: "other"}}) for number in range(20)]
    world.objects = Named(secret(), *others)
    for value in (secret(), *others, secret(metadata={"name": "gone"})):
        told(world.controller, ("secrets", value))
    told(world.controller, ("secrets", secret(metadata={"name": "gone"})), EventType.DELETED)
    told(world.controller, ("secrets", secret(metadata={"name": "o1", "annotations": {NAME: "third"}})))
    assert [write.name for write in world.plan("serviceaccounts", "robot").writes] == ["s"]  # type: ignore[union-attr]
    assert set(read) == {"s", "robot"}


@pytest.mark.parametrize(
    "objects",
    [[secret()], [account("u-new"), secret(annotations={UID: "u-sa"})]],
    ids=["there is none", "it is another one"],
)
def test_a_secret_goes_with_its_service_account(objects: list[dict[str, Any]]) -> None:
    gone = [Delete(resource="secrets", namespace="ns", name="s", uid="u-s")]
    assert list(World(*objects).plan().writes) == gone
    assert list(World(*objects).plan("serviceaccounts", "robot").writes) == gone


@pytest.mark.parametrize(
    "found",
    [secret(immutable=True), secret(metadata={"deletionTimestamp": "2026-11-23T06:00:00Z"}), secret(type="Opaque")],
    ids=["immutable", "being deleted", "of another type"],
)
def test_other_secrets_are_left_alone(found: dict[str, Any]) -> None:
    assert list(World(account(), found).plan().writes) == []


def test_a_secret_without_room_for_a_token_is_left_alone() -> None:
    """Every attempt was refused by the API, and made again."""
    full = {"x": encoded("x" * (MAX_BYTES - len(ROOT_CA)))}
    assert list(World(account(), secret(full)).plan().writes) == []
    assert list(World(account(), secret({"x": encoded("x" * (MAX_BYTES - 1000))})).plan().writes)


def change(value: dict[str, Any], kind: EventType) -> Change:
    return Change(Event(kind, Stored(Key(*place(value)), 1, msgspec.json.encode(value)), None), NOW)


def test_what_is_looked_at() -> None:
    controller = World().controller
    assert list(controller.observe(change(secret(), EventType.ADDED))) == [Key("secrets", "ns", "s")]
    assert list(controller.observe(change(secret(), EventType.DELETED))) == []
    assert list(controller.observe(change(secret(type="Opaque"), EventType.ADDED))) == []
    assert list(controller.observe(change(account(), EventType.ADDED))) == []
    gone = list(controller.observe(change(account(), EventType.DELETED)))
    assert gone == [Key("serviceaccounts", "ns", "robot")]


@pytest.mark.parametrize(
    ("objects", "why"),
    [
        ([account()], "Token has been invalidated"),
        ([account(), secret(metadata={"deletionTimestamp": "2026-11-23T06:00:00Z"})], "Token has been invalidated"),
        ([account(), secret({"token": encoded("another")})], "Token does not match server's copy"),
        ([account(), secret()], "Token does not match server's copy"),
    ],
)
def test_a_token_ends_with_its_secret(objects: list[dict[str, Any]], why: str) -> None:
    token = World(account()).tokens.issue(account(), "s")
    with pytest.raises(InvalidToken, match=why):
        World(*objects).tokens.authenticate(token)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (None, 'serviceaccounts "robot" not found'),
        (account(deletionTimestamp="2026-11-23T06:00:00Z"), "ServiceAccount ns/robot has been deleted"),
        (account("u-new"), r"ServiceAccount UID \(u-new\) does not match claim \(u-sa\)"),
    ],
)
def test_a_token_ends_with_its_service_account(found: dict[str, Any] | None, why: str) -> None:
    world = World(account(), secret())
    token = world.filled()
    world.objects.delete(account()) if found is None else world.objects.put(found)
    with pytest.raises(InvalidToken, match=why):
        world.tokens.authenticate(token)


def test_a_token_that_is_marked_is_not_taken() -> None:
    world = World(account(), secret())
    token = world.filled()
    world.objects.put(
        secret(
            {"token": encoded(token)}, metadata={"labels": {"kubernetes.io/legacy-token-invalid-since": "2026-11-23"}}
        )
    )
    with pytest.raises(InvalidToken, match="has been marked invalid"):
        world.tokens.authenticate(token)


def test_a_token_with_another_subject_is_not_taken() -> None:
    """The user is the service account that was looked up, and nobody else."""
    claims = {
        "iss": "kubernetes/serviceaccount",
        "kubernetes.io/serviceaccount/namespace": "ns",
        "kubernetes.io/serviceaccount/secret.name": "s",
        "kubernetes.io/serviceaccount/service-account.name": "robot",
        "kubernetes.io/serviceaccount/service-account.uid": "u-sa",
        "sub": "system:admin",
    }
    token = jwt.encode(claims, KEY)
    with pytest.raises(InvalidToken, match="sub claim is invalid"):
        World(account(), secret({"token": encoded(token)})).tokens.authenticate(token)


def test_a_token_is_for_the_api_alone() -> None:
    world = World(account(), secret())
    token = world.filled()
    assert world.tokens.authenticate(token, ["other", API]) is not None
    with pytest.raises(InvalidToken, match="is invalid for the target audiences"):
        world.tokens.authenticate(token, ["other"])


def test_tokens_of_others_are_for_others_to_judge() -> None:
    assert World().tokens.authenticate("x") is None
    assert World().tokens.authenticate(jwt.encode({"iss": API}, KEY)) is None
    with pytest.raises(InvalidToken, match="claims are malformed"):
        World().tokens.authenticate(jwt.encode({"iss": "kubernetes/serviceaccount"}, KEY))
