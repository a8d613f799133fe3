"""Credentials of the node: docker's file and helpers, and the plugins of a kubelet."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from podkeep.base.config import ImagesConfig
from podkeep.base.errors import FailedPrecondition, InvalidArgument
from podkeep.base.registries import credential_providers
from podkeep.base.registries.credential_providers import Provider, Providers, load, parse_duration
from podkeep.base.registries.docker_config import Credentials
from podkeep.images.registry.credentials import NodeCredentials, check, from_docker, from_helper
from support.processes import write_script

VERSION = "credentialprovider.kubelet.k8s.io/v1"
CONFIG_VERSION = "kubelet.config.k8s.io/v1"


def provider(path: Path, *images: str, cache_seconds: float = 0.0) -> Provider:
    return Provider(
        name=path.name,
        path=str(path),
        match_images=images,
        cache_seconds=cache_seconds,
        api_version=VERSION,
        args=(),
        env=(),
    )


def response(auth: dict[str, Any], kind: str = "Image", **more: Any) -> str:
    document = {"apiVersion": VERSION, "kind": "CredentialProviderResponse", "cacheKeyType": kind, "auth": auth}
    return json.dumps(document | more)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("0s", 0), ("12h", 43200), ("1h30m", 5400), ("1.5s", 1.5), (".5s", 0.5), ("250ms", 0.25), ("1m0s", 60)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "s", "-1s", "1d", "1h 2m", "1h2", "h1"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


@pytest.mark.requirement("V30")
@pytest.mark.parametrize(
    ("pattern", "image", "matches"),
    [
        ("123456789.dkr.ecr.us-east-1.amazonaws.com", "123456789.dkr.ecr.us-east-1.amazonaws.com/app", True),
        ("*.dkr.ecr.*.amazonaws.com", "123456789.dkr.ecr.us-east-1.amazonaws.com/app", True),
        ("*.azurecr.io", "mine.azurecr.io/app", True),
        ("*.azurecr.io", "a.mine.azurecr.io/app", False),
        ("*.azurecr.io", "azurecr.io/app", False),
        ("gcr.io", "gcr.io/a/b", True),
        ("gcr.io/a", "gcr.io/a/b", True),
        ("gcr.io/b", "gcr.io/a/b", False),
        ("registry.io:8080/path", "registry.io:8080/path/app", True),
        ("registry.io:8080", "registry.io/app", False),
        ("registry.io", "registry.io:8080/app", False),
        ("*.*.registry.io", "a.b.registry.io/app", True),
        ("k*.io", "k8s.io/app", True),
        ("docker.io", "docker.io/library/busybox", True),
    ],
)
def test_which_images_a_plugin_is_for(pattern: str, image: str, matches: bool) -> None:
    assert provider(Path("/x"), "other.example", pattern).matches(image) == matches


def entry(**more: Any) -> dict[str, Any]:
    base = {"name": "mine", "matchImages": ["r.example"], "defaultCacheDuration": "1h", "apiVersion": VERSION}
    return {key: value for key, value in (base | more).items() if value is not None}


def config(*providers: Any, **more: Any) -> str:
    document = {"apiVersion": CONFIG_VERSION, "kind": "CredentialProviderConfig", "providers": list(providers)}
    return json.dumps(document | more)


def test_the_configuration_of_plugins(tmp_path: Path) -> None:
    yaml = f"""
apiVersion: {CONFIG_VERSION}
kind: CredentialProviderConfig
providers:
- name: ecr
  matchImages: ["*.dkr.ecr.*.amazonaws.com", "r.example/team"]
  defaultCacheDuration: "12h"
  apiVersion: {VERSION}
  args: [get-credentials]
  env:
  - name: AWS_PROFILE
    value: node
"""
    (tmp_path / "b.yaml").write_text(yaml)
    (tmp_path / "a.json").write_text(config(entry()))
    (tmp_path / "notes.txt").write_text("no configuration")
    first, second = load(str(tmp_path), "/plugins")
    assert (first.name, first.path, first.cache_seconds) == ("mine", "/plugins/mine", 3600)
    assert (second.name, second.args, second.env) == ("ecr", ("get-credentials",), (("AWS_PROFILE", "node"),))
    assert second.match_images == ("*.dkr.ecr.*.amazonaws.com", "r.example/team")
    assert load(str(tmp_path / "b.yaml"), "/plugins") == (second,)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "neither YAML nor JSON"),
        ("[]", "Expected `object`"),
        (config(), "names no provider"),
        (config(entry(), entry()), "two providers of the name 'mine'"),
        (config(entry(), kind="Pod"), "it is a 'Pod'"),
        (config(entry(), apiVersion="v1"), "it is a 'CredentialProviderConfig' of 'v1'"),
        (config(entry(name="../x")), "the name must be that of a file"),
        (config(entry(name="..")), "the name must be that of a file"),
        (config(entry(name="a b")), "the name must be that of a file"),
        (config(entry(apiVersion="x/v1")), "apiVersion 'x/v1' is unknown"),
        (config(entry(matchImages=[])), "matchImages is empty"),
        (config(entry(matchImages=None)), "missing required field `matchImages`"),
        (config(entry(defaultCacheDuration="often")), "defaultCacheDuration: 'often' is not a duration"),
        (config(entry(tokenAttributes={})), "tokenAttributes: plugins get no tokens"),
        (config(entry(matchimages=[])), "unknown field `matchimages`"),
    ],
)
def test_configurations_of_plugins_that_are_refused(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "plugins.yaml"
    path.write_text(text)
    with pytest.raises(InvalidArgument) as caught:
        check(ImagesConfig(credential_providers=str(path), credential_provider_dir="/plugins"))
    assert caught.value.message.startswith(f"images.credential_providers: {path}")
    assert why in caught.value.message


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"docker_config": "config.json"}, "images.docker_config: 'config.json' is not an absolute path"),
        ({"credential_providers": "/x"}, "credential_providers and credential_provider_dir go together"),
        ({"credential_provider_dir": "/x"}, "credential_providers and credential_provider_dir go together"),
        (
            {"credential_providers": "/not/there", "credential_provider_dir": "/x"},
            "images.credential_providers: /not/there: No such file",
        ),
    ],
)
def test_settings_that_are_refused(settings: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check(ImagesConfig(**settings))
    assert caught.value.message.startswith(why) or why in caught.value.message


@pytest.mark.requirement("V30")
@pytest.mark.parametrize(
    ("kind", "more", "images", "asked"),
    [
        ("Image", {"cacheDuration": "1h"}, ["r.example/a", "r.example/a", "r.example/b"], 2),
        ("Registry", {"cacheDuration": "1h"}, ["r.example/a", "r.example/b", "s.example/a"], 2),
        ("Global", {"cacheDuration": "1h"}, ["r.example/a", "s.example/b"], 1),
        ("Global", {"cacheDuration": "0s"}, ["r.example/a", "r.example/a"], 2),
        ("Global", {}, ["r.example/a", "r.example/a"], 1),
        ("Global", {"cacheDuration": None}, ["r.example/a", "r.example/a"], 1),
    ],
)
def test_what_a_plugin_says_is_kept_as_it_says(
    kind: str, more: dict[str, Any], images: list[str], asked: int, tmp_path: Path
) -> None:
    said = response({"*.example": {"username": "u", "password": "p"}}, kind, **more)
    path = write_script(tmp_path / "mine", f"cat >> {tmp_path}/asked; echo >> {tmp_path}/asked; echo '{said}'")
    providers = Providers([provider(path, "*.example", cache_seconds=3600)])
    for image in images:
        assert providers.ask(image).entries == (("*.example", Credentials(username="u", password="p")),)
    assert len((tmp_path / "asked").read_text().splitlines()) == asked


def test_a_plugin_that_is_not_kept_by_default_is_asked_each_time(tmp_path: Path) -> None:
    path = write_script(tmp_path / "mine", f"echo x >> {tmp_path}/asked; echo '{response({})}'")
    providers = Providers([provider(path, "r.example")])
    for _ in range(2):
        assert providers.ask("r.example/a").entries == ()
    assert (tmp_path / "asked").read_text() == "x\nx\n"


def test_one_plugin_that_fails_hinders_no_other(tmp_path: Path) -> None:
    said = response({"r.example": {"username": "u", "password": "p"}})
    providers = Providers(
        [
            provider(tmp_path / "gone", "r.example"),
            provider(write_script(tmp_path / "broken", "echo 'no\nlogin' >&2; exit 7"), "r.example"),
            provider(write_script(tmp_path / "fine", f"echo '{said}'"), "r.example"),
            provider(write_script(tmp_path / "other", "exit 1"), "other.example"),
        ]
    )
    (tmp_path / "text").write_text("no program")
    told = providers.ask("r.example/a")
    assert told.entries == (("r.example", Credentials(username="u", password="p")),)
    gone, broken = told.problems
    assert gone.startswith("credential provider gone: cannot run")
    assert broken == "credential provider broken exited with 7: no login"


@pytest.mark.slow
def test_a_plugin_that_hangs_is_ended(tmp_path: Path) -> None:
    path = write_script(tmp_path / "mine", "sleep 1000 & wait")
    with pytest.raises(FailedPrecondition, match="credential provider mine: the program did not finish in time"):
        credential_providers.run(provider(path, "r.example"), "r.example/a", timeout=0.2)


def write(path: Path, **content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


def auth(user: str) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:p".encode()).decode()}


def user(name: str) -> Credentials:
    return Credentials(username=name, password="p")


@pytest.fixture
def helpers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of credential helpers in PATH."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    answer = json.dumps({"ServerURL": "x", "Username": "helped", "Secret": "p"})
    write_script(tmp_path / "bin/docker-credential-good", f"cat > {tmp_path}/server; echo '{answer}'")
    write_script(tmp_path / "bin/docker-credential-none", "echo credentials not found in native keychain; exit 1")
    write_script(tmp_path / "bin/docker-credential-bad", "echo cannot open the keychain >&2; exit 1")
    write_script(tmp_path / "bin/docker-credential-odd", 'echo \'{"Username": "sEcReT"}\'')
    half = r'{"Username": "u", "Secret": "sEcReT\ud800"}'
    write_script(tmp_path / "bin/docker-credential-half", f"cat <<'END'\n{half}\nEND")
    write_script(tmp_path / "bin/docker-credential-slow", "sleep 1000")
    token = json.dumps({"ServerURL": "x", "Username": "<token>", "Secret": "refresh"})
    write_script(tmp_path / "bin/docker-credential-token", f"echo '{token}'")
    return tmp_path


@pytest.mark.requirement("V29")
def test_the_order_of_dockers_credentials(helpers: Path) -> None:
    path = helpers / "config.json"
    auths = {"r.example": auth("host"), "r.example/team": auth("team"), "s.example": {}}
    write(path, auths=auths)
    assert from_docker(path, "r.example/team/app") == (user("team"), user("host"))
    assert from_docker(path, "s.example/app") == ()
    write(path, auths=auths, credHelpers={"r.example": "good"}, credsStore="none")
    assert from_docker(path, "r.example/team/app") == (user("helped"),)
    assert (helpers / "server").read_text() == "r.example"
    write(path, auths=auths, credsStore="good")
    assert from_docker(path, "r.example/other") == (user("host"),)
    assert from_docker(path, "s.example/app") == (user("helped"),)
    assert (helpers / "server").read_text() == "s.example"
    write(path, credHelpers={"https://index.docker.io/v1/": "good"})
    assert from_docker(path, "docker.io/library/busybox") == (user("helped"),)
    assert (helpers / "server").read_text() == "https://index.docker.io/v1/"


@pytest.mark.slow
def test_what_helpers_say(helpers: Path) -> None:
    assert from_helper("token", "r.example") == (Credentials(identity_token="refresh"),)
    assert from_helper("none", "r.example") == ()
    for name, words in (
        ("bad", "docker-credential-bad exited with 1: cannot open the keychain"),
        ("odd", "docker-credential-odd did not print credentials"),
        ("half", "docker-credential-half did not print credentials"),
        ("gone", "docker-credential-gone: "),
        ("../../bin/sh", "is not the name of a credential helper"),
        (5, "is not the name of a credential helper"),
    ):
        with pytest.raises(FailedPrecondition, match=words) as caught:
            from_helper(name, "r.example")
        assert "sEcReT" not in str(caught.value)
    with pytest.raises(FailedPrecondition, match="did not finish in time"):
        from_helper("slow", "r.example", timeout=0.2)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"{", "not valid JSON"),
        (rb'{"credsStore": "\udfff"}', "config.json: it has half of a surrogate pair"),
        (b'{"auths": 5}', "auths: expected an object"),
        (b'{"credHelpers": [5]}', "credHelpers is not an object"),
        (b'{"credsStore": 5}', "credsStore not a string"),
        (b'{"credHelpers": {"r.example": 5}}', "is not the name of a credential helper"),
        (b"null", "expected an object"),
        (b"5", "expected an object"),
        (b" " * (2 << 20), "it has more than 1048576 bytes"),
    ],
)
def test_files_that_are_refused(content: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises((InvalidArgument, FailedPrecondition), match=why):
        from_docker(path, "r.example/app")


@pytest.mark.requirement("V30")
def test_plugins_go_before_dockers_file_and_problems_are_told(helpers: Path) -> None:
    said = response({"r.example": {"username": "plugin", "password": "p"}})
    write_script(helpers / "plugins/mine", f"echo '{said}'")
    (helpers / "plugins.json").write_text(config(entry()))
    write(helpers / "config.json", auths={"r.example": auth("host")})
    settings = ImagesConfig(
        docker_config=str(helpers / "config.json"),
        credential_providers=str(helpers / "plugins.json"),
        credential_provider_dir=str(helpers / "plugins"),
    )
    check(settings)
    found = NodeCredentials(settings).find("r.example/app")
    assert (found.credentials, found.problems) == ((user("plugin"), user("host")), ())
    (helpers / "config.json").unlink()
    (helpers / "plugins/mine").unlink()
    found = NodeCredentials(settings).find("r.example/app")
    assert found.credentials == ()
    assert [problem.partition(":")[0] for problem in found.problems] == [
        "credential provider mine",
        "images.docker_config",
    ]
    assert NodeCredentials(ImagesConfig()).find("r.example/app").credentials == ()
