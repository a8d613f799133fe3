"""A certificate that a server made for itself."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest

from podkeep.http import self_signed
from podkeep.http.tls import server_context
from support import handshake

DAY = 24 * 3600


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate and its key, made just now."""
    files = tmp_path / "pki" / "kubelet.crt", tmp_path / "pki" / "kubelet.key"
    self_signed.ensure(*files, "n1", ["n1", "localhost"], ["127.0.0.1", "::1"])
    return files


def test_it_can_be_served_and_its_key_is_for_root_alone(files: tuple[Path, Path]) -> None:
    certificate, key = files
    server = server_context("the kubelet", str(certificate), str(key))
    trusting = ssl.create_default_context(cafile=str(certificate))
    assert handshake.names(server, trusting, "n1") == {
        ("DNS", "n1"),
        ("DNS", "localhost"),
        ("IP Address", "127.0.0.1"),
        ("IP Address", "0:0:0:0:0:0:0:1"),
    }
    assert key.stat().st_mode & 0o77 == 0


@pytest.mark.slow
@pytest.mark.parametrize(("age", "kept"), [(0, True), (300 * DAY, True), (340 * DAY, False), (400 * DAY, False)])
def test_it_is_made_anew_when_it_ends_soon(files: tuple[Path, Path], age: int, kept: bool) -> None:
    before = files[0].read_bytes()
    now = files[0].stat().st_mtime
    os.utime(files[0], (now - age, now - age))
    self_signed.ensure(*files, "n1", ["n1"], [])
    assert (files[0].read_bytes() == before) is kept
