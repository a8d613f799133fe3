"""The kubelet's endpoints: who asks, whether they may, and which function answers.

Texts and statuses are kubelet's (``pkg/kubelet/server``); errors are plain text. What clients may take is bounded by
the server's limits, and each request that is authorized counts as admitted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from typing import Any

import msgspec

from podkeep.agent import metrics as names
from podkeep.agent.metrics import AgentMetrics
from podkeep.agent.server import logs, paths, pod_lists, resource_metrics, stats, streams, system_logs
from podkeep.agent.server.authentication import Authenticator
from podkeep.agent.server.authorization import Authorizer, wanted
from podkeep.agent.server.collector import Collector
from podkeep.agent.server.interfaces import Pods
from podkeep.agent.server.paths import Path
from podkeep.agent.server.unread import Unread
from podkeep.api.pod import Pod
from podkeep.base import process_metrics
from podkeep.base.errors import PodkeepError, Unimplemented, reason_of
from podkeep.base.frozen import FrozenStruct
from podkeep.base.metrics import CONTENT_TYPE, text_of
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2
from podkeep.http import health
from podkeep.http.messages import Head, Refused, Request, Response, Upgrade

log = logging.getLogger(__name__)

Answer = Response | Upgrade
_JSON = [("Content-Type", "application/json")]
_TEXT = [("Content-Type", "text/plain; charset=utf-8")]
_METRICS = [("Content-Type", CONTENT_TYPE)]
_STREAMED = frozenset({"exec", "attach", "portForward", "run", "containerLogs", "runningpods", "logs"})
"""What ``enable_debugging_handlers`` switches."""


class Settings(FrozenStruct, kw_only=True):
    """How the endpoints behave (KubeletConfiguration)."""

    debugging_handlers: bool = True
    system_logs: str = ""
    """Directory behind ``/logs/``; empty: there is none."""
    idle_timeout: float = 4 * 3600.0
    checkpoints: str = ""
    """Directory for checkpoints of containers; empty: there are none."""


class Endpoints(FrozenStruct, kw_only=True):
    """Answers requests.

    :ivar configuration: returns what ``/configz`` shows, in KubeletConfiguration's form.
    :ivar checks: what ``/healthz`` looks at beside ``ping`` and ``log``.
    """

    client: CriClient
    pods: Pods
    metrics: AgentMetrics
    collector: Collector
    authenticator: Authenticator
    authorizer: Authorizer
    configuration: Callable[[], Mapping[str, Any]]
    checks: tuple[health.Check, ...] = ()
    settings: Settings = Settings()
    readers: logs.Readers = msgspec.field(default_factory=logs.Readers)
    unread: Unread = msgspec.field(default_factory=Unread)

    async def answer(self, request: Request) -> Answer:
        try:
            path = paths.of_request(request)
        except Refused as refusal:
            self._count(request, None)
            return _refused(refusal, request)
        self._count(request, path)
        try:
            user = await self.authenticator.authenticate(request)
            await request.while_there(self.authorizer.check(user, wanted(request.method, path.text)))
            # Only now: strangers are pushed out by anybody, who has shown that they may ask only by who has fewer.
            request.admit(path.namespace)
            answer = await self._routed(request, path)
            self.unread.count(request, user.name, answer)
            return answer
        except Refused as refusal:
            # Not where it is read by default: strangers may be refused as often as they like.
            log.debug(
                "%s %s is refused with %d: %s", request.method, path.text, refusal.status, refusal.message.strip()
            )
            return _refused(refusal, request)

    def _count(self, request: Request, path: Path | None) -> None:
        found, started = paths.labels(request.method, path), time.monotonic()
        self.metrics.add(names.HTTP_REQUESTS, *found)
        self.metrics.add(names.HTTP_IN_FLIGHT, *found)

        def done() -> None:
            self.metrics.add(names.HTTP_IN_FLIGHT, *found, amount=-1)
            self.metrics.observe(names.HTTP_DURATION, time.monotonic() - started, *found)

        request.at_end.callback(done)

    async def _routed(self, request: Request, path: Path) -> Answer:
        name, rest = next(iter(path.parts), ""), path.parts[1:]
        route = _ROUTES.get(name)
        if route is None or len(rest) not in route.parts:
            raise Refused(404, "404 page not found")
        if name in _STREAMED and not self.settings.debugging_handlers:
            raise Refused(405, "Debug endpoints are disabled.")
        if request.method not in route.methods:
            raise Refused(405, "405: Method Not Allowed", [("Allow", ", ".join(route.methods))])
        return await route.answer(self, request, path, rest)

    # health and configuration

    async def healthz(self, request: Request, path: Path, rest: tuple[str, ...]) -> Answer:
        found = health.answer(
            "healthz",
            next(iter(rest), ""),
            (health.PING, health.LOG, *self.checks),
            excluded=path.query.get("exclude", ()),
            verbose="verbose" in path.query,
        )
        if found is None:
            raise Refused(404, "404 page not found")
        status, text = found
        return Response(status=status, headers=[*_TEXT, ("X-Content-Type-Options", "nosniff")], body=text.encode())

    async def configz(self, request: Request, path: Path, rest: tuple[str, ...]) -> Answer:
        return _json({"kubeletconfig": self.configuration()})

    # pods

    async def all_pods(self, request: Request, path: Path, rest: tuple[str, ...]) -> Answer:
        return Response(headers=_JSON, body=pod_lists.encoded(self.pods.pods()))

    async def running_pods(self, request: Request, path: Path, rest: tuple[str, ...]) -> Answer:
        try:
            return Response(headers=_JSON, body=await pod_lists.running(self.client))
        except PodkeepError as error:
            raise Refused(500, error.message) from error

    # statistics and metrics

    async def summary(self, request: Request, path: Path, rest: tuple[str, ...]) -> Answer:
        if rest != ("summary",):
            raise Refused(404, "404 page not found")
        small = next(iter(path.query.get("only_cpu_and_memory", ())), "") == "true"
        try:
            found = await request.while_there(self.collector.summary(cpu_and_memory=small))
        except (PodkeepError, OSError) as error:
            log.warning("no statistics: %s", error)
            raise Refused(500, f"Internal Error: {reason_of(error)}") from error
        return Response(headers=_JSON, body=stats.encode(found))

    async def metrics_of(self, request: Request, path: Path, rest: tuple[str, ...]) -> Answer:
        answer = _METRICS_OF.get(next(iter(rest), ""))
        if answer is None:
            raise Refused(404, "404 page not found")
        return Response(headers=_METRICS, body=(await request.while_there(answer(self))).encode())

    async def own_metrics(self) -> str:
        return self.metrics.text(without=names.PROBES) + process_metrics.text() + await self._volume_metrics()

    async def _volume_metrics(self) -> str:
        if not any(volume.persistent_volume_claim for pod, _ in self.pods.pods() for volume in pod.spec.volumes):
            return ""
        try:
            summary = await self.collector.summary()
        except (PodkeepError, OSError) as error:
            log.warning("no statistics of volumes: %s", error)
            return ""
        return text_of(resource_metrics.volume_families(summary["pods"]))

    async def probe_metrics(self) -> str:
        return self.metrics.text(only=names.PROBES) + process_metrics.start_time()

    async def resource_metrics(self) -> str:
        try:
            summary: Mapping[str, Any] | None = await self.collector.summary(cpu_and_memory=True)
        except (PodkeepError, OSError) as error:
            log.warning("no statistics for /metrics/resource: %s", error)
            summary = None
        return text_of(resource_metrics.resource_families(summary))

    async def pod_metrics(self) -> str:
        try:
            described = await self.client.runtime.ListMetricDescriptors(api_pb2.ListMetricDescriptorsRequest())
            found = await self.client.runtime.ListPodSandboxMetrics(api_pb2.ListPodSandboxMetricsRequest())
        except Unimplemented as error:
            raise Refused(501, error.message) from error
        except PodkeepError as error:
            raise Refused(500, error.message) from error
        return text_of(resource_metrics.cri_families(described.descriptors, found.pod_metrics))

    # logs

    async def container_logs(self, request: Request, path: Path, rest: tuple[str, ...]) -> Answer:
        namespace, name, container = rest
        options = logs.log_options(path.query, time.time())
        found = self.pods.find(namespace, name)
        if found is None:
            raise Refused(404, f'pod "{name}" does not exist')
        pod, status = found
        if container not in pod_lists.containers(pod):
            raise Refused(404, f'container "{container}" not found in pod "{name}"')
        identity = logs.container_of(status, name, container, previous=options.previous)
        share = request.at_end.enter_context(self.readers.one_more(namespace))
        reader = await request.while_there(logs.open_log(self.client, identity, options, share=share))
        request.at_end.callback(reader.close)
        body: AsyncGenerator[bytes, None] = logs.read_log(
            self.client, identity, reader, options, request.stopping, share=share
        )
        return Response(headers=[("Content-Type", "text/plain")], body=body)

    async def system_log(self, request: Request, path: Path, rest: tuple[str, ...]) -> Answer:
        if not self.settings.system_logs:
            raise Refused(405, "logs endpoint is disabled.")
        return await system_logs.answer(self.settings.system_logs, rest, request.at_end)

    # streams

    async def exec(self, request: Request, path: Path, rest: tuple[str, ...]) -> Answer:
        asked = streams.streams_of(path.query)
        pod, identity = await self._container(request, rest, 'container not found ("{}")')
        message = api_pb2.ExecRequest(
            container_id=identity,
            cmd=path.query.get("command", ()),
            stdin=asked.stdin,
            stdout=asked.stdout,
            stderr=asked.stderr,
            tty=asked.tty,
        )
        return await self._stream(request, "exec", pod, lambda: self.client.runtime.Exec(message))

    async def attach(self, request: Request, path: Path, rest: tuple[str, ...]) -> Answer:
        asked = streams.streams_of(path.query)
        pod, identity = await self._container(request, rest, "container {} not found in pod {}_{}")
        tty = pod_lists.containers(pod)[rest[-1]].tty
        message = api_pb2.AttachRequest(
            container_id=identity,
            stdin=asked.stdin,
            stdout=asked.stdout,
            # A terminal has one output.
            stderr=asked.stderr and not tty,
            tty=tty,
        )
        return await self._stream(request, "attach", pod, lambda: self.client.runtime.Attach(message))

    async def port_forward(self, request: Request, path: Path, rest: tuple[str, ...]) -> Answer:
        ports = () if streams.is_tunnel(request) else streams.ports_of(path.query, request.upgrade)
        pod = self._pod(rest[0], rest[1], rest[2] if len(rest) == 3 else "")
        sandbox = await self._asked(request, streams.ready_sandbox(self.client, pod.metadata.uid))
        if sandbox is None:
            raise Refused(500, f'pod not found ("{rest[1]}_{rest[0]}")')
        message = api_pb2.PortForwardRequest(pod_sandbox_id=sandbox, port=ports)
        return await self._stream(request, "portforward", pod, lambda: self.client.runtime.PortForward(message))

    async def run(self, request: Request, path: Path, rest: tuple[str, ...]) -> Answer:
        _, identity = await self._container(request, rest, 'container not found ("{}")')
        # At each blank and without quotes, as a kubelet splits it (getRun).
        command = next(iter(path.query.get("cmd", ())), "").split(" ")
        call = self.client.runtime.ExecSync(api_pb2.ExecSyncRequest(container_id=identity, cmd=command))
        done = await self._asked(request, call)
        output = done.stdout + done.stderr
        if done.exit_code:
            words = f"command '{' '.join(command)}' exited with {done.exit_code}: ".encode()
            return Response(status=500, headers=_TEXT, body=words + output)
        return Response(headers=_JSON, body=output)

    async def checkpoint(self, request: Request, path: Path, rest: tuple[str, ...]) -> Answer:
        if not self.settings.checkpoints:
            raise Refused(404, "404 page not found")
        namespace, name, container = rest
        pod = self._pod(namespace, name)
        if container not in pod_lists.containers(pod):
            raise Refused(404, f"container {container} does not exist")
        timeout = next(reversed(path.query.get("timeout", ("0",))))
        if not (timeout.isdecimal() and timeout.isascii() and len(timeout) < 10):
            raise Refused(404, "cannot parse value of timeout parameter")
        identity = await self._asked(request, streams.running_container(self.client, pod.metadata.uid, container))
        try:
            if identity is None:
                raise Unimplemented(f"container {container} is not running")
            place = await pod_lists.checkpoint_file(self.settings.checkpoints, pod, container)
            await self.client.runtime.CheckpointContainer(
                api_pb2.CheckpointContainerRequest(container_id=identity, location=place, timeout=int(timeout))
            )
        except PodkeepError as error:
            text = f"checkpointing of {namespace}/{name}/{container} failed ({error.message})"
            raise Refused(500, text) from error
        return _json({"items": [place]})

    def _pod(self, namespace: str, name: str, uid: str = "") -> Pod:
        found = self.pods.find(namespace, name)
        if found is None:
            raise Refused(404, "pod does not exist")
        if uid and found[0].metadata.uid != uid:
            raise Refused(404, "pod not found")
        return found[0]

    async def _container(self, request: Request, rest: tuple[str, ...], words: str) -> tuple[Pod, str]:
        """Return the pod and the ID of its running container that a path names: namespace, pod, maybe UID, container.

        :param words: the refusal if there is none, with places for container, pod and namespace.
        """
        namespace, name, container = rest[0], rest[1], rest[-1]
        pod = self._pod(namespace, name, rest[2] if len(rest) == 4 else "")
        identity = await self._asked(request, streams.running_container(self.client, pod.metadata.uid, container))
        if identity is None or container not in pod_lists.containers(pod):
            raise Refused(500, words.format(container, name, namespace))
        return pod, identity

    async def _asked(self, request: Request, call: Awaitable[Any]) -> Any:
        async def asked() -> Any:
            return await call

        try:
            return await request.while_there(asked())
        except PodkeepError as error:
            if isinstance(error, Refused):
                raise
            raise streams.refusal(error) from error

    async def _stream(self, request: Request, kind: str, pod: Pod, open_stream: Callable[[], Awaitable[Any]]) -> Answer:
        if not request.upgrade:
            raise Refused(400, "Upgrade request required")
        if request.upgrade == "websocket":
            self.metrics.add(names.WEBSOCKET_STREAMS, kind)
        answer = await self._asked(request, open_stream())
        return await streams.passed_on(
            request, answer.url, owner=pod.metadata.uid, idle_timeout=self.settings.idle_timeout
        )


Respond = Callable[[Endpoints, Request, Path, tuple[str, ...]], Awaitable[Answer]]


class _Route(FrozenStruct, kw_only=True):
    """``parts``: how many parts of the path may follow."""

    answer: Respond
    parts: range
    methods: tuple[str, ...] = ("GET",)


_BOTH = ("GET", "POST")
_ROUTES = {
    "healthz": _Route(answer=Endpoints.healthz, parts=range(2)),
    "configz": _Route(answer=Endpoints.configz, parts=range(1)),
    "pods": _Route(answer=Endpoints.all_pods, parts=range(1)),
    "runningpods": _Route(answer=Endpoints.running_pods, parts=range(1)),
    "stats": _Route(answer=Endpoints.summary, parts=range(1, 2), methods=_BOTH),
    "metrics": _Route(answer=Endpoints.metrics_of, parts=range(2)),
    "containerLogs": _Route(answer=Endpoints.container_logs, parts=range(3, 4)),
    "logs": _Route(answer=Endpoints.system_log, parts=range(64)),
    "exec": _Route(answer=Endpoints.exec, parts=range(3, 5), methods=_BOTH),
    "attach": _Route(answer=Endpoints.attach, parts=range(3, 5), methods=_BOTH),
    "portForward": _Route(answer=Endpoints.port_forward, parts=range(2, 4), methods=_BOTH),
    "run": _Route(answer=Endpoints.run, parts=range(3, 5), methods=("POST",)),
    "checkpoint": _Route(answer=Endpoints.checkpoint, parts=range(3, 4), methods=("POST",)),
}


_METRICS_OF: dict[str, Callable[[Endpoints], Coroutine[Any, Any, str]]] = {
    "": Endpoints.own_metrics,
    "resource": Endpoints.resource_metrics,
    "probes": Endpoints.probe_metrics,
    "cadvisor": Endpoints.pod_metrics,
}


def _json(value: Any) -> Response:
    return Response(headers=_JSON, body=msgspec.json.encode(value))


def _refused(refusal: Refused, head: Head) -> Response:
    """Return a refusal as kubelet's clients know it: its text alone, without a line's end."""
    body = b"" if head.method == "HEAD" else refusal.message.encode()
    return Response(status=refusal.status, headers=[*refusal.headers, *_TEXT], body=body)
