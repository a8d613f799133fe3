"""A database without room: writes fail with a reason, reads and watches go on, and nothing is lost."""

from __future__ import annotations

import random
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from podkeep.base import service
from podkeep.kernel.mount import mounts
from support.api_client import Answer, ApiClient
from support.api_daemon import ApiDaemon
from support.waiting import TIMEOUT_S

_PATH = "/api/v1/namespaces/default/configmaps"


@pytest.fixture
def api(tmp_path: Path, scratch_machine: None) -> Iterator[ApiDaemon]:
    """An API, not started yet, whose directory has 3 MiB."""
    daemon = ApiDaemon(tmp_path)
    daemon.root.mkdir()
    mounts.tmpfs(daemon.root, "mode=700,size=3m")
    yield daemon
    daemon.stop()
    mounts.unmount(daemon.root, lazy=True)


def _write(client: ApiClient, name: str) -> Answer:
    text = random.Random(name).randbytes(40_000).hex()  # which no file system makes smaller
    return client.ask("POST", _PATH, {"metadata": {"name": name}, "data": {"x": text}})


def _names(client: ApiClient) -> list[str]:
    """Return the names of what was written; the authorities' ConfigMap comes when the controllers have begun."""
    names = (item["metadata"]["name"] for item in client.ask("GET", _PATH).value["items"])
    return sorted(name for name in names if name != "kube-root-ca.crt")


def test_a_full_disk_loses_nothing(api: ApiDaemon) -> None:
    with api, closing(ApiClient(api.socket)) as client:
        kept: list[str] = []
        for number in range(100):
            answer = _write(client, f"c{number:02}")
            if answer.status != 201:
                break
            kept.append(f"c{number:02}")
        assert answer.status == 500
        assert "cannot be written: its disk is full; hint: free space th" in answer.said
        again = _write(client, "other")
        assert (again.status, again.said) == (500, answer.said)
        assert client.ask("DELETE", f"{_PATH}/{kept[-1]}").status == 500
        assert _names(client) == sorted(kept)
        revision = client.ask("GET", _PATH).value["metadata"]["resourceVersion"]
        assert client.ask("GET", "/readyz").status == 200
        subprocess.run(["mount", "-o", "remount,size=30m", str(api.root)], check=True, timeout=TIMEOUT_S)
        assert _write(client, "later").status == 201
        with closing(ApiClient(api.socket)) as watcher:
            told = watcher.watch(f"{_PATH}?watch=true&resourceVersion={revision}&timeoutSeconds=30")
            event = next(item for item in told if item["object"]["metadata"]["name"] != "kube-root-ca.crt")
        assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "later")
        api.stop()
        api.start()
        with closing(ApiClient(api.socket)) as new:
            assert _names(new) == sorted([*kept, "later"])


def test_a_full_disk_is_told_to_who_looks_after_the_daemon(api: ApiDaemon, tmp_path: Path) -> None:
    """`podkeep status` shows what it tells: nothing else of a node says that nothing is written any more."""
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(TIMEOUT_S)
        api.environment["NOTIFY_SOCKET"] = str(tmp_path / "notify")

        def told(*, problem: bool) -> dict[str, str]:
            """Return the next thing that is said of the state with a problem, or without."""
            while True:
                said = service.parse(manager.recv(4096))
                if "STATUS" in said and (service.PROBLEM in said) is problem:
                    return said

        with api, closing(ApiClient(api.socket)) as client:
            serves = told(problem=False)["STATUS"]
            assert any(_write(client, f"c{number:02}").status != 201 for number in range(100))
            full = f"the API's database {api.root / 'api.db'} cannot be written: its disk is full"
            said = told(problem=True)
            assert (said[service.PROBLEM], said["STATUS"]) == (full, f"{serves}; {full}; hint: free space there")
            subprocess.run(["mount", "-o", "remount,size=30m", str(api.root)], check=True, timeout=TIMEOUT_S)
            assert _write(client, "later").status == 201
            assert told(problem=False)["STATUS"] == serves
