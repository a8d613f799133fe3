"""Certificates of an API that serves: they are renewed in time, also when the clock is set."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from podkeep.apiserver.endpoints.kubelets import Kubelets
from podkeep.apiserver.registry.lister import StoreLister
from podkeep.apiserver.server import daemon, sockets
from podkeep.apiserver.server.certificates import AUTHORITY, KUBELET_CLIENT, Files
from podkeep.apiserver.server.sockets import Sockets, make_certificates
from podkeep.apiserver.storage.store import Store
from podkeep.base.config import ApiConfig, Config

YEAR = 365 * 24 * 3600.0


class SetTime:
    """The module ``time`` of a machine whose clock is set; timers go on as they are."""

    ahead = 0.0
    monotonic = staticmethod(time.monotonic)

    def time(self) -> float:
        return time.time() + self.ahead


class ToldSockets(Sockets):
    """Tells when everything was renewed."""

    def __init__(self, api: ApiConfig, files: Files, renewed: Callable[[], None]) -> None:
        super().__init__(api, files)
        self._renewed = renewed

    def write_kubeconfigs(self) -> None:
        super().write_kubeconfigs()
        self._renewed()


@pytest.mark.slow
@pytest.mark.parametrize(("years", "other_authority"), [(-1, False), (-20, True)])
def test_certificates_of_a_clock_that_was_wrong_are_made_anew_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, years: int, other_authority: bool
) -> None:
    """A machine without a clock of its own starts in the past, and reaches a time server a moment later.

    The API slept until the day on which its certificates would have been renewed, and nobody could reach it any more.
    """
    clock = SetTime()
    monkeypatch.setattr(daemon, "time", clock)
    monkeypatch.setattr(sockets, "time", clock)
    monkeypatch.setattr(daemon, "_LOOK_S", 0.01)
    config = Config(api=ApiConfig(root=str(tmp_path), unix_socket=str(tmp_path / "s"), address="127.0.0.1:0"))
    files = Files(tmp_path)
    clock.ahead = years * YEAR
    due = make_certificates(config.api, files)
    old = {name: files.certificate(name).read_bytes() for name in (AUTHORITY, "apiserver")}

    async def serve() -> bool:
        renewed, is_other = asyncio.Event(), False

        def other() -> None:
            nonlocal is_other
            is_other = True
            renewed.set()

        own = ToldSockets(config.api, files, renewed.set)
        async with Store(tmp_path / "db") as store:
            name = KUBELET_CLIENT.name
            kubelets = Kubelets(
                StoreLister(store), files.certificate(name), files.key(name), files.certificate(AUTHORITY)
            )
            renewing = asyncio.create_task(daemon._renew(config, files, own, kubelets, due, other))
            await asyncio.sleep(0)  # it waits for the day on which they are due
            clock.ahead = 0.0
            async with asyncio.timeout(30):
                await renewed.wait()
            renewing.cancel()
            with suppress(asyncio.CancelledError):
                await renewing
        own.close()
        return is_other

    assert asyncio.run(serve()) is other_authority
    new = {name: files.certificate(name).read_bytes() for name in old}
    assert new["apiserver"] != old["apiserver"]
    assert (new[AUTHORITY] != old[AUTHORITY]) is other_authority
