"""``podkeep agent``: run the pods that a Kubernetes API gives this node.

Owns: the order of a daemon's first steps, which must happen while the process has one thread: the lock of the agent's
root, the runtime's mount namespace. Does not own: what it does (``agent.daemon``).
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from podkeep.base import lockfile
from podkeep.base.errors import FailedPrecondition, InvalidArgument, InvalidConfiguration
from podkeep.cli.core import background, garbage, supervised
from podkeep.cli.core.invocation import Invocation, pass_invocation

if TYPE_CHECKING:
    from podkeep.base.config import Config
    from podkeep.mountns.membership import Membership

log = logging.getLogger(__name__)

_LOCK = "agent.lock"
_LOOK_S = 0.1
_SETTINGS = {
    "kubeconfig": "agent.kubeconfig",
    "unix_socket": "api.unix_socket",
    "node_name": "agent.node_name",
    "static_pod_path": "agent.static_pod_path",
    "uid_mapping": "agent.uid_mapping",
    "gid_mapping": "agent.gid_mapping",
    "log_level": "log.level",
    "log_format": "log.format",
}
"""What options stand for."""


@click.group(name="agent", invoke_without_command=True)
@click.option(
    "--config",
    "configuration",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="A kubelet's configuration file (KubeletConfiguration).",
)
@click.option(
    "--config-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="A directory of such files, *.conf, that add to it.",
)
@click.option("--kubeconfig", metavar="FILE", help="As agent.kubeconfig: how the API is reached.")
@click.option("--unix-socket", metavar="PATH", help="As api.unix_socket, used without a kubeconfig.")
@click.option("--node-name", metavar="NAME", help="As agent.node_name.")
@click.option("--static-pod-path", metavar="PATH", help="As agent.static_pod_path.")
@click.option("--uid-mapping", metavar="C:H:N[,...]", help="As agent.uid_mapping: users of all pods, on the node.")
@click.option("--gid-mapping", metavar="C:H:N[,...]", help="As agent.gid_mapping: groups of all pods, on the node.")
@click.option(
    "--mount-namespace",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Be in the mount namespace pinned on FILE, where the runtime must be, too.",
)
@click.option(
    "--mount-namespace-pid",
    type=int,
    metavar="PID",
    help="Be in the mount namespace of this process, where the runtime must be, too.",
)
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="As log.level.")
@click.option("--log-format", type=click.Choice(["plain", "json"]), help="As log.format.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    configuration: Path | None,
    config_dir: Path | None,
    mount_namespace: Path | None,
    mount_namespace_pid: int | None,
    **options: str | None,
) -> None:
    """Run the pods that the API gives this node until SIGTERM; they run on then.

    \b
    Examples:
      podkeep agent
      podkeep agent --kubeconfig /etc/kubernetes/kubelet.conf
    """
    if ctx.invoked_subcommand is not None:
        return
    invocation = ctx.ensure_object(Invocation)
    ignored: tuple[str, ...] = ()
    if configuration is not None or config_dir is not None:
        from podkeep.agent import kubelet_configuration

        try:
            found = kubelet_configuration.load(configuration, config_dir)
        except InvalidArgument as error:
            raise InvalidConfiguration.of(error) from error
        invocation.override(*kubelet_configuration.assignments(found.settings))
        ignored = found.ignored
    given = {key: options[name] for name, key in _SETTINGS.items()}
    for key in ("agent.uid_mapping", "agent.gid_mapping"):
        # Quoted: a mapping may look like a time of the day.
        given[key] = None if (value := given[key]) is None else json.dumps(value)
    invocation.override(*(f"{key}={value}" for key, value in given.items() if value is not None))
    serve(invocation, ignored, mount_namespace, mount_namespace_pid)


@command.command(name="unit")
@pass_invocation
def unit(invocation: Invocation) -> None:
    """Print a systemd unit that runs this podkeep's agent with these options.

    \b
    Install it beside the runtime's, with the service that makes the mount namespace (not with mountns.enabled=false):
      podkeep agent unit >/etc/systemd/system/podkeep-agent.service
      systemctl enable --now podkeep-agent
    """
    from podkeep.cli.core import service_unit
    from podkeep.cli.mountns import namespace

    pin = namespace.of_services(invocation)
    click.echo(service_unit.AGENT.unit(background.program(), invocation.global_options(), pin), nl=False)


def serve(
    invocation: Invocation,
    ignored: Sequence[str] = (),
    mount_namespace: Path | None = None,
    namespace_of: int | None = None,
) -> None:
    """Become the agent and run pods until told to stop.

    :param ignored: fields of a KubeletConfiguration that mean nothing here.
    :param mount_namespace: file on which the mount namespace to be in is pinned; by itself it is the runtime's.
    :param namespace_of: ID of a process in the mount namespace to be in.
    :raises InvalidConfiguration: naming the first value that it could not work with.
    :raises FailedPrecondition: if another agent uses the directory, a kubelet runs on it, or the process cannot be
        where the runtime is.
    """
    from podkeep.agent.daemon import settings as agent_settings
    from podkeep.base import log as logs
    from podkeep.mountns import membership

    config = invocation.config
    if os.geteuid() != 0:
        raise FailedPrecondition("`podkeep agent` needs root", hint="run it as root")
    agent_settings.check(config)  # said at once, whatever else is missing
    logs.configure(config.log.level, sys.stderr, style=config.log.format)
    if ignored:
        log.warning("fields of the KubeletConfiguration that mean nothing here: %s", ", ".join(ignored))
    supervised.end_with_supervisor()
    # Modes of what the agent makes are meant as written: containers, whose users are nobody on the machine, pass
    # through.
    os.umask(0o022)
    root = Path(config.agent.root)
    background.require_writable("agent.root", root)
    background.require_writable("agent.pod_logs", Path(config.agent.pod_logs), 0o755)
    lock = lockfile.acquire(root / _LOCK, hint="another `podkeep agent` has this node")
    joined = _joined(config, mount_namespace, namespace_of)
    try:
        # From here on threads may start: gRPC is imported only now.
        import asyncio

        from podkeep.agent.certificates import bootstrap
        from podkeep.agent.daemon import daemon
        from podkeep.agent.node import host_ips

        garbage.as_usual()
        settings = asyncio.run(bootstrap.settings_of(config, config.agent.own_name()))
        certify: Callable[[Sequence[str]], Config] | None = None
        if config.agent.enable_server and not config.agent.kubeconfig:
            from podkeep.cli.core import kubelet_pki

            certify = partial(kubelet_pki.prepared, config)
            config = certify(host_ips())
        daemon.serve(config, settings, joined.inode, log.info, certify)
    finally:
        membership.leave(joined)
    os.close(lock)


def _joined(config: Config, pin: Path | None, pid: int | None) -> Membership:
    """Wait for the runtime, and be in its mount namespace: volumes are mounted where it sees them.

    Who was told where to be goes there first, and never elsewhere.
    """
    from podkeep.mountns import membership, namespace_ref
    from podkeep.mountns.pin import is_pinned

    where = namespace_ref.resolve(config.mountns, environ=os.environ, pin=pin, pid=pid, is_pinned=is_pinned)
    run, told = Path(config.runtime.run), pin is not None or pid is not None
    if where is None or not told:
        if told:
            log.warning("--mount-namespace means nothing: mountns.enabled is false")
        _wait_for_runtime(config.runtime.socket)
        return membership.follow(run, where)
    joined = membership.enter(where)
    try:
        _wait_for_runtime(config.runtime.socket)
        membership.require_together(run, joined)
    except BaseException:
        membership.leave(joined)
        raise
    return joined


def _wait_for_runtime(path: str) -> None:
    """Return when somebody accepts connections on the runtime's socket."""
    import socket

    said = False
    while True:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(path)
            except OSError as error:
                if not said:
                    log.warning("no runtime answers on %s: %s; waiting for it", path, error.strerror)
                said = True
            else:
                return
        time.sleep(_LOOK_S)
