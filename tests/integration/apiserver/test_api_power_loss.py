"""Acknowledged writes on a disk that forgets what was not synced."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from pathlib import Path

from support import powerloss
from support.api_client import ApiClient
from support.api_daemon import ApiDaemon

_PATH = "/api/v1/namespaces/default/configmaps"


def test_acknowledged_writes_are_there_after_a_loss_of_power(tmp_path: Path, scratch_machine: None) -> None:
    api = ApiDaemon(tmp_path)
    api.root.mkdir()
    written: list[str] = []
    with powerloss.mounted(api.root) as disk:
        for cut in range(3):
            with api:
                with closing(ApiClient(api.socket)) as client:
                    listed = {item["metadata"]["name"] for item in client.ask("GET", _PATH).value["items"]}
                    assert set(written) <= listed
                    for number in range(20):
                        name = f"w{cut}-{number}"
                        assert client.ask("POST", _PATH, {"metadata": {"name": name}}).status == 201
                        written.append(name)
                api.stop(signal.SIGKILL)
            disk.lose_power()
        with api, closing(ApiClient(api.socket)) as client:
            listed = {item["metadata"]["name"] for item in client.ask("GET", _PATH).value["items"]}
            assert set(written) <= listed


def test_the_disk_forgets_what_was_not_synced(tmp_path: Path, scratch_machine: None) -> None:
    with powerloss.mounted(tmp_path) as disk:
        (tmp_path / "lost").write_text("lost")
        with (tmp_path / "kept").open("w") as file:
            file.write("kept")
            file.flush()
            os.fsync(file.fileno())
        disk.lose_power()
        assert not (tmp_path / "lost").exists()
        assert (tmp_path / "kept").read_text() == "kept"
