"""``podkeep kubeconfig``: for whom, in which form, and what it says when there is nothing to make it of."""

from __future__ import annotations

import base64
import datetime
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from cryptography import x509

from podkeep.apiserver.server import certificates
from podkeep.base.errors import FailedPrecondition, InvalidArgument
from podkeep.cli.core.invocation import Invocation
from podkeep.cli.kubeconfig import command

CONFIG = {"apiVersion": "v1", "kind": "Config"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an API that was started once."""
    made = tmp_path_factory.mktemp("api")
    certificates.ensure(certificates.Files(made), certificates.CLIENTS, int(time.time()))
    return made


def run(root: Path, *arguments: str, settings: tuple[str, ...] = ()) -> Result:
    invocation = Invocation(config_path=None, debug=False, settings=(f"api.root={root}", *settings))
    return CliRunner().invoke(command, arguments, obj=invocation)


def read(text: str) -> tuple[str, str, x509.Certificate]:
    """Return server, user and certificate of a kubeconfig."""
    value: Any = msgspec.yaml.decode(text)
    (cluster,), (user,) = value["clusters"], value["users"]
    assert value["current-context"] == f"{user['name']}@podkeep"
    certificate = x509.load_pem_x509_certificate(base64.b64decode(user["user"]["client-certificate-data"]))
    return cluster["cluster"]["server"], user["name"], certificate


def names(certificate: x509.Certificate) -> list[str | bytes]:
    return [attribute.value for attribute in certificate.subject]


def test_it_is_the_administrators(root: Path) -> None:
    server, user, certificate = read(run(root).output)
    assert (server, user) == ("https://127.0.0.1:6443", "kubernetes-admin")
    assert names(certificate) == ["system:masters", "kubernetes-admin"]


@pytest.mark.slow
def test_it_is_somebody_elses(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "ann.conf"
    arguments = ("--user", "ann", "--group", "dev", "--group", "ops", "--days", "2", "--file", str(file))
    result = run(root, *arguments, settings=("api.address=0.0.0.0:7443",))
    assert result.output == f"{file}: ann at https://127.0.0.1:7443\n"
    assert file.stat().st_mode & 0o777 == 0o600
    server, user, certificate = read(file.read_text())
    assert (server, user) == ("https://127.0.0.1:7443", "ann")
    assert names(certificate) == ["dev", "ops", "ann"]
    least = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=2) - certificate.not_valid_after_utc
    assert datetime.timedelta() <= least < datetime.timedelta(minutes=1)


def test_it_names_the_server_that_is_asked_for(root: Path) -> None:
    assert read(run(root, "--server", "https://node:1", settings=("api.address=",)).output)[0] == "https://node:1"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "settings", "error", "message"),
    [
        (("--group", "dev"), (), InvalidArgument, "--group and --days are of a user"),
        ((), ("api.address=",), FailedPrecondition, "not served over TLS"),
        (("--user", "x" * 65), (), FailedPrecondition, "cannot be made"),
        (("--file", "/proc/nothing/here"), (), FailedPrecondition, "cannot be written"),
        (("--root", "/nowhere"), (), FailedPrecondition, "no authority yet"),
    ],
)
def test_what_it_cannot_do(
    root: Path, arguments: tuple[str, ...], settings: tuple[str, ...], error: type[Exception], message: str
) -> None:
    result = run(root, *arguments, settings=settings)
    assert isinstance(result.exception, error)
    assert message in str(result.exception)


def test_the_directory_of_the_file_is_made(root: Path, tmp_path: Path) -> None:
    """A machine on which kubectl was never used has no ~/.kube; kubectl makes it, too."""
    file = tmp_path / "home/.kube/config"
    assert run(root, "--file", str(file)).exit_code == 0
    assert read(file.read_text())[1] == "kubernetes-admin"


@pytest.mark.parametrize(
    "there", ["", "\n", "apiVersion: v1\nclusters: null\ncontexts: []\nkind: Config\nusers: null\n"]
)
def test_an_empty_file_is_replaced(root: Path, tmp_path: Path, there: str) -> None:
    """As `kubectl config unset` leaves it."""
    file = tmp_path / "config"
    file.write_text(there)
    assert run(root, "--file", str(file)).exit_code == 0
    assert read(file.read_text())[1] == "kubernetes-admin"


@pytest.mark.slow
def test_a_file_of_its_own_is_replaced(root: Path, tmp_path: Path) -> None:
    """Also for another user, and after kubectl noted a namespace in it."""
    file = tmp_path / "config"
    assert run(root, "--file", str(file)).exit_code == 0
    value: Any = msgspec.yaml.decode(file.read_text())
    value["contexts"][0]["context"]["namespace"] = "shop"
    file.write_bytes(msgspec.yaml.encode(value))
    assert run(root, "--user", "ann", "--file", str(file)).exit_code == 0
    assert read(file.read_text())[1] == "ann"


@pytest.mark.parametrize(
    "there",
    [
        CONFIG | {"clusters": [{"name": "work", "cluster": {"server": "https://work:6443"}}]},
        CONFIG | {"clusters": [{"name": "podkeep"}, {"name": "work"}]},
        CONFIG | {"users": [{"name": "me"}]},
        CONFIG | {"contexts": [{"name": "me@work", "context": {"cluster": "work", "user": "me"}}]},
        CONFIG | {"clusters": "none"},
        {"apiVersion": "v1", "kind": "Pod"},
        ["no", "kubeconfig"],
        "a text",
        {"when": datetime.date(2026, 1, 1)},
    ],
)
def test_the_access_to_other_clusters_is_not_lost(root: Path, tmp_path: Path, there: Any) -> None:
    """A kubeconfig of others, or a file that is none, is left as it is."""
    file = tmp_path / "config"
    file.write_bytes(msgspec.yaml.encode(there))
    before = file.read_bytes()
    result = run(root, "--file", str(file))
    assert isinstance(result.exception, FailedPrecondition)
    assert "is there and holds something else" in str(result.exception)
    assert "KUBECONFIG" in result.exception.hint
    assert file.read_bytes() == before
