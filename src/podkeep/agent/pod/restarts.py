"""Whether a container that ended runs again: restart policies of pods and containers, and rules by exit code. Pure.

The rules are those of Kubernetes 1.36 (KEP-753 sidecars, KEP-5307 container restart rules, KEP-5532 restart of all
containers).
"""

from __future__ import annotations

from podkeep.api.containers import Container, ContainerRestartRule
from podkeep.api.pod import Pod, PodSpec

RESTART = "Restart"
RESTART_ALL = "RestartAllContainers"
RESTARTING_ALL = "RestartingAllContainers"
"""Reason of a container that was removed so that all of its pod start again."""


def matching_rule(container: Container, exit_code: int) -> ContainerRestartRule | None:
    """Return the first of the container's rules that is about ``exit_code``."""
    for rule in container.restart_policy_rules:
        if rule.exit_codes is None:
            continue
        listed = exit_code in rule.exit_codes.values
        if (rule.exit_codes.operator == "In" and listed) or (rule.exit_codes.operator == "NotIn" and not listed):
            return rule
    return None


def restarts_after(container: Container, spec: PodSpec, exit_code: int) -> bool:
    """Return whether ``container`` runs again after it ended with ``exit_code``.

    Rules count only beside a restart policy of the container; that of the pod is the last resort, and is Always when
    it is not set.
    """
    if container.restart_policy is not None:
        rule = matching_rule(container, exit_code)
        if rule is not None and rule.action in {RESTART, RESTART_ALL}:
            return True
    policy = container.restart_policy or spec.restart_policy or "Always"
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def restarts_all(container: Container, exit_code: int) -> bool:
    """Return whether the end of ``container`` with ``exit_code`` restarts every container of its pod."""
    rule = matching_rule(container, exit_code)
    return rule is not None and rule.action == RESTART_ALL


def may_restart_all(pod: Pod) -> bool:
    """Return whether the end of any container may restart all of them."""
    return any(
        rule.action == RESTART_ALL
        for container in (*pod.spec.init_containers, *pod.spec.containers)
        for rule in container.restart_policy_rules
    )


def restarts_when_killed(container: Container, spec: PodSpec) -> bool:
    """Return whether ``container`` runs again after the agent killed it because a probe failed.

    Rules are not asked: while it runs, it has no exit code.
    """
    return (container.restart_policy or spec.restart_policy or "Always") != "Never"
