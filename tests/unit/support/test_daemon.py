"""A daemon of the tests is alone with its directories, whatever else runs on the machine."""

from __future__ import annotations

from pathlib import Path

from podkeep.base import config as configuration
from support.daemon import Daemon


def test_all_directories_are_its_own(tmp_path: Path) -> None:
    config = configuration.load(Daemon(tmp_path).config)
    used = {
        "runtime.root": config.runtime.root,
        "runtime.run": config.runtime.run,
        "runtime.socket": config.runtime.socket,
        "network.cni_conf_dir": config.network.cni_conf_dir,
        "mountns.pin": config.mountns.pin,
        "agent.root": config.agent.root,
        "agent.pod_logs": config.agent.pod_logs,
        # Where a `podkeep node` runs, `podkeep run` leaves the pods to it.
        "node.run": config.node.run,
    }
    assert [key for key, path in used.items() if not Path(path).is_relative_to(tmp_path)] == []
