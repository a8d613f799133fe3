"""The agent's process: putting the parts together, serving, stopping. Pods run on when it ends.

The process is in the runtime's mount namespace and holds the lock of the agent's root when this module is called.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack

from podkeep.agent.daemon.registration import register
from podkeep.agent.manager.api_source import SOURCE, ApiSource
from podkeep.agent.manager.manager import PodManager
from podkeep.agent.manager.runtime_events import RuntimeEvents
from podkeep.agent.manager.status_manager import StatusManager
from podkeep.agent.mount_namespace import require_runtime_here
from podkeep.agent.node import this_node
from podkeep.agent.pod.events import Event
from podkeep.agent.sources import Sources, StaticObjects
from podkeep.api.pod import Pod
from podkeep.base import service
from podkeep.base.config import Config
from podkeep.base.tasks import Tasks
from podkeep.client.client import Client
from podkeep.client.reflector import Reflector
from podkeep.client.resources import PODS
from podkeep.client.settings import Settings
from podkeep.cri.client import CriClient

log = logging.getLogger(__name__)


def serve(
    config: Config, settings: Settings, mount_namespace: int, on_ready: Callable[[str], None] = lambda _: None
) -> None:
    """Run the node's pods until SIGTERM or SIGINT.

    :param settings: how the API is reached.
    :param mount_namespace: inode of the mount namespace that this process is in.
    :param on_ready: told in words when pods are followed.
    """
    asyncio.run(_serve(config, settings, mount_namespace, on_ready))


async def _serve(config: Config, settings: Settings, mount_namespace: int, on_ready: Callable[[str], None]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        client = Client(settings, user_agent="podkeep-agent")
        stack.push_async_callback(client.close)
        runtime = await stack.enter_async_context(CriClient(config.runtime.socket))
        await require_runtime_here(runtime, mount_namespace)
        node = this_node(runtime, config)
        stack.push_async_callback(node.logs.close)
        statuses = StatusManager(client)
        events = RuntimeEvents(runtime)
        manager = PodManager(
            node=node,
            objects=StaticObjects(Sources()),
            events=events,
            statuses=statuses,
            report=_log_event,
            sources=(SOURCE,),
        )
        stack.push_async_callback(manager.close)
        tasks = await stack.enter_async_context(Tasks("the agent"))
        pods = Reflector(client, PODS, fields=f"spec.nodeName={node.name}")
        await register(client, node)
        for work in (events.run(), statuses.run(), pods.run(ApiSource(manager, statuses))):
            tasks.start(work)
        words = f"node {node.name} runs the pods of {settings.server}"
        on_ready(words)
        service.ready(words)
        await stop.wait()
        log.info("stopping; pods run on")
        service.stopping()


def _log_event(pod: Pod, event: Event) -> None:
    log.info("pod %s/%s: %s: %s", pod.metadata.namespace, pod.metadata.name, event.reason, event.message)
