"""The measurements: pods one after the other, churn at a concurrency, polling and memory with many pods alive.

Each takes a connected :class:`bench.pods.Pods` and returns values; printing is the callers' business.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc

from bench.pods import Pod, PodOptions, Pods, Unmeasurable
from bench.samples import Samples, Summary
from podkeep.cri.v1 import api_pb2 as pb

POLLS = 20


def warm_up(pods: Pods, options: PodOptions) -> None:
    """One pod that is not counted: it pays for caches and bridges, and shows that what was asked for is there.

    :raises Unmeasurable: if a user namespace was asked for and the runtime ran the pod without.
    """
    samples = Samples()
    pod = pods.up(options, samples)
    uid_map = pods.output(pod, ["cat", "/proc/self/uid_map"]).split()
    if options.userns and uid_map[:2] == ["0", "0"]:
        raise Unmeasurable("the runtime ignored the user namespace: /proc/self/uid_map in the pod is the host's")
    pods.down(pod, samples)


def sequential(pods: Pods, options: PodOptions, count: int) -> Samples:
    """``count`` pods, one after the other: up, one exec, down."""
    samples = Samples()
    for _ in range(count):
        pod = pods.up(options, samples)
        pods.execute(pod, samples)
        pods.down(pod, samples)
    return samples


def churn(pods: Pods, options: PodOptions, *, count: int, concurrency: int) -> float:
    """``count`` pods up and down, ``concurrency`` at a time: pods per second."""
    samples = Samples()

    def one(_: int) -> None:
        pods.down(pods.up(options, samples), samples)

    start = time.perf_counter()
    with ThreadPoolExecutor(concurrency) as executor:
        list(executor.map(one, range(count)))
    return count / (time.perf_counter() - start)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What ``pods`` live pods cost: seconds to bring them up and down, the polls of a kubelet, a caller's probe."""

    pods: int
    up_seconds: float
    down_seconds: float
    polls: dict[str, Summary]
    failed_polls: dict[str, str] = field(default_factory=dict)
    """Poll to the gRPC code it failed with."""


def scale(
    pods: Pods, options: PodOptions, *, count: int, concurrency: int, probe: Callable[[], None] | None = None
) -> Scale:
    """Bring up ``count`` pods, poll as a kubelet does, call ``probe`` while they live, take them down."""
    samples = Samples()
    start = time.perf_counter()
    with ThreadPoolExecutor(concurrency) as executor:
        live = list(executor.map(lambda _: pods.up(options, samples), range(count)))
    up_seconds = time.perf_counter() - start
    polls, failed = _poll(pods, live[0])
    if probe is not None:
        probe()
    start = time.perf_counter()
    with ThreadPoolExecutor(concurrency) as executor:
        list(executor.map(lambda pod: pods.down(pod, samples), live))
    down_seconds = time.perf_counter() - start
    return Scale(pods=count, up_seconds=up_seconds, down_seconds=down_seconds, polls=polls, failed_polls=failed)


def _poll(pods: Pods, pod: Pod) -> tuple[dict[str, Summary], dict[str, str]]:
    requests = {
        "Status": pb.StatusRequest(),
        "ListPodSandbox": pb.ListPodSandboxRequest(),
        "ListContainers": pb.ListContainersRequest(),
        "PodSandboxStatus": pb.PodSandboxStatusRequest(pod_sandbox_id=pod.sandbox),
        "ContainerStatus": pb.ContainerStatusRequest(container_id=pod.container),
        "ListPodSandboxStats": pb.ListPodSandboxStatsRequest(),
        "ListContainerStats": pb.ListContainerStatsRequest(),
    }
    samples = Samples()
    failed: dict[str, str] = {}
    for name, request in requests.items():
        for _ in range(POLLS):
            try:
                with samples.timed(name):
                    getattr(pods.runtime, name)(request, timeout=30)
            except grpc.RpcError as error:
                failed[name] = error.code().name
                break
    return samples.summaries(), failed
