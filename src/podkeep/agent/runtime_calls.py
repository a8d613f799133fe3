"""Calls to the runtime, counted under kubelet's names for them (kubelet: ``instrumented_services.go``)."""

from __future__ import annotations

import re
from typing import Any

from podkeep.agent import metrics as names
from podkeep.agent.metrics import AgentMetrics
from podkeep.base.errors import PodkeepError
from podkeep.cri.client import Observe
from podkeep.cri.v1 import api_pb2

_NAMES = {"UpdateContainerResources": "update_container"}
"""Of RPCs whose name is not that of the RPC in snake case."""
_TOGETHER = re.compile("pod_sandbox")


def operation(rpc: str) -> str:
    """Return kubelet's name of an RPC: ``RunPodSandbox`` is ``run_podsandbox``."""
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", rpc).lower()
    return _NAMES.get(rpc) or _TOGETHER.sub("podsandbox", snake)


def observer(metrics: AgentMetrics) -> Observe:
    """Return a function for ``CriClient.observe`` that counts calls, their failures and how long they took."""
    known: dict[str, str] = {}

    def observe(rpc: str, request: Any, seconds: float, failure: PodkeepError | None) -> None:
        name = known.get(rpc)
        if name is None:
            name = known[rpc] = operation(rpc)
        metrics.add(names.RUNTIME_OPERATIONS, name)
        metrics.observe(names.RUNTIME_OPERATIONS_DURATION, seconds, name)
        if failure is not None:
            metrics.add(names.RUNTIME_OPERATIONS_ERRORS, name)
        if rpc == "RunPodSandbox":
            _sandbox(metrics, request, seconds, failed=failure is not None)

    return observe


def _sandbox(metrics: AgentMetrics, request: api_pb2.RunPodSandboxRequest, seconds: float, *, failed: bool) -> None:
    options = request.config.linux.security_context.namespace_options
    own_users = options.HasField("userns_options") and options.userns_options.mode == api_pb2.POD
    count_sandbox(metrics, failed=failed, own_users=own_users)
    metrics.observe(names.RUN_SANDBOX_DURATION, seconds, request.runtime_handler)
    if failed:
        metrics.add(names.RUN_SANDBOX_ERRORS, request.runtime_handler)


def count_sandbox(metrics: AgentMetrics, *, failed: bool, own_users: bool) -> None:
    """Count a sandbox that was asked for, or that failed before: a kubelet finds a pod's user IDs when it makes it.

    :param own_users: it is to have a user namespace.
    """
    metrics.add(names.STARTED_PODS)
    if own_users:
        metrics.add(names.STARTED_USERNS_PODS)
    if failed:
        metrics.add(names.STARTED_PODS_ERRORS)
        if own_users:
            metrics.add(names.STARTED_USERNS_PODS_ERRORS)
