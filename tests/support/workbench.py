"""A runtime to try things with: a scratch machine as the integration tests have it, for a person.

``python -m support.workbench shell`` (``make shell``) is a shell in which ``podkeep`` and ``crictl`` reach a runtime of
its own. ``python -m support.workbench trace RPC`` (``make trace``) prints what one request did, step by step. When
either ends, pods, runtime, registry, cgroups and files are removed; mounts, links and processes go with the namespaces.

Owns: what is on such a machine. Does not own: the machine (``scratch``), the runtime (``daemon``), the recording of a
request (``traced``, ``tracing``).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Never

import msgspec

from podkeep.cri.v1 import api_pb2 as api
from podkeep.cri.v1 import podkeep_pb2
from podkeep.kernel import libc
from podkeep.kernel.libc import CloneFlag
from podkeep.kernel.mount import mounts
from support import scratch, traced, tracing
from support.cri import BLOCK, Pods, namespaces, pod
from support.daemon import Daemon
from support.images import busybox_layout
from support.registry import Registry

ROOT = Path(__file__).parents[2]
EXAMPLE_IMAGE = "localhost/busybox:demo"
"""The image of ``examples/``, which is loaded."""
LEAST_MS = 0.5
"""Calls that take less are not shown one by one."""
_INTRODUCTION = """\
A scratch machine with a runtime of its own; all of it is removed when this shell ends.
  podkeep ps, podkeep run examples/userns.yaml, podkeep run examples/userns.yaml --keep &
  crictl reaches the same runtime, if it is installed
  $IMAGE     {image}, in a registry of this machine
  $LOG       the runtime's log:    tail -f $LOG
  $WORKBENCH its directories, configuration ($PODKEEP_CONFIG) and log
"""
_RPCS = sorted(
    method
    for file in (api.DESCRIPTOR, podkeep_pb2.DESCRIPTOR)
    for service in file.services_by_name.values()
    for method in service.methods_by_name
)


@dataclass(frozen=True, kw_only=True)
class Workbench:
    """A running daemon, and an image in a registry that it may pull from."""

    daemon: Daemon
    image: str

    def environment(self) -> dict[str, str]:
        """Return an environment in which ``podkeep`` and ``crictl`` reach the daemon."""
        endpoint = f"unix://{self.daemon.socket}"
        return {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PODKEEP_CONFIG": str(self.daemon.config),
            "CONTAINER_RUNTIME_ENDPOINT": endpoint,
            "IMAGE_SERVICE_ENDPOINT": endpoint,
            "IMAGE": self.image,
            "LOG": str(self.daemon.log),
            "WORKBENCH": str(self.daemon.base),
        }

    def run(self, command: list[str]) -> int:
        """Run a command with that environment and this terminal, in the checkout; return its exit status."""
        return subprocess.run(command, env=self.environment(), cwd=ROOT, check=False).returncode


@contextlib.contextmanager
def opened(
    *, module: str = "podkeep", environment: Mapping[str, str] | None = None, extra: str = ""
) -> Iterator[Workbench]:
    """Make this process's machine a scratch machine with a daemon, and remove what is in it at the end.

    :param module: what ``python -m`` runs as the daemon, ``environment`` what is added to its environment.
    :param extra: TOML for its configuration.
    """
    scratch.enter()
    mounts.mount("proc", "/proc", fstype="proc")
    with ExitStack() as stack:
        # Root of a pod with a user namespace, nobody here, passes through it.
        base = Path(tempfile.mkdtemp(prefix="podkeep-shell-", dir="/var/tmp"))
        stack.callback(_remove, base)
        base.chmod(0o711)
        registry = stack.enter_context(Registry(base / "registry"))
        image = registry.push(busybox_layout(base / "busybox"), "busybox:1")
        archive = busybox_layout(base / "example", name=EXAMPLE_IMAGE).tar(base / "example.tar")
        extra += f'\n[registries."{registry.host}"]\ninsecure = true\n'
        (base / "podkeep").mkdir(mode=0o711)
        daemon = Daemon(base / "podkeep", extra=extra, module=module, environment=dict(environment or {}))
        stack.enter_context(daemon)
        stack.callback(_put_away, daemon)
        daemon.run("image", "load", str(archive), check=True)
        yield Workbench(daemon=daemon, image=image)


def _put_away(daemon: Daemon) -> None:
    daemon.run("rm", "--all", "--grace-period", "0")
    if daemon.process is None or daemon.process.poll() is not None:
        daemon.run("runtime", "stop")  # one that was started in the shell in its place


def _remove(base: Path) -> None:
    # What a container wrote may have any name and any depth, which `rm` copes with.
    subprocess.run(["rm", "-rf", "--one-file-system", "--", str(base)], check=True)


def shell(command: str = "") -> int:
    """Be a shell on such a machine, or run one command there; return its exit status."""
    with opened() as bench:
        if command:
            return bench.run(["bash", "-c", command])
        if sys.stdin.isatty():
            print(_INTRODUCTION.format(image=bench.image))
            _prompt(bench.daemon.base / "bashrc")
            bench.run(["bash", "--rcfile", str(bench.daemon.base / "bashrc"), "-i"])
            return 0  # how the last command ended was seen
        return bench.run(["bash", "-s"])


def _prompt(file: Path) -> None:
    # Not that of the user's own ~/.bashrc alone: the two machines look alike otherwise.
    file.write_text('[ -r ~/.bashrc ] && . ~/.bashrc\nPS1="(podkeep) \\w # "\n')


def trace(rpc: str, *, command: str = "", least_ms: float = LEAST_MS) -> list[str]:
    """Return what the last request of a kind did, as text.

    :param command: what makes such a request, on the machine; empty: the life of a pod with a user namespace, twice,
        so that the second time shows no import and no first use of anything.
    :param least_ms: shorter calls are not shown one by one.
    """
    with tempfile.TemporaryDirectory(prefix="podkeep-trace-") as directory:
        file = Path(directory, "records")
        file.touch()
        environment = {traced.RPC: rpc, traced.FILE: str(file), "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT / 'src'}"}
        with opened(module="support.traced", environment=environment) as bench:
            if command:
                bench.run(["bash", "-c", command])
            else:
                for _ in range(2):
                    _life_of_a_pod(bench)
        records = [msgspec.json.decode(line, type=tracing.Span) for line in file.read_bytes().splitlines()]
    if not records:
        what = shlex.quote(command) if command else "the life of a pod"
        return [f"{what} made no request {rpc}; RUN='COMMAND' names another command"]
    which = "its one request" if len(records) == 1 else f"the last of {len(records)} requests"
    return [f"{rpc}: {which}; recording makes it slower", *tracing.lines(records[-1], least_ms=least_ms)]


def _life_of_a_pod(bench: Workbench) -> None:
    """Make the usual requests of a pod in a user namespace, from its image to its end."""
    with Pods(bench.daemon.socket, bench.image) as pods:
        image = api.ImageSpec(image=pods.pull())
        config = pod(options=namespaces(user=BLOCK), log_directory=str(bench.daemon.base / "logs/pod"))
        sandbox = pods.run(config)
        container = pods.launch(sandbox, log_path="main.log")
        pods.exec(container, "true")
        resources = api.LinuxContainerResources(memory_limit_in_bytes=64 << 20)
        pods.call(
            "UpdateContainerResources", api.UpdateContainerResourcesRequest(container_id=container, linux=resources)
        )
        pods.call("ContainerStats", api.ContainerStatsRequest(container_id=container))
        for empty in (api.VersionRequest(), api.StatusRequest(), api.ListPodSandboxStatsRequest()):
            pods.call(type(empty).__name__.removesuffix("Request"), empty)
        pods.status(container)
        pods.pod_status(sandbox)
        pods.containers()
        pods.sandboxes()
        pods.stop(container)
        pods.remove_container(container)
        pods.remove(sandbox)
        for rpc, request in (("ListImages", api.ListImagesRequest()), ("ImageFsInfo", api.ImageFsInfoRequest())):
            pods.call(rpc, request, service="images")
        pods.call("ImageStatus", api.ImageStatusRequest(image=image), service="images")
        pods.call("RemoveImage", api.RemoveImageRequest(image=image), service="images")


def main() -> int:
    """Be the program; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m support.workbench", description="A runtime to try things with.")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("shell", help="a shell on a scratch machine with a runtime")
    verb.add_argument("--run", default="", metavar="COMMAND", help="run this there, and no shell")
    verb = verbs.add_parser("trace", help="print what one request did")
    verb.add_argument("rpc", metavar="RPC", choices=_RPCS, help="RunPodSandbox, CreateContainer, PullImage, …")
    verb.add_argument("--run", default="", metavar="COMMAND", help="what makes the request; default: the life of a pod")
    verb.add_argument("--least", type=float, default=LEAST_MS, metavar="MS", help="show calls that take this long")
    options = parser.parse_args()
    missing = [
        program for program in ("crun", "conmon", "catatonit", "docker-registry") if shutil.which(program) is None
    ]
    if os.geteuid() != 0 or missing:
        print(f"it needs {' and '.join(missing) or 'root'}", file=sys.stderr)
        print(f"hint: {'`make setup` installs what is missing' if missing else 'run it as root'}", file=sys.stderr)
        return 1
    if not options.inside:
        return _in_processes_of_its_own()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    if options.verb == "shell":
        return shell(options.run)
    print("\n".join(trace(options.rpc, command=options.run, least_ms=options.least)))
    return 0


def _in_processes_of_its_own() -> int:
    """Run this program again in a PID namespace of its own, and return its exit status.

    What is killed there by name is never a process of the machine, and what is left there at the end is killed.
    """
    libc.unshare(CloneFlag.NEWPID)
    program = [sys.executable, "-m", "support.workbench", "--inside", *sys.argv[1:]]
    with subprocess.Popen(["catatonit", "--", *program]) as init:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda told, _: init.send_signal(told))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a key that interrupts is for what is inside
        return init.wait()


def _end(number: int, _frame: object) -> Never:
    """Leave through every ``finally``: what was made is removed."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None
