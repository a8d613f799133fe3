"""What the configuration's values must be for the agent, beyond what ``base.config`` can know of them.

Owns: asking each part of the agent whether it could work with its settings. Does not own: the rules, which are those
parts' own. Called when the agent starts, and by ``podkeep config check``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from ipaddress import ip_address
from pathlib import Path

from podkeep.agent.node_status import registration
from podkeep.agent.resources import allocatable, machine
from podkeep.agent.user_namespaces import mapping
from podkeep.agent.user_namespaces.blocks import default_range
from podkeep.api import feature_gates
from podkeep.base.config import AgentConfig, Config, problems_of
from podkeep.base.errors import InvalidArgument, InvalidConfiguration


def check(config: Config) -> None:
    """Check every value that a part of the agent reads.

    :raises InvalidConfiguration: naming the first that cannot work.
    """
    for problem in (*problems(config), *problems_of(partial(registration.require_name, config.agent.own_name()))):
        raise InvalidConfiguration.of(problem)


def problems(config: Config) -> Iterator[InvalidArgument]:
    """Yield what cannot work of the values that a part of the agent reads.

    The machine's own name is not looked at: it is no value, and a machine without an agent may have any.
    """
    agent = config.agent
    checks: list[Callable[[], object]] = [
        partial(feature_gates.read, agent.feature_gates, "agent"),
        partial(mapping.read, agent.uid_mapping, agent.gid_mapping),
        agent.crash_loop_back_off.longest,
        partial(_blocks, agent),
        partial(_allocatable, agent),
        *([partial(registration.require_name, agent.node_name)] if agent.node_name else []),
        *(partial(registration.require_label, key, value) for key, value in agent.node_labels.items()),
        partial(registration.taints, agent.register_with_taints),
        *(partial(_server, text) for text in agent.cluster_dns),
    ]
    for asked in checks:
        yield from problems_of(asked)


def _blocks(agent: AgentConfig) -> None:
    if agent.max_pods >= 1 and not [*problems_of(agent.user_namespaces.length)]:  # else it is told by base.config
        try:
            default_range(agent.max_pods, agent.user_namespaces.ids_per_pod)
        except InvalidArgument as error:
            raise InvalidArgument(f"agent.max_pods: {error.message}", hint=error.hint) from error


def _allocatable(agent: AgentConfig) -> None:
    try:
        allocatable.reserved(agent)
    except ValueError:  # base.config tells which it is
        return
    allocatable.allocatable(machine.capacity(Path(agent.root), agent.max_pods), agent)


def _server(text: str) -> None:
    try:
        ip_address(text)
    except ValueError as error:
        raise InvalidArgument(f"agent.cluster_dns: {error}", hint="write IP addresses, as 10.96.0.10") from error
