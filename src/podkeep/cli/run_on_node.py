"""``podkeep run`` where a node runs: its API gets the objects, its agent runs the pods, and this shows what they write.

Owns: what is created and removed again, and when a run is over. Does not own: printing (``run_output``), requests
(``client``).
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from podkeep.agent.events import Event
from podkeep.agent.logs import files as log_files
from podkeep.base.concurrency.tasks import Tasks
from podkeep.base.errors import FailedPrecondition, PodkeepError, Unavailable
from podkeep.base.frozen import FrozenStruct
from podkeep.cli.core import following
from podkeep.cli.core.output import echo_error, echo_json, echo_line
from podkeep.cli.objects import kinds
from podkeep.cli.objects.apply import apply, place
from podkeep.cli.objects.get import typed_name
from podkeep.cli.objects.manifests import Written
from podkeep.cli.objects.reach import Api
from podkeep.cli.run_output import PodOutput, RunOutput

if TYPE_CHECKING:
    from podkeep.cli.core.unhindered import Unhindered
    from podkeep.client.resources import Resource

_MANAGER = "podkeep-run"
_CANNOT_START = frozenset(
    (
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImageInspectError",
        "ImagePullBackOff",
        "InvalidImageName",
        "PostStartHookError",
        "RegistryUnavailable",
        "RunContainerError",
        "SignatureValidationFailed",
    )
)
"""Reasons of a container that waits which end a run without ``--retry``."""
_CANNOT_BEGIN = frozenset(("FailedMount", "FailedCreatePodSandBox", "FailedPrepareDynamicResources", "NetworkNotReady"))
"""Reasons of events of a pod none of whose containers has run, which do so, too: its status has none for that."""
_TRIES = 2
"""How often such a step fails before it counts: one of the node's daemons may just be starting again."""
_BENIGN = frozenset(("ContainerCreating", "PodInitializing", "CrashLoopBackOff"))
_REMOVAL_S = 600.0
"""How long removing may take, beyond the grace period of a pod."""


class Wish(FrozenStruct, kw_only=True):
    """How to run. ``detached``: leave all behind at once; ``keep``: leave what has ended."""

    detached: bool = False
    keep: bool = False
    retry: bool = False
    form: str = "table"


@dataclass
class _Pod:
    """A pod of this run, as it was created, and what is known of it."""

    value: dict[str, Any]
    output: PodOutput
    logs: dict[str, int] = field(default_factory=dict)
    """The newest attempt of each container whose log is shown."""
    gone: bool = False

    @property
    def name(self) -> str:
        return str(self.value["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.value["metadata"]["namespace"])

    @property
    def uid(self) -> str:
        return str(self.value["metadata"]["uid"])


async def run(api: Api, written: Sequence[Written], pod_logs: Path, wish: Wish, errors: Unhindered) -> int:
    """Create what the files say, follow the pods to their end, and remove what was created.

    :param pod_logs: where this node's containers log.
    :param errors: standard error. If it cannot be written, the pods are removed.
    :returns: the exit status: of the signal that ended this command, or of the container that failed first.
    :raises ApiError: if the API refuses an object; what was created before is removed again.
    :raises PodkeepError: if a pod cannot be started.
    """
    this = _Run(api, pod_logs, wish, errors)
    try:
        await this.create(written)
        if wish.detached:
            this.tell_created()
            return 0
        status = await this.follow()
    except BaseException:
        await this.remove()
        raise
    await this.remove()
    return status


class _Run:
    def __init__(self, api: Api, pod_logs: Path, wish: Wish, errors: Unhindered) -> None:
        self._api, self._pod_logs, self._wish, self._errors = api, pod_logs, wish, errors
        self._pods: list[_Pod] = []
        self._made: list[tuple[Resource, str, str, str]] = []
        """What else was created: resource, namespace, name, UID."""
        self._signal = 0
        self._interrupted = asyncio.Event()
        self._failure: PodkeepError | None = None
        self._tasks = Tasks("podkeep run")
        self._out: RunOutput | None = None

    async def create(self, written: Sequence[Written]) -> None:
        """Create the objects: what pods refer to before the pods."""
        wanted = [item for item in written if item.kind == "Pod"]
        containers = sum(_count(item.value) for item in wanted)
        json = self._wish.form == "json"
        out = RunOutput(
            stdout=(sys.stderr if json else sys.stdout).fileno(),
            stderr=sys.stderr.fileno(),
            prefixed=containers > 1,
        )
        self._out = out
        for item in written:
            if item.kind != "Pod":
                await self._apply(item)
        from podkeep.client.resources import PODS

        for item in wanted:
            namespace = place(self._api, item, namespaced=True)
            body = {**item.value, "metadata": {**item.value["metadata"], "namespace": namespace}}
            try:
                query = {"fieldManager": _MANAGER, "fieldValidation": "Strict"}
                value = await self._api.client.create(PODS, body, namespace, query=query)
            except PodkeepError as error:
                raise _of(error, item.where, item.name) from error
            self._pods.append(_Pod(value, out.pod(item.name if len(wanted) > 1 else "")))

    async def _apply(self, item: Written) -> None:
        resource = kinds.of_object(await self._api.kinds(), item.api_version, item.kind)
        try:
            what, value = await apply(self._api, item, {"fieldManager": _MANAGER, "fieldValidation": "Strict"})
        except PodkeepError as error:
            error.message = f"{item.where}: {error.message}"
            raise
        # What was there before this run is not to be removed with it.
        if what == "created":
            metadata = value["metadata"]
            self._made.append((resource, metadata.get("namespace", ""), metadata["name"], metadata["uid"]))

    def tell_created(self) -> None:
        """Say what was created: names that other verbs take."""
        if self._wish.form == "json":
            echo_json([pod.value for pod in self._pods])
            return
        for resource, namespace, name, _ in self._made:
            echo_line(f"{typed_name(resource)}/{name} created{f' in {namespace}' if namespace else ''}")
        for pod in self._pods:
            echo_line(f"pod/{pod.name} created in {pod.namespace}")

    async def follow(self) -> int:
        """Show what the pods write until all have ended; return the exit status."""
        assert self._out is not None
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # SIGHUP stays ignored under nohup(1).
            if signal.getsignal(number) is not signal.SIG_IGN or number != signal.SIGHUP:
                loop.add_signal_handler(number, self._end, number)
        showing: asyncio.Future[Any] = asyncio.ensure_future(self._out.follow())
        ends: asyncio.Future[Any] = asyncio.gather(*map(self._to_its_end, self._pods))
        hearing: asyncio.Future[Any] = asyncio.gather(*map(self._hear, self._pods))
        telling: asyncio.Future[Any] = asyncio.gather(*map(self._tell_failure, self._pods))
        interrupted: asyncio.Future[Any] = asyncio.ensure_future(self._interrupted.wait())
        unread: asyncio.Future[Any] = asyncio.wrap_future(self._errors.failure)
        try:
            await asyncio.wait({ends, interrupted, showing, unread}, return_when=asyncio.FIRST_COMPLETED)
            is_unread = showing.done() or unread.done()
            if self._interrupted.is_set() or self._failure is not None or (is_unread and not ends.done()):
                await self._delete_pods()
            await ends
            for pod in self._pods:
                pod.output.finish()
            await asyncio.wait({showing}, timeout=1.0 if self._signal else None)
            if not self._signal:
                await telling
        finally:
            for pod in self._pods:
                pod.output.give_up()
            waited = showing, ends, hearing, telling, interrupted, unread
            for task in waited:
                task.cancel()
            await self._tasks.close()
            await asyncio.gather(*waited, return_exceptions=True)
        if self._wish.form == "json":
            values = [pod.value for pod in self._pods]
            echo_json(values[0] if len(values) == 1 else {"apiVersion": "v1", "kind": "List", "items": values})
        if self._failure is not None:
            raise self._failure
        if self._signal:
            return 128 + self._signal
        return exit_status([pod.value for pod in self._pods])

    def _end(self, number: int) -> None:
        self._errors.hurry()
        if self._signal and self._interrupted.is_set():
            self._tasks.start(self._delete_pods(grace=0))
            return
        self._signal = number
        if sys.stderr.isatty():
            echo_line("stopping; Ctrl-C again to kill", err=True)
        self._interrupted.set()

    async def _to_its_end(self, pod: _Pod) -> None:
        """Return when a pod has ended or is gone; of one that cannot start, all are ended."""
        from podkeep.client.resources import PODS

        async with aclosing(following.states(self._api.client, PODS, pod.name, pod.namespace)) as states:
            async for state in states:
                if state is None or state["metadata"]["uid"] != pod.uid:
                    pod.gone = True
                    break
                pod.value = state
                self._show(pod)
                if state.get("status", {}).get("phase") in ("Succeeded", "Failed"):
                    break
        pod.output.finish()

    async def _hear(self, pod: _Pod) -> None:
        """Tell what warnings say that a pod's status does not, as long as there is somebody to tell."""
        from podkeep.client.errors import ApiError
        from podkeep.client.resources import EVENTS

        client, fields, pace = self._api.client, f"involvedObject.uid={pod.uid}", following.Pace()
        while True:
            await pace.begin()
            # Whether the API is there, and may be asked, is what following the pod itself shows.
            with suppress(ApiError, Unavailable):
                async with aclosing(client.watch(EVENTS, pod.namespace, fields=fields, version=following.ANEW)) as news:
                    async for change in news:
                        if change.type in ("ADDED", "MODIFIED") and change.object.get("type") == "Warning":
                            self._warned(pod, change.object)

    def _warned(self, pod: _Pod, warning: Mapping[str, Any]) -> None:
        reason, message = str(warning.get("reason", "")), str(warning.get("message", ""))
        if reason not in _CANNOT_BEGIN:
            place = str((warning.get("involvedObject") or {}).get("fieldPath") or "")
            container = place.partition("{")[2].removesuffix("}")
            pod.output.event(Event(type="Warning", reason=reason, message=message, container=container))
        elif not pod.logs:
            if self._wish.retry:
                pod.output.waiting("", reason, message)
            elif int((warning.get("series") or {}).get("count") or warning.get("count") or 1) >= _TRIES:
                self._cannot_start(pod.name if len(self._pods) > 1 else "", reason, message)

    def _cannot_start(self, where: str, reason: str, message: str) -> None:
        """End the run with the first error of this kind."""
        if self._failure is None:
            self._failure = FailedPrecondition(
                ": ".join(part for part in (where, reason, message) if part),
                hint="with --retry it is tried again, as the node does",
            )
            self._interrupted.set()

    async def _tell_failure(self, pod: _Pod) -> None:
        """Say why containers of a pod failed by themselves, after their output, where an exit status does not."""
        import msgspec

        from podkeep.api.status import PodStatus
        from podkeep.cli.run_output import last_words

        await pod.output.shown()
        status = pod.value.get("status") or {}
        if status.get("phase") != "Failed" or self._signal or self._failure is not None:
            return
        told = msgspec.convert(status, PodStatus)
        for line in last_words(told, pod.name if len(self._pods) > 1 else "", _sidecars(pod.value)):
            echo_line(f"podkeep: {line}", err=True)

    def _show(self, pod: _Pod) -> None:
        status = pod.value.get("status") or {}
        for key in ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"):
            for told in status.get(key) or ():
                self._show_container(pod, told)
        for condition in status.get("conditions") or ():
            if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
                pod.output.waiting("", str(condition.get("reason", "")), str(condition.get("message", "")))

    def _show_container(self, pod: _Pod, told: Mapping[str, Any]) -> None:
        name, state = str(told.get("name", "")), told.get("state") or {}
        if told.get("containerID") and ("running" in state or "terminated" in state or told.get("lastState")):
            newest = int(told.get("restartCount") or 0)
            # Attempts that began and ended between two states of the pod have left logs, too.
            for attempt in range(pod.logs.get(name, -1) + 1, newest + 1):
                path = self._log(pod, name, attempt)
                if log_files.exists(path):
                    pod.output.started(name, attempt, path)
                    pod.logs[name] = attempt
        waiting = state.get("waiting") or {}
        reason, message = str(waiting.get("reason") or ""), str(waiting.get("message") or "")
        if not reason or reason in _BENIGN:
            return
        if reason in _CANNOT_START and not self._wish.retry:
            where = f"{pod.name}/{name}" if len(self._pods) > 1 or _count(pod.value) > 1 else ""
            self._cannot_start(where, reason, message)
        elif self._wish.retry:
            pod.output.waiting(name, reason, message)

    def _log(self, pod: _Pod, container: str, attempt: int) -> Path:
        """Return where a container logs (CRI: log_directory and log_path, as a kubelet names them)."""
        return self._pod_logs / f"{pod.namespace}_{pod.name}_{pod.uid}" / container / f"{attempt}.log"

    async def _delete_pods(self, grace: int | None = None) -> None:
        from podkeep.client.errors import ApiError
        from podkeep.client.resources import PODS

        for pod in self._pods:
            try:
                # With the UID: somebody may have deleted the pod and made another one of its name.
                await self._api.client.delete(PODS, pod.name, pod.namespace, grace=grace, uid=pod.uid)
            except ApiError as error:
                if not (error.not_found or error.conflict):
                    raise

    async def remove(self) -> None:
        """Remove what was created, the newest first; what cannot be removed is told."""
        from podkeep.client.resources import PODS

        if self._wish.keep and self._failure is None:
            return
        try:
            await self._delete_pods()
            async with asyncio.timeout(_REMOVAL_S):
                for pod in (item for item in self._pods if not item.gone):
                    await following.until_gone(self._api.client, PODS, pod.name, pod.namespace, pod.uid)
            for resource, namespace, name, uid in reversed(self._made):
                await self._delete(resource, namespace, name, uid)
        except PodkeepError as error:
            echo_error(error)
        except TimeoutError:
            echo_line("podkeep: pods are still being removed: `podkeep get pods` shows them", err=True)

    async def _delete(self, resource: Resource, namespace: str, name: str, uid: str) -> None:
        from podkeep.client.errors import ApiError

        try:
            await self._api.client.delete(resource, name, namespace, uid=uid, propagation="Background")
        except ApiError as error:
            if not (error.not_found or error.conflict):
                raise


def _of(error: PodkeepError, where: str, name: str) -> PodkeepError:
    from podkeep.client.errors import ApiError

    error.message = f"{where}: {error.message}"
    if isinstance(error, ApiError) and error.already_exists:
        error.hint = f"`podkeep delete pod {name}` removes it; `podkeep apply` changes it"
    return error


def _count(pod: Mapping[str, Any]) -> int:
    spec = pod.get("spec") or {}
    return sum(len(spec.get(key) or ()) for key in ("containers", "initContainers") if isinstance(spec.get(key), list))


def _sidecars(pod: Mapping[str, Any]) -> set[str]:
    """Return the init containers of a pod whose end says nothing."""
    init = (pod.get("spec") or {}).get("initContainers") or ()
    return {str(item.get("name")) for item in init if item.get("restartPolicy") == "Always"}


def exit_status(pods: Sequence[Mapping[str, Any]]) -> int:
    """Return the exit status of the container that failed first; 1 if a pod failed without one; else 0.

    How a sidecar ended makes no difference, nor does any container of a pod that succeeded.
    """
    failed: list[tuple[str, int]] = []
    without = False
    for pod in pods:
        status = pod.get("status") or {}
        if status.get("phase") == "Succeeded":
            continue
        sidecars = _sidecars(pod)
        own = [
            (str(ended.get("finishedAt") or ""), int(ended["exitCode"]))
            for key in ("initContainerStatuses", "containerStatuses")
            for told in status.get(key) or ()
            if told.get("name") not in sidecars
            and (ended := (told.get("state") or {}).get("terminated"))
            and ended.get("exitCode")
        ]
        failed += own
        without = without or (status.get("phase") == "Failed" and not own)
    return min(failed)[1] if failed else int(without)
