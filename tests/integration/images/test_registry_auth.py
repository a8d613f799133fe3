"""Logging in to registries: challenges, tokens that run out, whose credentials go where, and which are refused."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from conftest import OpenStore, children

from podkeep.base.config import RegistryConfig
from podkeep.base.errors import FailedPrecondition, InvalidArgument, PermissionDenied, PodkeepError, RegistryUnavailable
from podkeep.images.formats.image import RegistryAuth
from support.images import Layout, file, layers_layout
from support.processes import write_script
from support.registry import Answer, Decide, HostileRegistry

ME = RegistryAuth(username="me", password="sEcReT-of-mine")
BASIC = f"Basic {base64.b64encode(b'me:sEcReT-of-mine').decode()}"


def bearer(headers: Mapping[str, str], more: str = "") -> Answer:
    """Ask for a token of this server's own ``/token``."""
    value = f'Bearer realm="http://{headers["Host"]}/token",service="svc"{more}'
    return Answer(status=401, headers={"WWW-Authenticate": value})


def token_for(authorization: str = BASIC, token: str = "t0") -> Decide:
    """Be a registry with a token server, which gives ``token`` to who has ``authorization``."""

    def decide(path: str, headers: Mapping[str, str]) -> Answer | None:
        if path.startswith("/token"):
            allowed = headers.get("Authorization", "") == authorization
            return Answer(body=json.dumps({"token": token}).encode()) if allowed else Answer(status=401)
        return None if headers.get("Authorization") == f"Bearer {token}" else bearer(headers)

    return decide


def basic_only(expected: str = BASIC) -> Decide:
    """Be a registry that wants basic credentials."""
    challenge = {"WWW-Authenticate": 'Basic realm="x"'}
    return lambda _path, headers: (
        None if headers.get("Authorization") == expected else Answer(status=401, headers=challenge)
    )


def pull(
    open_store: OpenStore, host: str, *, auth: RegistryAuth | None = None, name: str = "app:v1", **settings: Any
) -> str:
    """Pull an image from a registry on plain HTTP and return its ID."""
    registries = {host: RegistryConfig(insecure=True)} | settings.pop("registries", {})
    store = open_store(registries=registries, **settings)
    try:
        return asyncio.run(store.pull(f"{host}/{name}", auth=auth)).id
    finally:
        store.close()


@pytest.mark.parametrize(
    "challenge",
    [
        'Negotiate, Bearer realm="http://{host}/token",service="svc", Basic realm="x"',
        'Basic realm="x", Bearer realm="http://{host}/token",service="svc"',
        "bearer REALM=http://{host}/token , service=svc",
    ],
)
def test_the_best_of_several_challenges_is_answered(challenge: str, busybox: Layout, open_store: OpenStore) -> None:
    honest = token_for()

    def decide(path: str, headers: Mapping[str, str]) -> Answer | None:
        answer = honest(path, headers)
        if answer and "WWW-Authenticate" in answer.headers:
            answer.headers = {"WWW-Authenticate": challenge.format(host=headers["Host"])}
        return answer

    with HostileRegistry(busybox, decide) as registry:
        assert pull(open_store, registry.host, auth=ME) == busybox.image_id
        sent = {headers.get("Authorization", "") for path, headers in registry.requests if path.startswith("/v2/")}
    assert sent == {"", "Bearer t0"}


def test_basic_is_tried_where_the_token_server_refuses(busybox: Layout, open_store: OpenStore) -> None:
    def decide(path: str, headers: Mapping[str, str]) -> Answer | None:
        if path.startswith("/token"):
            return Answer(status=403)
        answer = bearer(headers)
        answer.headers = {"WWW-Authenticate": answer.headers["WWW-Authenticate"] + ', Basic realm="x"'}
        return None if headers.get("Authorization") == BASIC else answer

    with HostileRegistry(busybox, decide) as registry:
        assert pull(open_store, registry.host, auth=ME) == busybox.image_id


def test_an_unknown_kind_of_login_is_named(busybox: Layout, open_store: OpenStore) -> None:
    answer = Answer(status=401, headers={"WWW-Authenticate": 'Digest realm="x", Negotiate'})
    with (
        HostileRegistry(busybox, lambda _path, _headers: answer) as registry,
        pytest.raises(FailedPrecondition, match="login of an unknown kind: digest, negotiate"),
    ):
        pull(open_store, registry.host, auth=ME)


def test_an_anonymous_token_is_fetched(busybox: Layout, open_store: OpenStore) -> None:
    with HostileRegistry(busybox, token_for(authorization="")) as registry:
        assert pull(open_store, registry.host) == busybox.image_id
        (asked,) = [path for path, _ in registry.requests if path.startswith("/token")]
    assert parse_qs(urlsplit(asked).query) == {"service": ["svc"], "scope": ["repository:app:pull"]}


def test_a_token_is_asked_for_what_the_registry_says_too(busybox: Layout, open_store: OpenStore) -> None:
    def decide(path: str, headers: Mapping[str, str]) -> Answer | None:
        if path.startswith("/token"):
            return Answer(body=b'{"access_token":"t0"}')
        ask = bearer(headers, ',scope="repository:real/app:pull repository:app:pull"')
        return None if headers.get("Authorization") == "Bearer t0" else ask

    with HostileRegistry(busybox, decide) as registry:
        assert pull(open_store, registry.host) == busybox.image_id
        (asked,) = [path for path, _ in registry.requests if path.startswith("/token")]
    assert parse_qs(urlsplit(asked).query)["scope"] == ["repository:app:pull", "repository:real/app:pull"]


def test_tokens_that_run_out_during_a_pull_are_renewed(tmp_path: Path, open_store: OpenStore) -> None:
    layout = layers_layout(tmp_path / "layout", [[file(f"f{number}", "x" * number)] for number in range(12)])
    issued: list[str] = []
    uses: dict[str, int] = {}

    def decide(path: str, headers: Mapping[str, str]) -> Answer | None:
        if path.startswith("/token"):
            issued.append(f"token-{len(issued)}")
            return Answer(body=json.dumps({"token": issued[-1], "expires_in": 60}).encode())
        token = headers.get("Authorization", "").removeprefix("Bearer ")
        uses[token] = uses.get(token, 0) + 1
        return None if token in issued and uses[token] <= 4 else bearer(headers, ',error="invalid_token"')

    with HostileRegistry(layout, decide) as registry:
        assert pull(open_store, registry.host, auth=ME) == layout.image_id
    assert 3 <= len(issued) <= 14


@pytest.mark.parametrize("kind", ["Bearer", "Basic"])
def test_a_login_that_never_helps_ends(kind: str, busybox: Layout, open_store: OpenStore) -> None:
    def decide(path: str, headers: Mapping[str, str]) -> Answer | None:
        if path.startswith("/token"):
            return Answer(body=b'{"token":"useless"}')
        return (
            bearer(headers) if kind == "Bearer" else Answer(status=401, headers={"WWW-Authenticate": "Basic realm=x"})
        )

    with HostileRegistry(busybox, decide) as registry:
        with pytest.raises(PermissionDenied, match=r"app:v1: the registry refuses access \(401\)") as failure:
            pull(open_store, registry.host, auth=ME)
        assert len(registry.requests) <= 4
    assert failure.value.hint == "check the credentials"


def test_a_registry_that_takes_every_other_token_is_given_up(busybox: Layout, open_store: OpenStore) -> None:
    count = iter(range(10_000))

    def decide(path: str, headers: Mapping[str, str]) -> Answer | None:
        if path.startswith("/token"):
            return Answer(body=json.dumps({"token": f"t{next(count)}"}).encode())
        return None if "/manifests/" in path and "Authorization" in headers else bearer(headers)

    with HostileRegistry(busybox, decide) as registry:
        with pytest.raises(PermissionDenied, match=r"refuses access \(401\)"):
            pull(open_store, registry.host, auth=ME)
        assert len(registry.requests) < 20


def test_credentials_go_to_the_realm_and_not_where_blobs_are(busybox: Layout, open_store: OpenStore) -> None:
    with HostileRegistry(None, token_for()) as realm, HostileRegistry(busybox) as storage:

        def decide(path: str, headers: Mapping[str, str]) -> Answer | None:
            if headers.get("Authorization") != "Bearer t0":
                return Answer(status=401, headers={"WWW-Authenticate": f'Bearer realm="http://{realm.host}/token"'})
            return (
                Answer(status=307, headers={"Location": f"http://{storage.host}{path}?sig=1"})
                if "/blobs/" in path
                else None
            )

        with HostileRegistry(busybox, decide) as registry:
            assert pull(open_store, registry.host, auth=ME) == busybox.image_id
            assert BASIC not in {headers.get("Authorization") for _, headers in registry.requests}
        assert [headers.get("Authorization") for _, headers in realm.requests] == [BASIC]
        assert len(storage.requests) == 2
        assert not any("Authorization" in headers for _, headers in storage.requests)


@pytest.mark.parametrize("kind", ["Basic", "Bearer"])
def test_who_is_redirected_to_cannot_ask_for_the_credentials(kind: str, busybox: Layout, open_store: OpenStore) -> None:
    def ask(path: str, headers: Mapping[str, str]) -> Answer:
        if path.startswith("/token"):
            return Answer(body=b'{"token":"t1"}')
        return (
            bearer(headers) if kind == "Bearer" else Answer(status=401, headers={"WWW-Authenticate": "Basic realm=x"})
        )

    with HostileRegistry(None, ask) as thief:

        def decide(path: str, headers: Mapping[str, str]) -> Answer | None:
            if headers.get("Authorization") != BASIC:
                return Answer(status=401, headers={"WWW-Authenticate": 'Basic realm="x"'})
            away = Answer(status=307, headers={"Location": f"http://{thief.host}{path}"})
            return away if "/blobs/" in path else None

        with (
            HostileRegistry(busybox, decide) as registry,
            pytest.raises(PermissionDenied, match=r"refuses access \(401\)"),
        ):
            pull(open_store, registry.host, auth=ME)
        assert [path for path, _ in thief.requests] == [f"/v2/app/blobs/{busybox.image_id}"]
        assert not any("Authorization" in headers for _, headers in thief.requests)


@pytest.mark.requirement("V29")
def test_credentials_that_are_known_but_not_enough_are_no_end(
    tmp_path: Path, busybox: Layout, open_store: OpenStore
) -> None:
    def decide(path: str, headers: Mapping[str, str]) -> Answer | None:
        if "Authorization" not in headers:
            return Answer(status=401, headers={"WWW-Authenticate": 'Basic realm="x"'})
        return None if headers["Authorization"] == BASIC else Answer(status=403)

    with HostileRegistry(busybox, decide) as registry:
        auths = {f"{registry.host}/team": basic_entry("you", "x"), registry.host: basic_entry("me", ME.password)}
        config = docker_config(tmp_path / "config.json", auths=auths)
        assert pull(open_store, registry.host, name="team/app:v1", docker_config=config) == busybox.image_id
        auths.popitem()
        docker_config(tmp_path / "config.json", auths=auths)
        with pytest.raises(PermissionDenied, match=r"refuses access \(403\)"):
            pull(open_store, registry.host, name="team/app:v2", docker_config=config)


def test_a_token_server_that_is_busy_during_a_pull_is_asked_again(tmp_path: Path, open_store: OpenStore) -> None:
    layout = layers_layout(tmp_path / "layout", [[file(f"f{number}")] for number in range(4)])
    asked: list[str] = []

    def decide(path: str, headers: Mapping[str, str]) -> Answer | None:
        if path.startswith("/token"):
            asked.append(path)
            if len(asked) % 2 == 0:
                return Answer(status=503, headers={"Retry-After": "0"})
            return Answer(body=json.dumps({"token": f"t{len(asked)}"}).encode())
        good = headers.get("Authorization") == f"Bearer t{len(asked)}"
        renewed = "/blobs/" in path and len(asked) == 1
        return None if good and not renewed else bearer(headers)

    with HostileRegistry(layout, decide) as registry:
        assert pull(open_store, registry.host, auth=ME) == layout.image_id
    assert len(asked) == 3


def test_nobody_waits_for_the_token_server_of_a_mirror(busybox: Layout, open_store: OpenStore) -> None:
    def decide(path: str, headers: Mapping[str, str]) -> Answer | None:
        return Answer(status=503, headers={"Retry-After": "0"}) if path.startswith("/token") else bearer(headers)

    with HostileRegistry(None, decide) as mirror, HostileRegistry(busybox) as origin:
        config = RegistryConfig(insecure=True, mirrors=(f"http://{mirror.host}",))
        store = open_store(registries={origin.host: config})
        assert asyncio.run(store.pull(f"{origin.host}/app:v1")).id == busybox.image_id
        tokens = [path for path, _ in mirror.requests if path.startswith("/token")]
    assert 0 < len(tokens) <= len(mirror.requests) - len(tokens)


def test_a_metadata_service_is_no_registry(open_store: OpenStore) -> None:
    store = open_store()
    for host in ("169.254.169.254", "[fd00:ec2::254]:80"):
        with pytest.raises(FailedPrecondition, match="metadata service, which is refused"):
            asyncio.run(store.pull(f"{host}/latest/user-data:v1"))


def test_credentials_do_not_follow_a_redirect_of_the_realm(busybox: Layout, open_store: OpenStore) -> None:
    with HostileRegistry(None, lambda _path, _headers: Answer(body=b'{"token":"t0"}')) as thief:

        def decide(path: str, headers: Mapping[str, str]) -> Answer | None:
            if path.startswith("/token"):
                return Answer(status=307, headers={"Location": f"http://{thief.host}/"})
            return None if headers.get("Authorization") == "Bearer t0" else bearer(headers)

        with HostileRegistry(busybox, decide) as registry:
            assert pull(open_store, registry.host, auth=ME) == busybox.image_id
            thief.requests.clear()
            with pytest.raises(PermissionDenied, match=r"refuses a token \(307\)"):
                pull(open_store, registry.host, auth=RegistryAuth(identity_token="mine"), name="app:v2")
        assert thief.requests == []
        assert not any("Authorization" in headers for _, headers in thief.requests)


@pytest.mark.parametrize(
    ("realm", "text"),
    [
        ("file:///etc/shadow", "is not an http or https URL"),
        ("", "is not an http or https URL"),
        ("http://169.254.169.254/token", "link-local address"),
        ("http://me:x@127.0.0.1/token", "has credentials in it"),
    ],
)
def test_realms_that_are_refused(realm: str, text: str, busybox: Layout, open_store: OpenStore) -> None:
    answer = Answer(status=401, headers={"WWW-Authenticate": f'Bearer realm="{realm}"'})
    with (
        HostileRegistry(busybox, lambda _path, _headers: answer) as registry,
        pytest.raises(FailedPrecondition, match=re.escape(text)) as failure,
    ):
        pull(open_store, registry.host, auth=ME)
    assert ME.password not in str(failure.value)


def test_a_registry_on_tls_gets_no_token_by_plain_http(
    busybox: Layout, certificate: tuple[Path, Path], open_store: OpenStore
) -> None:
    with HostileRegistry(None, token_for()) as realm:
        answer = Answer(status=401, headers={"WWW-Authenticate": f'Bearer realm="http://{realm.host}/token"'})
        with HostileRegistry(busybox, lambda _path, _headers: answer, tls=(*certificate, None)) as registry:
            config = RegistryConfig(ca_file=str(certificate[0]))
            with pytest.raises(FailedPrecondition, match="speaks TLS and sends credentials to http://"):
                pull(open_store, registry.host, auth=ME, registries={registry.host: config})
        assert realm.requests == []


def test_tls_is_not_left_by_a_redirect(busybox: Layout, certificate: tuple[Path, Path], open_store: OpenStore) -> None:
    with HostileRegistry(busybox) as storage:
        away = Answer(status=307, headers={"Location": f"http://{storage.host}/x?sig=secret"})
        with HostileRegistry(
            busybox, lambda path, _: away if "/blobs/" in path else None, tls=(*certificate, None)
        ) as registry:
            config = RegistryConfig(ca_file=str(certificate[0]))
            with pytest.raises(FailedPrecondition, match="redirects from TLS to http://") as failure:
                pull(open_store, registry.host, registries={registry.host: config})
        assert storage.requests == []
    assert "secret" not in str(failure.value)


def test_a_certificate_must_be_for_the_name_that_is_asked(
    busybox: Layout, certificate: tuple[Path, Path], open_store: OpenStore
) -> None:
    """It says 127.0.0.1 as it should be said, and localhost as its common name, which has not counted for long."""
    with HostileRegistry(busybox, tls=(*certificate, None)) as registry:
        host = registry.host.replace("127.0.0.1", "localhost")
        trusting = {name: RegistryConfig(ca_file=str(certificate[0])) for name in (registry.host, host)}
        assert pull(open_store, registry.host, registries=trusting) == busybox.image_id
        with pytest.raises(RegistryUnavailable, match="not valid for 'localhost'") as failure:
            pull(open_store, host, registries=trusting)
        assert "subjectAltName" in failure.value.hint


def test_our_certificate_is_shown_to_who_it_is_for(
    busybox: Layout, certificate: tuple[Path, Path], open_store: OpenStore
) -> None:
    ca, key = map(str, certificate)
    with HostileRegistry(busybox, tls=(*certificate, certificate[0])) as registry:
        ours = RegistryConfig(ca_file=ca, cert_file=ca, key_file=key)
        assert pull(open_store, registry.host, registries={registry.host: ours}) == busybox.image_id
        with pytest.raises(RegistryUnavailable, match=r"(?s)CERTIFICATE_REQUIRED|broke|closed"):
            pull(open_store, registry.host, name="app:v2", registries={registry.host: RegistryConfig(ca_file=ca)})
        wrong = RegistryConfig(ca_file=ca, cert_file=key)
        with pytest.raises(FailedPrecondition, match=re.escape(f"cannot use {key}")):
            pull(open_store, registry.host, name="app:v2", registries={registry.host: wrong})

        # The registry that redirects there has a certificate, too, and it stays where it is meant for.
        away = Answer(status=307, headers={"Location": f"https://{registry.host}/v2/app/manifests/v1"})
        with (
            HostileRegistry(None, lambda _path, _headers: away, tls=(*certificate, None)) as other,
            pytest.raises(RegistryUnavailable, match=r"(?s)CERTIFICATE_REQUIRED|broke|closed"),
        ):
            pull(open_store, other.host, name="app:v3", registries={other.host: ours})


@pytest.mark.parametrize("token", ["a\r\nX-Evil: 1", "a b", "", 5, None, ["t"], "x" * 100_000])
def test_tokens_that_no_header_can_have(token: object, busybox: Layout, open_store: OpenStore) -> None:
    def decide(path: str, headers: Mapping[str, str]) -> Answer | None:
        return Answer(body=json.dumps({"token": token}).encode()) if path.startswith("/token") else bearer(headers)

    with HostileRegistry(busybox, decide) as registry:
        with pytest.raises(PodkeepError, match="token") as failure:
            pull(open_store, registry.host, auth=ME)
        assert not any("X-Evil" in headers for _, headers in registry.requests)
    assert isinstance(failure.value, InvalidArgument | FailedPrecondition)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'{"token":"half-a-secr', b"[" * 200_000, b" " * (2 << 20)]
)
def test_a_token_server_that_answers_rubbish(body: bytes, busybox: Layout, open_store: OpenStore) -> None:
    def decide(path: str, headers: Mapping[str, str]) -> Answer | None:
        return Answer(body=body) if path.startswith("/token") else bearer(headers)

    with (
        HostileRegistry(busybox, decide) as registry,
        pytest.raises(FailedPrecondition, match="answered without a token") as failure,
    ):
        pull(open_store, registry.host, auth=ME)
    assert "half-a-secr" not in str(failure.value)


def test_a_token_server_that_is_down_is_unavailable(busybox: Layout, open_store: OpenStore) -> None:
    def decide(path: str, headers: Mapping[str, str]) -> Answer | None:
        return Answer(status=502) if path.startswith("/token") else bearer(headers)

    with (
        HostileRegistry(busybox, decide) as registry,
        pytest.raises(RegistryUnavailable, match=r"^RegistryUnavailable: .*its token server .* answered 502"),
    ):
        pull(open_store, registry.host, auth=ME)


def test_no_secret_shows_anywhere(busybox: Layout, open_store: OpenStore, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    seen: list[bytes] = []

    def decide(path: str, headers: Mapping[str, str]) -> Answer | None:
        for pid in children():
            try:
                seen.append(Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes())
            except OSError:
                continue
        if path.startswith("/token"):
            return Answer(status=401, body=json.dumps({"errors": [{"code": "X", "message": "no"}]}).encode())
        return bearer(headers)

    with HostileRegistry(busybox, decide) as registry, pytest.raises(PermissionDenied) as failure:
        pull(open_store, registry.host, auth=ME)
    assert seen
    told = repr(failure.value) + str(failure.value) + caplog.text + repr(ME)
    for secret in (ME.password, BASIC.partition(" ")[2]):
        assert secret not in told
        assert not any(secret.encode() in text for text in seen)


def test_credentials_for_another_registry_stay_here(busybox: Layout, open_store: OpenStore) -> None:
    with HostileRegistry(busybox, basic_only()) as registry:
        for address in (registry.host, f"http://{registry.host}/v2/"):
            auth = RegistryAuth(username=ME.username, password=ME.password, server_address=address)
            assert pull(open_store, registry.host, auth=auth) == busybox.image_id
        registry.requests.clear()
        other = RegistryAuth(username=ME.username, password=ME.password, server_address="other.example")
        with pytest.raises(PermissionDenied, match="asks for credentials"):
            pull(open_store, registry.host, auth=other, name="app:v2")
        assert not any("Authorization" in headers for _, headers in registry.requests)


@pytest.mark.parametrize("auth", ["rubbish!", base64.b64encode(b"no colon").decode()])
def test_credentials_that_are_malformed(auth: str, busybox: Layout, open_store: OpenStore) -> None:
    with HostileRegistry(busybox, basic_only()) as registry:
        with pytest.raises(InvalidArgument, match=r"must be base64\(username:password\)") as failure:
            pull(open_store, registry.host, auth=RegistryAuth(auth=auth))
        assert registry.requests == []
    assert auth not in str(failure.value)


# The node's own credentials


def docker_config(path: Path, **content: Any) -> str:
    """Write a docker configuration file."""
    path.write_text(json.dumps(content))
    return str(path)


def basic_entry(user: str, password: str) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


@pytest.mark.requirement("V29")
def test_the_nodes_docker_configuration_is_used(tmp_path: Path, busybox: Layout, open_store: OpenStore) -> None:
    with HostileRegistry(busybox, basic_only()) as registry:
        auths = {
            registry.host: basic_entry("me", "outdated"),
            f"{registry.host}/team": basic_entry("me", "wrong"),
            f"https://{registry.host}/v2/": basic_entry("me", ME.password),
        }
        config = docker_config(tmp_path / "config.json", auths=auths)
        assert pull(open_store, registry.host, name="team/app:v1", docker_config=config) == busybox.image_id
        sent = list(dict.fromkeys(headers.get("Authorization", "") for _, headers in registry.requests))
        tried = [base64.b64decode(text.partition(" ")[2]).decode() for text in sent if text]
        assert tried == ["me:wrong", "me:outdated", f"me:{ME.password}"]

        registry.requests.clear()
        with pytest.raises(PermissionDenied, match=r"refuses access \(401\)"):
            pull(
                open_store,
                registry.host,
                name="team/app:v2",
                docker_config=config,
                auth=RegistryAuth(username="x", password="y"),
            )
        sent = list(dict.fromkeys(headers.get("Authorization", "") for _, headers in registry.requests))
        assert sent == ["", "Basic eDp5"]


@pytest.mark.requirement("V29")
def test_a_mirror_gets_what_is_meant_for_its_own_host(tmp_path: Path, busybox: Layout, open_store: OpenStore) -> None:
    with HostileRegistry(busybox, basic_only()) as mirror:
        registries = {"registry.invalid": RegistryConfig(mirrors=(f"http://{mirror.host}/cache",))}
        for auths in ({"registry.invalid": basic_entry("me", ME.password)}, {}):
            config = docker_config(tmp_path / "config.json", auths=auths)
            store = open_store(registries=registries, docker_config=config)
            with pytest.raises(RegistryUnavailable, match="asks for credentials"):
                asyncio.run(store.pull("registry.invalid/app:v1", auth=ME))
            store.close()
        assert not any("Authorization" in headers for _, headers in mirror.requests)
        config = docker_config(tmp_path / "config.json", auths={f"{mirror.host}/cache": basic_entry("me", ME.password)})
        store = open_store(registries=registries, docker_config=config)
        assert asyncio.run(store.pull("registry.invalid/app:v1")).id == busybox.image_id


def test_a_credential_helper_is_asked(
    tmp_path: Path, busybox: Layout, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    answer = json.dumps({"ServerURL": "x", "Username": "me", "Secret": ME.password})
    write_script(
        tmp_path / "bin/docker-credential-mine",
        f"read server; echo \"$1 $server\" >> {tmp_path}/asked; echo '{answer}'",
    )
    with HostileRegistry(busybox, basic_only()) as registry:
        for number, content in enumerate(
            (
                {"credHelpers": {registry.host: "mine"}, "auths": {registry.host: basic_entry("me", "wrong")}},
                {"credsStore": "mine", "auths": {registry.host: {}}},
            )
        ):
            config = docker_config(tmp_path / "config.json", **content)
            assert pull(open_store, registry.host, docker_config=config, name=f"app:v{number}") == busybox.image_id
        assert (tmp_path / "asked").read_text().splitlines() == [f"get {registry.host}"] * 2


@pytest.mark.requirement("V29")
def test_what_is_wrong_with_the_nodes_credentials_is_told_when_they_are_missed(
    tmp_path: Path, busybox: Layout, open_store: OpenStore
) -> None:
    config = docker_config(tmp_path / "config.json", credsStore="not-there", auths={})
    with HostileRegistry(busybox) as public:
        assert pull(open_store, public.host, docker_config=config) == busybox.image_id
    with (
        HostileRegistry(busybox, basic_only()) as private,
        pytest.raises(PermissionDenied, match="asks for credentials; docker-credential-not-there: ") as failure,
    ):
        pull(open_store, private.host, docker_config=config)
    assert "image pull secret" in failure.value.hint
    assert "--creds" in failure.value.hint


# Plugins


def plugin_config(path: Path, *providers: Mapping[str, Any]) -> str:
    """Write a CredentialProviderConfig."""
    document = {"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig", "providers": providers}
    path.write_text(json.dumps(document))
    return str(path)


def provider(name: str, *images: str, **more: Any) -> dict[str, Any]:
    version = "credentialprovider.kubelet.k8s.io/v1"
    return {"name": name, "matchImages": images, "defaultCacheDuration": "0s", "apiVersion": version} | more


def response(auth: Mapping[str, Any], kind: str = "Image", **more: Any) -> str:
    version = "credentialprovider.kubelet.k8s.io/v1"
    document = {"apiVersion": version, "kind": "CredentialProviderResponse", "cacheKeyType": kind, "auth": auth} | more
    return json.dumps(document)


@pytest.mark.requirement("V30")
def test_a_plugin_of_a_kubelet_is_asked(tmp_path: Path, busybox: Layout, open_store: OpenStore) -> None:
    with HostileRegistry(busybox, basic_only()) as registry:
        said = response({registry.host: {"username": "me", "password": ME.password}})
        text = f"cat >> {tmp_path}/asked; echo \" $1 $2 $REGION\" >> {tmp_path}/asked; echo '{said}'"
        write_script(tmp_path / "bin/mine", text)
        config = plugin_config(
            tmp_path / "plugins.yaml",
            provider("other", "*.example.com"),
            provider("mine", registry.host, args=["get", "it"], env=[{"name": "REGION", "value": "here"}]),
        )
        settings = {"credential_providers": config, "credential_provider_dir": str(tmp_path / "bin")}
        assert pull(open_store, registry.host, **settings) == busybox.image_id
        request, _, rest = (tmp_path / "asked").read_text().rpartition("} ")
        assert json.loads(request + "}") == {
            "kind": "CredentialProviderRequest",
            "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
            "image": f"{registry.host}/app",
        }
        assert rest == "get it here\n"
        # What a pod brings along wins.
        assert pull(open_store, registry.host, auth=ME, name="app:v2", **settings) == busybox.image_id
        assert (tmp_path / "asked").read_text().count("CredentialProviderRequest") == 1


@pytest.mark.requirement("V30")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("echo no network >&2; exit 3", "credential provider mine exited with 3: no network"),
        ("exit 1", "credential provider mine exited with 1: it said nothing"),
        ("echo sEcReT", "credential provider mine did not print a CredentialProviderResponse"),
        ("head -c 2000000 /dev/zero", "credential provider mine: the program printed more than"),
        (f"echo '{response({}).replace('/v1', '/v2')}'", "answered in another version"),
        (f"echo '{response({}, kind='Often')}'", "did not print a CredentialProviderResponse"),
        (f"echo '{response({}, cacheDuration='soon')}'", "cacheDuration: 'soon' is not a duration"),
        (f"echo '{response({})}'", "asks for credentials"),
    ],
)
def test_a_plugin_that_fails_hinders_no_public_image_and_is_named_where_it_is_missed(
    text: str, words: str, tmp_path: Path, busybox: Layout, open_store: OpenStore
) -> None:
    write_script(tmp_path / "bin/mine", text)
    settings = {
        "credential_providers": plugin_config(tmp_path / "plugins.json", provider("mine", "127.0.0.1")),
        "credential_provider_dir": str(tmp_path / "bin"),
    }
    with HostileRegistry(busybox, basic_only()) as private, HostileRegistry(busybox) as public:
        hosts = [provider("mine", private.host, public.host)]
        plugin_config(tmp_path / "plugins.json", *hosts)
        assert pull(open_store, public.host, **settings) == busybox.image_id
        with pytest.raises(PermissionDenied, match=re.escape(words)) as failure:
            pull(open_store, private.host, **settings)
    assert "sEcReT" not in str(failure.value)


# Which registries may be asked


@pytest.mark.requirement("V18")
def test_a_registry_that_is_not_allowed_is_not_asked(busybox: Layout, open_store: OpenStore) -> None:
    with HostileRegistry(busybox) as registry:
        for allowed in (("registry.example",), (f"{registry.host}/other", "127.0.0.1"), (f"{registry.host}/ap",)):
            with pytest.raises(
                PermissionDenied, match=f"{registry.host}/app may not be pulled to this node"
            ) as failure:
                pull(open_store, registry.host, allowed_registries=allowed)
            assert "images.allowed_registries" in failure.value.hint
        assert registry.requests == []
        for number, host in enumerate(
            (registry.host, f"{registry.host}/app", "*.0.0.1:" + registry.host.split(":")[1])
        ):
            assert (
                pull(open_store, registry.host, allowed_registries=(host,), name=f"app:v{number}") == busybox.image_id
            )


@pytest.mark.requirement("V18")
def test_mirrors_are_allowed_by_the_name_they_stand_for(busybox: Layout, open_store: OpenStore) -> None:
    with HostileRegistry(busybox) as mirror:
        registries = {"registry.invalid": RegistryConfig(mirrors=(f"http://{mirror.host}",))}
        store = open_store(registries=registries, allowed_registries=("registry.invalid",))
        assert asyncio.run(store.pull("registry.invalid/app:v1")).id == busybox.image_id
