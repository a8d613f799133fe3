"""The kubelet's certificate by the authority of this machine's API."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

import msgspec
import pytest

from podkeep.apiserver.server import certificates
from podkeep.apiserver.server.certificates import KUBELET_CLIENT, Files
from podkeep.base.config import Config
from podkeep.cli.core.kubelet_pki import prepared
from support import handshake


def configuration(root: Path) -> Config:
    config = Config()
    replace = msgspec.structs.replace
    agent = replace(config.agent, root=str(root / "agent"), node_name="n1")
    return replace(config, agent=agent, api=replace(config.api, root=str(root / "api")))


def authority(root: Path) -> Files:
    files = Files(root / "api")
    certificates.ensure(files, [KUBELET_CLIENT], int(time.time()))
    return files


def names(config: Config, files: Files) -> set[tuple[str, str]]:
    """Return for whom the certificate is, as a client learns it that trusts the API's authority alone."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(config.agent.tls_cert_file, config.agent.tls_private_key_file)
    return handshake.names(server, ssl.create_default_context(cafile=str(files.certificate("ca"))), "n1")


@pytest.mark.slow
def test_the_authority_signs_for_the_node_and_vouches_for_clients(tmp_path: Path) -> None:
    files = authority(tmp_path)
    config = prepared(configuration(tmp_path), ["192.0.2.7"])
    assert config.agent.authentication.x509.client_ca_file == str(files.certificate("ca"))
    assert names(config, files) == {("DNS", "n1"), ("IP Address", "127.0.0.1"), ("IP Address", "192.0.2.7")}
    key = Path(config.agent.tls_private_key_file)
    assert key.stat().st_mode & 0o77 == 0


@pytest.mark.slow
def test_a_certificate_is_made_anew_only_when_it_does_not_fit(tmp_path: Path) -> None:
    """For the same node, addresses and authority it stays; else there is a new one."""
    files = authority(tmp_path)
    config = prepared(configuration(tmp_path), ["192.0.2.7"])
    file = Path(config.agent.tls_cert_file)
    first = file.read_bytes()
    prepared(configuration(tmp_path), ["192.0.2.7"])
    assert file.read_bytes() == first
    prepared(configuration(tmp_path), ["192.0.2.8"])
    second = file.read_bytes()
    assert second != first
    for path in (files.certificate("ca"), files.key("ca")):
        path.unlink()
    files = authority(tmp_path)
    again = prepared(configuration(tmp_path), ["192.0.2.8"])
    assert file.read_bytes() != second
    assert ("DNS", "n1") in names(again, files)


@pytest.mark.slow
def test_what_the_configuration_names_is_left_alone(tmp_path: Path) -> None:
    authority(tmp_path)
    replace = msgspec.structs.replace
    config = configuration(tmp_path)
    x509 = replace(config.agent.authentication.x509, client_ca_file="/own-ca.crt")
    own = replace(
        config.agent,
        tls_cert_file="/own.crt",
        tls_private_key_file="/own.key",
        authentication=replace(config.agent.authentication, x509=x509),
    )
    assert prepared(replace(config, agent=own), []) == replace(config, agent=own)


def test_without_an_authority_nothing_is_named(tmp_path: Path) -> None:
    config = configuration(tmp_path)
    assert prepared(config, ["192.0.2.7"], wait=0) == config
