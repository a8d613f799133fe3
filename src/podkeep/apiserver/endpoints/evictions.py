"""Evicting a pod: whether its disruption budget allows it, and what is then noted in both (registry: ``eviction.go``).

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from podkeep.apiserver.kinds.pods.binding import set_condition
from podkeep.apiserver.meta import selectors
from podkeep.apiserver.meta.objects import Object, has_condition, metadata
from podkeep.apiserver.meta.status import StatusError, forbidden
from podkeep.apiserver.patch.values import copy

# That of kube-apiserver (MaxDisruptedPodSize).
MAX_DISRUPTED_PODS = 2_000
_VIOLATES = "Cannot evict pod as it would violate the pod's disruption budget."
_CONDITION = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "EvictionByEvictionAPI",
    "message": "Eviction API: evicting",
}


def ignores_budget(pod: Mapping[str, Any]) -> bool:
    """Tell whether a pod's end disrupts nothing: it has not begun, or has ended, or is about to."""
    phase = pod.get("status", {}).get("phase")
    return phase in ("Succeeded", "Failed", "Pending") or "deletionTimestamp" in metadata(pod)


class _Spec(msgspec.Struct, frozen=True):
    selector: dict[str, Any] | None = None


class _Named(msgspec.Struct, frozen=True):
    name: str


class Budget(msgspec.Struct, frozen=True):
    """What of a disruption budget says which pods are its own."""

    metadata: _Named
    spec: _Spec = _Spec()

    def has(self, labels: Mapping[str, str]) -> bool:
        return _selects(self.spec.selector, labels)


def budget_of(pod: Mapping[str, Any], budgets: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the disruption budget of a pod; None if it has none.

    :raises StatusError: 500, if it has several.
    """
    labels = metadata(pod).get("labels", {})
    found = [budget for budget in budgets if _selects(budget.get("spec", {}).get("selector"), labels)]
    if len(found) > 1:
        why = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        raise StatusError(500, "", why)
    return found[0] if found else None


def _selects(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Tell whether the selector of a disruption budget has a pod with these labels."""
    found = selectors.of_object(selector)
    return found is not None and found.matches(labels)


def is_unguarded(pod: Mapping[str, Any], budget: Mapping[str, Any]) -> bool:
    """Tell whether a budget does not count a pod, because it is not ready."""
    if has_condition(pod.get("status", {}), "Ready"):
        return False
    if budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    status = budget.get("status", {})
    desired = status.get("desiredHealthy", 0)
    # It is not among the healthy ones, of which there are enough without it.
    return bool(desired > 0 and status.get("currentHealthy", 0) >= desired)


def charged(budget: Mapping[str, Any], pod: str, now: str) -> Object:
    """Return a budget after it has allowed one more disruption.

    :raises StatusError: 403 or 429, if it does not.
    """
    name, status = metadata(budget)["name"], budget.get("status", {})
    observed = status.get("observedGeneration", 0)
    # The numbers are of an older specification: the controller has to count first.
    if observed < metadata(budget).get("generation", 0):
        why = f"The disruption budget {name} is still being processed by the server."
        raise _refused(why, seconds=10)
    allowed, disrupted = status.get("disruptionsAllowed", 0), status.get("disruptedPods", {})
    if allowed < 0:
        raise forbidden("poddisruptionbudget", "policy", name, "pdb disruptions allowed is negative")
    if len(disrupted) > MAX_DISRUPTED_PODS:
        why = "DisruptedPods map too big - too many evictions not confirmed by PDB controller"
        raise forbidden("poddisruptionbudget", "policy", name, why)
    if allowed == 0:
        raise _refused(_obstacle(name, status))
    new = copy(dict(budget))
    new["status"] |= {"disruptionsAllowed": allowed - 1, "disruptedPods": {**disrupted, pod: now}}
    if allowed == 1:
        condition = {
            "type": "DisruptionAllowed",
            "status": "False",
            "reason": "InsufficientPods",
            "observedGeneration": status.get("observedGeneration", 0),
        }
        set_condition(new["status"], condition, now)
    return new


def _obstacle(name: str, status: Mapping[str, Any]) -> str:
    conditions = [item for item in status.get("conditions", ()) if item.get("type") == "DisruptionAllowed"]
    condition = conditions[0] if conditions else {}
    message = condition.get("message", "") if condition.get("status") == "False" else ""
    if message and condition.get("reason") == "SyncFailed":
        return f"The disruption budget {name} does not allow evicting pods currently because it failed sync: {message}"
    desired, current = status.get("desiredHealthy", 0), status.get("currentHealthy", 0)
    if current <= desired:
        return f"The disruption budget {name} needs {desired} healthy pods and has {current} currently"
    if message:
        reason = condition.get("reason", "")
        return f"The disruption budget {name} does not allow evicting pods currently ({reason}): {message}"
    return f"The disruption budget {name} does not allow evicting pods currently"


def _refused(why: str, seconds: int = 0) -> StatusError:
    causes = [{"reason": "DisruptionBudget", "message": why}]
    return StatusError(429, "TooManyRequests", _VIOLATES, retryAfterSeconds=seconds, causes=causes)


def marked(pod: Object, _: Mapping[str, Any], now: str) -> Object:
    """Return a pod that says why it ends."""
    new = copy(pod)
    set_condition(new.setdefault("status", {}), _CONDITION, now)
    return new
