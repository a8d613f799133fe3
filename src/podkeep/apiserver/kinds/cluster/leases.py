"""Leases: who leads, and which agents are alive."""

from __future__ import annotations

from podkeep.api import names
from podkeep.api.feature_gates import FeatureGates
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds.cells import AGE, NAME, at, column
from podkeep.apiserver.kinds.field_rules import NEGATIVE, named, not_supported
from podkeep.apiserver.kinds.resources import Resource, Strategy
from podkeep.apiserver.meta.objects import Object
from podkeep.apiserver.schema.table import Kind

_COORDINATED = ("strategy", "preferredHolder")
"""Fields of coordinated leader election, which is off by default in Kubernetes 1.36 and not built here."""


def _drop(new: Object, old: Object | None, _: FeatureGates) -> None:
    for name in _COORDINATED:
        if old is None or name not in old.get("spec", {}):
            new.get("spec", {}).pop(name, None)


def _validate(value: Object, errors: FieldErrors) -> None:
    spec = value.get("spec", {})
    duration, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    if duration is not None and duration <= 0:
        errors.invalid("spec.leaseDurationSeconds", duration, "must be greater than 0")
    if transitions is not None and transitions < 0:
        errors.invalid("spec.leaseTransitions", transitions, NEGATIVE)
    strategy = spec.get("strategy")
    if strategy is not None:
        where = "spec.strategy.strategy"  # upstream names it twice
        if "/" not in strategy:
            if strategy != "OldestEmulationVersion":
                not_supported(where, strategy, ("OldestEmulationVersion",), errors)
        else:
            named(where, strategy, names.label_key_problems(strategy), errors)
    if spec.get("preferredHolder") and not strategy:
        errors.forbidden("spec.preferredHolder", "may only be specified if `strategy` is defined")


RESOURCES = (
    Resource(
        kind=Kind("coordination.k8s.io", "v1", "Lease"),
        plural="leases",
        columns=(NAME, column("Holder", lambda value: at(value, "spec", "holderIdentity", default="")), AGE),
        strategy=Strategy(drop=_drop, validate=_validate, create_on_update=True, unconditional_update=False),
    ),
)
