"""A registry that says again what it was told: no credential, token or signature comes out anywhere."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from podkeep.base.errors import PodkeepError
from podkeep.cri.v1 import api_pb2 as api
from support.cri import Pods
from support.daemon import Daemon
from support.processes import write_script
from support.registry import Answer, HostileRegistry

PASSWORD = "correct-horse-battery-staple"
BASIC = base64.b64encode(f"somebody:{PASSWORD}".encode()).decode()
TOKEN = "tok-4711-0815-abcdefghijklmnopqrstuvwxyz-ABCDEFGHIJKLMNOPQRSTUVWXYZ"
IDENTITY = "idt-0123456789-zyxwvutsrqponmlkjihgfedcba"
SIGNATURE = "sig-9f8e7d6c5b4a39281706f5e4d3c2b1a0"
HELPER = "hlp-a1b2c3d4e5f60718293a4b5c6d7e8f90"
SECRETS = (PASSWORD, BASIC, TOKEN, IDENTITY, SIGNATURE, HELPER)


def _leaked(text: str) -> list[str]:
    """Return the secrets of which eight characters in a row are in a text."""
    return [secret for secret in SECRETS if any(secret[at : at + 8] in text for at in range(len(secret) - 7))]


def _reflected(headers: Mapping[str, str]) -> str:
    return headers.get("Authorization", "nothing") + " " + headers.get("X-Body", "")


def _refusal(status: int, words: str) -> Answer:
    body = json.dumps({"errors": [{"code": "DENIED", "message": words}]}).encode()
    return Answer(status=status, body=body, headers={"Retry-After": "0"})


class Reflecting:
    """Gives tokens, and then answers in a way that has all it was told in it."""

    how = ""
    host = ""

    def __call__(self, path: str, headers: Mapping[str, str]) -> Answer | None:
        told = _reflected(headers)
        if path.startswith("/token"):
            if self.how == "the token server refuses":
                return _refusal(401, told)
            if self.how == "the token server redirects":
                return Answer(status=307, headers={"Location": f"ftp://x/{told}?sig={SIGNATURE}"})
            if self.how == "the token is none":
                return Answer(body=f'{{"token": "{TOKEN} \\u00e9"}}'.encode())
            return Answer(body=json.dumps({"token": TOKEN}).encode())
        if "Authorization" not in headers and path.startswith("/v2/") and "bucket" not in path:
            realm = f'Bearer realm="http://{self.host}/token",service="x"'
            return Answer(status=401, headers={"WWW-Authenticate": realm})
        return self._refused(path, told)

    def _refused(self, path: str, told: str) -> Answer:
        away = f"http://{self.host}/v2/bucket/{told.replace(' ', '/')}?X-Amz-Signature={SIGNATURE}"
        if "bucket" in path and self.how == "the redirect's target fails":
            return _refusal(500, f"no such object: {path}")
        if "bucket" in path:
            return _refusal(403, f"SignatureDoesNotMatch: {path} {told}")
        answers = {
            "it refuses": _refusal(403, told),
            "it quotes a long line": _refusal(404, "x" * 170 + told),
            "it is down": _refusal(500, told),
            "it redirects nowhere": Answer(status=307, headers={"Location": f"ftp://me:{told}@x/?sig={SIGNATURE}"}),
            "it redirects to what is no URL": Answer(status=307, headers={"Location": f"http://[{told}\u2100/"}),
            "it breaks its headers": Answer(raw=f"HTTP/1.1 200 OK\r\n{told} no colon\r\n\r\n".encode()),
            "it speaks something else": Answer(raw=f"{TOKEN} {told}\r\n".encode()),
            "it gives the body another type": Answer(body=f"{told}".encode()),
        }
        return answers.get(self.how) or Answer(status=307, headers={"Location": away})


WAYS = [
    "it refuses",
    "it quotes a long line",
    "it is down",
    "it redirects nowhere",
    "it redirects to what is no URL",
    "it redirects to a signed address",
    "the redirect's target fails",
    "it breaks its headers",
    "it speaks something else",
    "it gives the body another type",
    "the token server refuses",
    "the token server redirects",
    "the token is none",
]


@pytest.fixture
def daemon_of_a_node(own_daemon: Daemon) -> Daemon:
    """A daemon whose log has everything, and that is told of registries when they are there."""
    own_daemon.extra += "[images]\nprogress_timeout = 5\n"
    return own_daemon


def _pulled(pods: Pods, image: str) -> list[str]:
    """Pull with credentials of every kind, which must fail; return what is said."""
    said = []
    for auth in (
        api.AuthConfig(username="somebody", password=PASSWORD),
        api.AuthConfig(identity_token=IDENTITY),
        api.AuthConfig(registry_token=TOKEN),
    ):
        request = api.PullImageRequest(image=api.ImageSpec(image=image), auth=auth)
        with pytest.raises(PodkeepError) as caught:
            pods.call("PullImage", request, service="images")
        said.append(str(caught.value))
    return said


def test_nothing_that_a_registry_says_has_a_secret_in_it(daemon_of_a_node: Daemon) -> None:
    daemon, decide = daemon_of_a_node, Reflecting()
    with HostileRegistry(None, decide) as registry:
        decide.host = registry.host
        daemon.extra += f'[registries."{registry.host}"]\ninsecure = true\n'
        daemon.write()
        daemon.start()
        with Pods(daemon.socket, "") as pods:
            for decide.how in WAYS:
                registry.requests.clear()
                for text in _pulled(pods, f"{registry.host}/app:v1"):
                    assert _leaked(text) == [], decide.how
                for secret in (BASIC, TOKEN, IDENTITY):
                    assert secret in str(registry.requests), "it was told, so it could tell"
        decide.how = "it redirects to a signed address"
        shown = daemon.run("--debug", "image", "pull", f"{registry.host}/app:v1", "--creds", f"somebody:{PASSWORD}")
        assert shown.returncode == 1
        assert daemon.stop() == 0
    assert _leaked(shown.stdout + shown.stderr) == []
    assert _leaked(daemon.log.read_text()) == []


def test_nothing_that_artifact_says_has_a_secret_in_it(daemon_of_a_node: Daemon, tmp_path: Path) -> None:
    daemon, decide = daemon_of_a_node, Reflecting()
    (tmp_path / "file").write_text("x")
    with HostileRegistry(None, decide) as registry:
        decide.host = registry.host
        config = tmp_path / "docker.json"
        config.write_text(json.dumps({"auths": {registry.host: {"auth": BASIC}}}))
        daemon.extra += f'docker_config = "{config}"\n[registries."{registry.host}"]\ninsecure = true\n'
        daemon.write()
        for number, decide.how in enumerate(WAYS):
            verb = ("push", f"{registry.host}/app:v1", str(tmp_path / "file"))
            if number % 2:
                verb = ("referrers", f"{registry.host}/app:v1")
            done = daemon.run("--debug", "artifact", *verb)
            assert done.returncode == 1
            assert "Traceback" in done.stderr
            assert _leaked(done.stdout + done.stderr) == [], decide.how


def test_a_credential_helper_that_quotes_a_token_does_so_in_vain(daemon_of_a_node: Daemon, tmp_path: Path) -> None:
    helper = tmp_path / "docker-credential-talks"
    words = f"refused: Bearer {HELPER} at https://me:{HELPER}@x/?token={HELPER}"
    write_script(helper, f"#!/bin/sh\necho '{words}' >&2\nexit 1\n")
    config = tmp_path / "docker.json"
    config.write_text(json.dumps({"credsStore": "talks"}))
    daemon = daemon_of_a_node
    daemon.environment = {"PATH": f"{tmp_path}:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"}
    with HostileRegistry(None, lambda _path, _headers: _refusal(403, "no")) as registry:
        daemon.extra += f'docker_config = "{config}"\n[registries."{registry.host}"]\ninsecure = true\n'
        daemon.write()
        daemon.start()
        done = daemon.run("image", "pull", f"{registry.host}/app:v1")
        assert done.returncode == 1
        assert "docker-credential-talks exited with 1: refused: Bearer [hidden] at" in done.stderr
        assert daemon.stop() == 0
    assert "docker-credential-talks" in daemon.log.read_text()
    assert _leaked(done.stdout + done.stderr + daemon.log.read_text()) == []
