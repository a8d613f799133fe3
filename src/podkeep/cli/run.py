"""``podkeep run``: run the pods of a manifest, show what they print, and clean up after them.

Owns: the order of things (read the file, have a runtime, enter its mount namespace, only then threads and gRPC),
signals, and the exit status. Does not own: what a pod needs (``agent``).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click
from msgspec import structs

from podkeep.base.errors import FailedPrecondition, InvalidArgument, PodkeepError
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text.printable import listed, printable
from podkeep.cli.core import garbage
from podkeep.cli.core import node_report as report
from podkeep.cli.core.bundles import bundle
from podkeep.cli.core.invocation import Invocation, pass_invocation
from podkeep.cli.core.output import echo_json, echo_line, error_text, output_option

if TYPE_CHECKING:
    from podkeep.agent.kubelets import KnownKubelets
    from podkeep.agent.pod.worker import PodResult, PodWorker
    from podkeep.api.feature_gates import FeatureGates
    from podkeep.api.manifest import Manifest
    from podkeep.api.pod import Pod
    from podkeep.api.status import PodStatus
    from podkeep.base.config import Config
    from podkeep.cli.core.unhindered import Unhindered
    from podkeep.cli.run_output import PodOutput, RunOutput
    from podkeep.mountns.membership import Membership

_LAST_OUTPUT_S = 1.0
"""How long printing may go on for somebody who has interrupted it, once the containers have ended."""
_SHOWN, _SHOWN_KINDS = 63, 10
"""Characters of a kind, which has no more, and kinds of a file that are named."""


class _Wanted(FrozenStruct, kw_only=True):
    """What a run is told beside its files and its output."""

    classes: tuple[str, ...]
    pod_classes: tuple[str, ...]
    detach: bool
    remove: bool
    keep: bool
    retry: bool

    def check(self) -> None:
        """Refuse what does not go together."""
        if self.remove and (self.detach or self.keep):
            raise click.UsageError("--rm does not go with -d or --keep: somebody has to be there at the end")


@click.command(name="run")
@click.argument(
    "files",
    nargs=-1,
    required=True,
    metavar="FILE...",
    type=click.Path(path_type=Path, allow_dash=True, dir_okay=False),
)
@click.option("-d", "--detach", is_flag=True, help="Leave the pods to the node that runs here, and return at once.")
@click.option("--rm", "remove", is_flag=True, help="Remove the pods at the end; so it is without -d or --keep.")
@click.option(
    "--keep", is_flag=True, help="Leave the ended pods for `podkeep logs` and `podkeep exec`; see `podkeep rm`."
)
@click.option(
    "--retry",
    is_flag=True,
    help="When a pod cannot be started (no registry answers), try again after 10 to 300 s, as a node does.",
)
@click.option(
    "--class",
    "classes",
    multiple=True,
    metavar="TYPE=CLASS",
    help="Put every container that names no class of TYPE into CLASS; `podkeep classes` lists both.",
)
@click.option(
    "--pod-class", "pod_classes", multiple=True, metavar="TYPE=CLASS", help="Put the pods as a whole into CLASS."
)
@output_option
@bundle("wanted", _Wanted, "classes", "pod_classes", "detach", "remove", "keep", "retry")
@pass_invocation
def command(invocation: Invocation, files: tuple[Path, ...], output: str, wanted: _Wanted) -> int:
    """Run the pods in FILE (- for standard input) until they end, and print what they print.

    ConfigMaps and Secrets in FILE are there for its pods. Each pod is removed when it has ended, whatever the others
    do. Ctrl-C, SIGTERM or the end of the terminal stops the pods
    and removes them, a second Ctrl-C does not wait. The exit status is that of the container that failed first, 128+n
    if signal n ended it. A pod that cannot be started ends the run with an error, unless --retry is given; `podkeep
    ps` shows what it waits for then. A pod that asks for a class that this node does not offer is rejected in any case.

    Where `podkeep node` runs, it runs the pods: every verb finds them, and objects of any other kind may be in FILE. A
    pod for which it has no place (Unschedulable) waits for one.
    """
    if os.geteuid() != 0:
        raise FailedPrecondition("`podkeep run` needs root", hint="run it as root")
    config = invocation.config
    wanted.check()
    if (node := report.of(config)) is not None:
        return _on_node(invocation, files, wanted, node, output)
    if wanted.detach:
        raise FailedPrecondition(
            "-d leaves pods to a node, and none runs here",
            hint="start `podkeep node` first, or run them without -d",
        )
    from podkeep.api import feature_gates
    from podkeep.cli.classes.assignments import assigned, of_run

    gates = feature_gates.read(config.agent.feature_gates, "agent")
    for_containers, for_pods = of_run(wanted.classes, wanted.pod_classes, gates)
    manifest = assigned(_read(files, gates), for_containers, for_pods, gates)
    if not manifest.pods:
        raise _no_pod(files, ["ConfigMap"] * bool(manifest.config_maps) + ["Secret"] * bool(manifest.secrets))
    from podkeep.agent import kubelets
    from podkeep.cli.core import unhindered
    from podkeep.cli.core.background import claim, require_writable
    from podkeep.mountns import membership

    # Asked again for each pod; here, before anything is made.
    known = kubelets.KnownKubelets(config, kubelets.require_apart(config))
    require_writable("agent.root", Path(config.agent.root))
    require_writable("agent.pod_logs", Path(config.agent.pod_logs), 0o755)
    claimed = claim(config, invocation.global_options())
    try:
        joined = _follow_runtime(config)
        try:
            with unhindered.standard_error() as errors:
                return asyncio.run(_run(manifest, config, errors, joined.inode, known, wanted, output))
        finally:
            membership.leave(joined)
    finally:
        claimed.close()


def _on_node(invocation: Invocation, files: Sequence[Path], wanted: _Wanted, node: report.NodeReport, form: str) -> int:
    """Have the node that runs here run the pods.

    :raises FailedPrecondition: if its API is a cluster's: where pods run there is not ours to say.
    """
    from podkeep.cli import run_on_node
    from podkeep.cli.core import unhindered
    from podkeep.cli.objects import manifests, reach

    if not node.embedded:
        raise FailedPrecondition(
            "this machine is a node of a cluster, whose scheduler says where pods run",
            hint="use `podkeep apply -f FILE` or kubectl, with a kubeconfig of the cluster",
        )
    if wanted.classes or wanted.pod_classes:
        raise InvalidArgument(
            "--class and --pod-class are for runs without a node", hint="name the classes in the pod's spec"
        )
    written = manifests.read(files)
    if not any(item.kind == "Pod" for item in written):
        raise _no_pod(files, [item.kind for item in written])
    # Else it is not root's own API that KUBECONFIG names.
    meant = reach.Reach(kubeconfig=str(Path(invocation.config.api.root) / "admin.conf"))
    logs = Path(invocation.config.agent.pod_logs)
    wish = run_on_node.Wish(detached=wanted.detach, keep=wanted.keep, retry=wanted.retry, form=form)
    with unhindered.standard_error() as errors:
        return reach.run(invocation, meant, lambda api: run_on_node.run(api, written, logs, wish, errors))


def _no_pod(files: Sequence[Path], kinds: Sequence[str]) -> InvalidArgument:
    there = f", only {listed(sorted({kind[:_SHOWN] for kind in kinds}), _SHOWN_KINDS)}" if kinds else ""
    return InvalidArgument(f"{', '.join(map(str, files))}: there is no Pod in it{there}")


def _read(files: Sequence[Path], gates: FeatureGates) -> Manifest:
    from podkeep.api import documents, manifest
    from podkeep.cli.objects import manifests

    found = []
    for file in files:
        found += documents.parse(manifests.text_of(file), source=str(file))
    return manifest.decode(found, gates)


def _follow_runtime(config: Config) -> Membership:
    """Enter the mount namespace of the runtime: volumes are mounted where it sees them."""
    from podkeep.mountns import membership, namespace_ref
    from podkeep.mountns.pin import is_pinned

    where = namespace_ref.resolve(config.mountns, environ=os.environ, is_pinned=is_pinned)
    return membership.follow(Path(config.runtime.run), where)


def _descriptor(stream: TextIO | None) -> int | None:
    return None if stream is None else stream.fileno()  # None: it was closed before this process began


async def _run(
    manifest: Manifest,
    config: Config,
    errors: Unhindered,
    mount_namespace: int,
    known: KnownKubelets,
    wanted: _Wanted,
    form: str,
) -> int:
    from podkeep.agent.events import PodRejected
    from podkeep.agent.mount_namespace import require_runtime_here
    from podkeep.agent.node import this_node
    from podkeep.agent.objects.sources import Sources
    from podkeep.agent.pod.admission import with_identity
    from podkeep.agent.pod.worker import PodWorker
    from podkeep.cli.images.progress import each_once, shown
    from podkeep.cli.run_output import RunOutput
    from podkeep.cri.client import CriClient

    garbage.as_usual()
    pods = [with_identity(pod) for pod in manifest.pods]
    containers = sum(len(pod.spec.containers) + len(pod.spec.init_containers) for pod in pods)
    # JSON has standard output for itself.
    out = RunOutput(
        stdout=_descriptor(sys.stderr if form == "json" else sys.stdout),
        stderr=_descriptor(sys.stderr),
        prefixed=containers > 1,
    )
    sources = Sources(config_maps=manifest.config_maps, secrets=manifest.secrets)
    async with CriClient(config.runtime.socket, timeout=config.agent.runtime_request_timeout) as client:
        await require_runtime_here(client, mount_namespace)

        async def show_pull(image: str, pull: Awaitable[str]) -> str:
            return await shown(client, image, pull, sys.stderr)

        node = structs.replace(this_node(client, config, each_once(show_pull)), kubelets=known)
        outputs = [out.pod(pod.metadata.name if len(pods) > 1 else "") for pod in pods]
        workers = [
            PodWorker(pod=pod, sources=sources, node=node, listener=output, retry=wanted.retry)
            for pod, output in zip(pods, outputs, strict=True)
        ]
        supervisor = _Supervisor(list(zip(workers, outputs, strict=True)), errors, keep=wanted.keep)
        try:
            results = await supervisor.run(out)
        except PodRejected:
            if form == "json":
                _echo_json(supervisor.ended)
            raise
        finally:
            await node.logs.close()
    if form == "json":
        _echo_json(supervisor.ended)
    return supervisor.exit_status(results)


class _Supervisor:
    """Runs all pods of a manifest: each to its own end, but when one cannot run, none goes on.

    :param errors: standard error.
    :param keep: leave pods that ended, unless one of them could not run.
    """

    def __init__(self, pods: Sequence[tuple[PodWorker, PodOutput]], errors: Unhindered, *, keep: bool) -> None:
        self._pods = pods
        self._errors = errors
        self._keep = keep
        self._signal: int | None = None
        self._failure: BaseException | None = None
        self._interruption = asyncio.Event()
        self._left_out = False
        self.ended: list[tuple[Pod, PodStatus]] = []
        """The pods that ended or were rejected, in the order of the manifest, with their last status."""

    async def run(self, out: RunOutput) -> list[PodResult]:
        """Run the pods to their end; each is cleaned up when it has ended and its output is shown.

        :raises PodkeepError: of the first pod that could not run, after everything was cleaned up.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Under nohup(1) SIGHUP is ignored, and the pod goes on when the terminal goes away.
            if signal.getsignal(number) is not signal.SIG_IGN or number != signal.SIGHUP:
                loop.add_signal_handler(number, self._interrupted, number)
        unread = asyncio.wrap_future(self._errors.failure)
        unread.add_done_callback(self._errors_end)
        following = asyncio.ensure_future(self._follow(out))
        try:
            results = await asyncio.gather(*(self._one(worker, output) for worker, output in self._pods))
            if not self._left_out:  # else it may be at a pipe that nobody reads
                await following
        finally:
            following.cancel()
            unread.remove_done_callback(self._errors_end)
            unread.cancel()
        self.ended = [
            (worker.pod, result.status)
            for (worker, _), result in zip(self._pods, results, strict=True)
            if result is not None
        ]
        if self._failure is not None:
            raise self._failure
        return [result for result in results if result is not None]

    async def _one(self, worker: PodWorker, output: PodOutput) -> PodResult | None:
        result = await self._to_its_end(worker)
        output.finish()
        await self._last_output(worker, output)
        self._tell_failure(worker, result)
        await self._clean_up(worker)
        return result

    async def _to_its_end(self, worker: PodWorker) -> PodResult | None:
        from podkeep.agent.events import PodRejected
        from podkeep.agent.pod.status.pod_status import rejected
        from podkeep.agent.pod.worker import PodResult

        try:
            return await worker.run()
        except PodRejected as error:
            status = rejected(worker.pod, error, time.time())
            self._fail(self._located(worker.pod, error))
            return PodResult(exit_code=1, status=status)
        except Exception as error:  # noqa: BLE001 - whatever it was: no pod goes on alone
            self._fail(self._located(worker.pod, error))
            return None

    def _located(self, pod: Pod, error: Exception) -> Exception:
        """Put the pod and the container in front of an error, as of their output, where there are others of them."""
        from podkeep.agent.events import StepFailed

        if not isinstance(error, PodkeepError):
            return error
        where = [pod.metadata.name] if len(self._pods) > 1 else []
        if isinstance(error, StepFailed) and len(pod.spec.containers) + len(pod.spec.init_containers) > 1:
            where += [error.container] if error.container else []
        if where:
            error.message = f"{'/'.join(where)}: {error.message}"
        return error

    async def _follow(self, out: RunOutput) -> None:
        try:
            await out.follow()
        except (OSError, PodkeepError) as error:
            self._fail(error)

    async def _last_output(self, worker: PodWorker, output: PodOutput) -> None:
        """Wait until all is printed; not long once somebody interrupts this command or removes the pod."""
        shown = asyncio.ensure_future(output.shown())
        reasons = [asyncio.ensure_future(wait) for wait in (self._interruption.wait(), worker.removal_asked())]
        await asyncio.wait({shown, *reasons}, return_when=asyncio.FIRST_COMPLETED)
        if not shown.done():
            await asyncio.wait({shown}, timeout=_LAST_OUTPUT_S)
        for waiting in (shown, *reasons):
            waiting.cancel()
        await asyncio.gather(*reasons, return_exceptions=True)
        if output.is_shown:
            return
        output.give_up()
        self._errors.hurry()
        if not self._interruption.is_set():
            echo_line(f"podkeep: {worker.pod.metadata.name}: removed: the last output is left out", err=True)
        elif not self._left_out:
            echo_line("podkeep: interrupted: the last output is left out", err=True)
        self._left_out = True

    def _tell_failure(self, worker: PodWorker, result: PodResult | None) -> None:
        """Say why containers failed by themselves, where their exit status alone does not."""
        from podkeep.api.containers import is_sidecar
        from podkeep.cli.run_output import last_words

        if result is None or self._signal is not None or self._failure is not None:
            return
        sidecars = {item.name for item in worker.pod.spec.init_containers if is_sidecar(item)}
        for line in last_words(result.status, worker.pod.metadata.name if len(self._pods) > 1 else "", sidecars):
            echo_line(f"podkeep: {line}", err=True)

    async def _clean_up(self, worker: PodWorker) -> None:
        if self._keep and self._failure is None:
            worker.release()
            return
        try:
            await worker.tear_down()
        except (PodkeepError, OSError) as error:
            self._fail(self._located(worker.pod, error))

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
            self._stop()
        else:
            click.echo(
                error_text(error) if isinstance(error, PodkeepError) else f"podkeep: {printable(str(error))}", err=True
            )

    def _errors_end(self, unread: asyncio.Future[None]) -> None:
        if (error := unread.exception()) is not None:
            self._fail(error)

    def _stop(self) -> None:
        for worker, _ in self._pods:
            worker.stop(worker.pod.spec.termination_grace_period_seconds or 0)

    def _interrupted(self, number: int) -> None:
        self._interruption.set()
        self._errors.hurry()
        if self._signal is not None:
            for worker, _ in self._pods:
                worker.stop(0)
            return
        self._signal = number
        self._stop()
        if sys.stderr.isatty():
            echo_line("stopping; Ctrl-C again to kill", err=True)

    def exit_status(self, results: Sequence[PodResult]) -> int:
        """Return the exit status: of the signal that ended this command, or of the first pod that failed."""
        if self._signal is not None:
            return 128 + self._signal
        return next((result.exit_code for result in results if result.exit_code), 0)


def _echo_json(pods: Sequence[tuple[Pod, PodStatus]]) -> None:
    """Print pods with their last status: one object, or a List of several."""
    import msgspec

    items = [msgspec.to_builtins(msgspec.structs.replace(pod, status=status)) for pod, status in pods]
    echo_json(items[0] if len(items) == 1 else {"apiVersion": "v1", "kind": "List", "items": items})
