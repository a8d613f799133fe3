"""``podkeep node``: run this machine as a node, and install that as a service.

Owns: options, the lock of the node, and which daemons there are with which command lines. Does not own: running them
(``supervisor``), or what they serve.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from podkeep.base import lockfile
from podkeep.base.errors import FailedPrecondition, InvalidConfiguration, PodkeepError
from podkeep.cli.core import background, garbage
from podkeep.cli.core import output as forms
from podkeep.cli.core.invocation import Invocation, pass_invocation

if TYPE_CHECKING:
    from podkeep.cli.node.child import Command

log = logging.getLogger(__name__)

_STOP_PODS_TIMEOUT_S = 300.0
_PREDECESSOR_S = 5.0
"""How long the daemons of a node that was killed may take to end."""


@click.group(name="node", invoke_without_command=True)
@click.option("--no-api", is_flag=True, help="Serve no API: this is a node of a cluster. Needs --kubeconfig.")
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="As agent.kubeconfig: how the agent reaches its API.",
)
@click.option("--stop-pods", is_flag=True, help="End the pods, too, when the node ends; otherwise they run on.")
@click.option(
    "--mount-namespace",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Hide container mounts in the mount namespace pinned on FILE, which must be there.",
)
@click.option("--uid-mapping", metavar="C:H:N[,...]", help="As agent.uid_mapping: users of all pods, on the node.")
@click.option("--gid-mapping", metavar="C:H:N[,...]", help="As agent.gid_mapping: groups of all pods, on the node.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="As log.level.")
@click.option("--log-format", type=click.Choice(["plain", "json"]), help="As log.format.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    no_api: bool,
    kubeconfig: Path | None,
    stop_pods: bool,
    mount_namespace: Path | None,
    **others: str | None,
) -> None:
    """Run this machine as a Kubernetes node until SIGTERM: runtime, API and agent.

    A daemon that ends is started again. Pods run on when the node ends, and are taken over when it starts.

    \b
    Examples:
      podkeep node
      podkeep node --no-api --kubeconfig /etc/kubernetes/kubelet.conf
      podkeep node install
    """
    invocation = ctx.ensure_object(Invocation)
    given = {
        "node.api": "false" if no_api else None,
        "agent.kubeconfig": str(kubeconfig.absolute()) if kubeconfig else None,
        "log.level": others["log_level"],
        "log.format": others["log_format"],
    }
    for name in ("uid_mapping", "gid_mapping"):
        # Quoted: it may look like a time of the day.
        given[f"agent.{name}"] = None if (value := others[name]) is None else json.dumps(value)
    invocation.override(*(f"{key}={value}" for key, value in given.items() if value is not None))
    if ctx.invoked_subcommand is None:
        serve(invocation, stop_pods=stop_pods, mount_namespace=mount_namespace)


@command.command(name="install")
@click.option("--print", "only_print", is_flag=True, help="Print the unit; install nothing.")
@click.option("--no-start", is_flag=True, help="Start it with the next boot, not now.")
@forms.output_option
@pass_invocation
def install(invocation: Invocation, only_print: bool, no_start: bool, output: str) -> None:
    """Install `podkeep node` as a systemd service that starts with the machine; do it again after a change.

    The service has the options that are given here, also those before `install`.
    """
    from podkeep.cli.core import service_unit
    from podkeep.cli.node import unit

    text = service_unit.NODE.unit(background.program(), invocation.global_options())
    if only_print:
        click.echo(text, nl=False)
        return
    _require_root()
    _check(invocation)
    done = unit.install(text, start=not no_start)
    forms.show(output, done, (f"{done['unit']}: {done['state']}",))


@command.command(name="uninstall")
@forms.output_option
@pass_invocation
def uninstall(invocation: Invocation, output: str) -> None:
    """End the service and remove it. Pods run on, unless `podkeep delete pods --all -A` came before: their containers
    are counted.
    """
    from podkeep.cli.core.left_running import running_without
    from podkeep.cli.node import unit

    _require_root()
    config = invocation.config
    path = unit.uninstall()
    left = running_without(config)
    done = {"removed": str(path), "running_containers": left}
    forms.show(output, done, (f"removed {path}", *left_running(left, invocation.global_options())))


def left_running(count: int, global_options: Sequence[str]) -> tuple[str, ...]:
    """Return what to say of containers that run on without a node, and how they are ended."""
    if not count:
        return ()
    from podkeep.cli.core.left_running import words

    podkeep = shlex.join(["podkeep", *global_options])
    return (
        words(count),
        f"hint: to end the pods: `{podkeep} runtime &`, `{podkeep} rm --all`, `{podkeep} runtime stop`",
    )


def serve(invocation: Invocation, *, stop_pods: bool, mount_namespace: Path | None) -> None:
    """Become the supervisor and run the daemons until told to stop.

    :raises FailedPrecondition: if a node or another runtime serves already, or this one could not be reached by its
        agent.
    """
    from podkeep.base import log as logs
    from podkeep.cli.core import node_report as report
    from podkeep.cli.node import preload
    from podkeep.cli.node.supervisor import Supervisor

    _require_root()
    config = invocation.config
    logs.configure(config.log.level, sys.stderr, style=config.log.format)
    _check(invocation)
    run = Path(config.node.run)
    background.require_writable("node.run", run)
    # Whatever the umask: verbs of other users ask here whether a node runs, and read its report.
    run.chmod(0o711)
    lock = lockfile.acquire(
        run / report.LOCK, hint="a node runs already: `podkeep status` shows it; `systemctl stop podkeep-node` ends it"
    )
    _end_background_runtime(invocation)
    commands = daemons(invocation, mount_namespace)
    # Before the first daemon is forked off: what is imported by now they share, in time and in memory.
    preload.shared()
    kubeconfig = str(own_kubeconfig(config.api.root)) if config.node.api else config.agent.kubeconfig
    tell = report.NodeReport(
        pid=os.getpid(),
        runtime=report.runtime_socket(config),
        kubeconfig=kubeconfig,
        embedded=config.node.api,
        name=config.agent.own_name(),
    )
    garbage.as_usual()
    supervisor = Supervisor(commands, run, _write, tell, os.environ)
    after: dict[str, Callable[[], None]] = {"agent": lambda: _stop_pods(invocation)} if stop_pods else {}
    try:
        supervisor.serve(after)
    finally:
        (run / report.FILE).unlink(missing_ok=True)
        os.close(lock)


def daemons(invocation: Invocation, mount_namespace: Path | None) -> list[Command]:
    """Return the daemons of a node in the order in which they are started."""
    config = invocation.config
    options = invocation.global_options()
    place = [f"--mount-namespace={mount_namespace}"] if mount_namespace is not None else []
    found = [_daemon("runtime", options, *place)]
    agent = [*options]
    if config.node.api:
        found.append(_daemon("api", [*options, "--set", f"api.node={config.agent.own_name()}"]))
        pki = Path(config.api.root) / "pki"
        agent += ["--set", f"agent.kubeconfig={own_kubeconfig(config.api.root)}"]
        if not config.agent.tls_cert_file:
            agent += ["--set", f"agent.tls_cert_file={pki / 'kubelet-serving.crt'}"]
            agent += ["--set", f"agent.tls_private_key_file={pki / 'kubelet-serving.key'}"]
        if not config.agent.authentication.x509.client_ca_file:
            agent += ["--set", f"agent.authentication.x509.client_ca_file={pki / 'ca.crt'}"]
    found.append(_daemon("agent", agent, after=tuple(command.name for command in found)))
    return found


def _daemon(verb: str, options: Sequence[str], *arguments: str, after: tuple[str, ...] = ()) -> Command:
    from podkeep.cli.node import preload
    from podkeep.cli.node.child import Command

    words = [*options, verb, *arguments]
    return Command(
        name=verb,
        argv=[*background.program(), *words],
        after=after,
        main=lambda: _become(verb, words),
        prepare=preload.agent if verb == "agent" else lambda: None,
    )


def _become(verb: str, words: Sequence[str]) -> None:
    """Be a daemon of the node, in a process of its own: what the command line with these words is."""
    from podkeep.kernel.process import title

    title.show(["podkeep", verb])
    sys.argv[1:] = words
    # Not by runpy, which warns where the supervisor is the installed program: that has imported the module.
    importlib.import_module("podkeep.__main__").run()


def own_kubeconfig(root: str) -> Path:
    """Return the file that the API on this machine writes for its node's agent."""
    return Path(root) / "kubelet.conf"


def _require_root() -> None:
    if os.geteuid() != 0:
        raise FailedPrecondition("`podkeep node` needs root", hint="run it as root")


def _check(invocation: Invocation) -> None:
    """Refuse settings with which no agent could reach an API, or with which agent or API would not start.

    :raises InvalidConfiguration: naming the first of them.
    """
    from podkeep.agent.daemon import settings
    from podkeep.api import feature_gates

    config = invocation.config
    settings.check(config)
    if config.node.api:
        feature_gates.read(config.api.feature_gates, "api")
    if not config.node.api and not config.agent.kubeconfig:
        raise InvalidConfiguration(
            "a node without an API of its own needs one to reach", hint="add --kubeconfig FILE, or leave --no-api out"
        )
    if config.node.api and config.agent.kubeconfig not in {"", str(own_kubeconfig(config.api.root))}:
        raise InvalidConfiguration(
            f"agent.kubeconfig: {config.agent.kubeconfig} is how another API is reached, and this node has its own",
            hint="add --no-api (node.api = false) to be a node of that API, or leave the kubeconfig out",
        )
    if config.node.api and not config.api.address:
        raise InvalidConfiguration(
            "api.address is empty: the agent reaches the API there", hint="set it to 127.0.0.1:6443"
        )


def _end_background_runtime(invocation: Invocation) -> None:
    """Make room for the node's runtime: one that `podkeep run` started ends if nobody needs it.

    :raises FailedPrecondition: if another runtime serves that somebody needs.
    """
    runtime_lock = Path(invocation.config.runtime.run) / "runtime.lock"
    if not lockfile.is_held(runtime_lock) or background.stop_if_idle(invocation.global_options()):
        return
    try:
        os.close(lockfile.acquire(runtime_lock, timeout_s=_PREDECESSOR_S))
    except FileNotFoundError:
        return
    except FailedPrecondition as error:
        raise FailedPrecondition(
            f"a runtime serves already on {invocation.config.runtime.socket}",
            hint="`podkeep runtime stop` ends it (or `systemctl disable --now podkeep`); pods run on",
        ) from error


def _stop_pods(invocation: Invocation) -> None:
    """Stop and remove the pods, when their agent has ended and the runtime still serves."""
    from podkeep.base import spawn

    # --local: the agent has ended, so nobody would carry out what the API is asked for.
    argv = [*background.program(), *invocation.global_options(), "rm", "--all", "--local"]
    log.info("stopping the pods")
    try:
        done = spawn.run(argv, cwd="/", timeout=_STOP_PODS_TIMEOUT_S)
    except PodkeepError as error:
        log.warning("pods are left: %s", error.message)
        return
    if done.returncode != 0:
        log.warning("pods are left: %s", done.stderr.decode(errors="replace").strip())


def _write(line: str) -> None:
    """Write one line of a daemon to this process' standard error; nobody may be reading it any more."""
    try:
        os.write(2, f"{line}\n".encode(errors="backslashreplace"))
    except OSError:
        return
