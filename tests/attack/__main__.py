"""``python -m attack``: the standing campaign. See CONTRIBUTING.md."""

from __future__ import annotations

import argparse
import secrets
import signal
import sys
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from attack import api, campaign, containers
from attack.node import Hostile, Node
from support import scratch
from support.api_daemon import ApiDaemon
from support.daemon import Daemon
from support.images import busybox_layout
from support.registry import Registry
from support.running_node import RunningNode


def main() -> int:
    """Run the campaigns that are asked for; 1 if something was found."""
    parser = argparse.ArgumentParser(prog="python -m attack", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="repeat the cases of a run; printed by each")
    parser.add_argument("--seconds", type=float, default=240.0, help="for each campaign")
    parser.add_argument("--cases", type=int, default=None, help="of each campaign, however long they take")
    parser.add_argument("--only", metavar="CAMPAIGN[/NUMBER]", default="", help="one campaign, or one case of it")
    parser.add_argument("--keep", type=Path, default=None, help="a directory for cases that found something")
    parser.add_argument("--log", type=Path, default=None, help="where the daemon's log is copied")
    options = parser.parse_args()
    # What is told to end removes what it made: containers outlive their daemon.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    seed = secrets.randbelow(1 << 32) if options.seed is None else options.seed
    wanted, _, number = options.only.partition("/")
    names = [wanted] if wanted else [*campaign.CAMPAIGNS, api.NAME, containers.NAME]
    found = 0
    print(f"seed {seed}", flush=True)
    scratch.enter()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="podkeep-attack-", dir="/var/tmp")))
        directory.chmod(0o711)
        registry = stack.enter_context(Registry(directory / "registry"))
        image = registry.push(busybox_layout(directory / "busybox"), "busybox:1")
        hostile = stack.enter_context(Hostile())
        for name in names:
            base, own = directory / f"{name}-daemon", directory / name
            base.mkdir()
            own.mkdir()
            if number:
                numbers: Iterable[int] = [int(number)]
            else:
                numbers = campaign.during(options.seconds) if options.cases is None else range(options.cases)
            if name in {api.NAME, containers.NAME}:
                say = partial(print, flush=True)
                if name == api.NAME:
                    with ApiDaemon(base) as server:
                        report = api.run(server, seed, numbers, options.keep, say)
                else:
                    daemon = Daemon(base, extra=Node.settings(registry.host))
                    with RunningNode(daemon, settings=containers.SETTINGS) as running:
                        report = containers.run(running, image, own, seed, numbers, options.keep, say)
                print("\n".join(report.lines()), flush=True)
                found += len(report.findings)
                continue
            settings = (*Node.SETTINGS, *campaign.CAMPAIGNS[name].settings)
            daemon = Daemon(base, extra=Node.settings(registry.host, hostile.host), settings=settings)
            try:
                with daemon, Node(daemon, image, own, hostile) as node:
                    report = campaign.run(node, name, seed, numbers, options.keep)
                    print("\n".join(report.lines()), flush=True)
                    found += len(report.findings)
            finally:
                if options.log is not None:
                    options.log.with_name(f"{options.log.name}-{name}").write_bytes(daemon.log.read_bytes())
    return 1 if found else 0


sys.exit(main())
