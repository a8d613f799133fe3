"""What the status of a Job may become (``pkg/apis/batch/validation``, ``pkg/registry/batch/job/strategy.go``). Pure.

Most rules hold only for what a write changes, so that a status that broke one before can be written still.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds import field_rules
from podkeep.apiserver.kinds.workloads import index_sets
from podkeep.apiserver.meta.objects import Object, has_condition
from podkeep.apiserver.patch.values import equal
from podkeep.base.frozen import FrozenStruct

_NUMBERS = ("active", "succeeded", "failed", "ready", "terminating")


class _Conditions(FrozenStruct):
    """Which conditions are true."""

    complete: bool
    failed: bool
    failure_target: bool
    success_criteria: bool

    @property
    def finished(self) -> bool:
        return self.complete or self.failed


def _conditions(status: Mapping[str, Any]) -> _Conditions:
    kinds = ("Complete", "Failed", "FailureTarget", "SuccessCriteriaMet")
    return _Conditions(*(has_condition(status, kind) for kind in kinds))


def validate_status(new: Object, old: Object, errors: FieldErrors) -> None:
    """Note what is wrong with a new status, and with the step from the old one."""
    spec, status, before = new["spec"], new.get("status", {}), old.get("status", {})
    now, then = _conditions(status), _conditions(before)
    changed = {name for name in status.keys() | before.keys() if _differ(name, status.get(name), before.get(name))}
    field_rules.not_negative(status, _NUMBERS, "status", errors)
    _validate_uncounted(status.get("uncountedTerminatedPods", {}), errors)
    _validate_conditions(spec, now, then, errors, failed_indexes="failedIndexes" in changed)
    _validate_times(spec, status, now, then, changed, errors)
    _validate_finished(status, now, then, changed, errors)
    _validate_indexes(spec, status, changed, errors)
    if changed & {"ready", "active"} and "ready" in status and status["ready"] > status.get("active", 0):
        errors.invalid("status.ready", status["ready"], "cannot set more ready pods than active")
    _validate_step(spec, new, old, errors)


def _differ(name: str, now: Any, before: Any) -> bool:
    if name != "failedIndexes":  # which may be there and empty
        now, before = now or None, before or None
    return not equal(now, before)


def _validate_uncounted(pods: Mapping[str, list[str]], errors: FieldErrors) -> None:
    seen: set[str] = set()
    for kind in ("succeeded", "failed"):
        for index, uid in enumerate(pods.get(kind, ())):
            path = f"status.uncountedTerminatedPods.{kind}[{index}]"
            if not uid:
                errors.invalid(path, uid, "must not be empty")
            elif uid in seen:
                errors.duplicate(path, uid)
            seen.add(uid)


def _validate_conditions(
    spec: Mapping[str, Any], now: _Conditions, then: _Conditions, errors: FieldErrors, *, failed_indexes: bool
) -> None:
    complete, failed = now.complete != then.complete, now.failed != then.failed
    target = now.failure_target != then.failure_target
    criteria = now.success_criteria != then.success_criteria
    for wrong, why in (
        (
            (complete or failed) and now.complete and now.failed,
            "cannot set Complete=True and Failed=true conditions",
        ),
        (
            (complete or target) and now.complete and now.failure_target,
            "cannot set Complete=True and FailureTarget=true conditions",
        ),
        (
            (failed or failed_indexes) and now.failed and not now.failure_target,
            "cannot set Failed=True condition without the FailureTarget=true condition",
        ),
        (
            (complete or criteria) and now.complete and not now.success_criteria,
            "cannot set Complete=True condition without the SuccessCriteriaMet=true condition",
        ),
        (now.success_criteria and now.failed, "cannot set SuccessCriteriaMet=True and Failed=true conditions"),
        (
            now.success_criteria and now.failure_target,
            "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions",
        ),
        (
            "successPolicy" in spec and not now.success_criteria and now.complete,
            "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True",
        ),
        (then.failed and not now.failed, "cannot disable the terminal Failed=True condition"),
        (then.complete and not now.complete, "cannot disable the terminal Complete=True condition"),
        (
            then.failure_target and not now.failure_target,
            "cannot disable the terminal FailureTarget=True condition",
        ),
        (
            then.success_criteria and not now.success_criteria,
            "cannot disable the SuccessCriteriaMet=True condition",
        ),
        (
            then.complete and not then.success_criteria and now.success_criteria,
            "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions",
        ),
    ):
        if wrong:
            field_rules.wrong("status.conditions", why, errors)


def _validate_times(
    spec: Mapping[str, Any],
    status: Mapping[str, Any],
    now: _Conditions,
    then: _Conditions,
    changed: set[str],
    errors: FieldErrors,
) -> None:
    start, end = status.get("startTime"), status.get("completionTime")
    if now.complete != then.complete or "completionTime" in changed:
        if end is not None and not now.complete:
            why = "cannot set completionTime when there is no Complete=True condition"
            errors.invalid("status.completionTime", end, why)
        if end is None and now.complete:
            field_rules.required("status.completionTime", "completionTime is required for Complete jobs", errors)
    if changed & {"startTime", "completionTime"} and start is not None and end is not None and _before(end, start):
        errors.invalid("status.completionTime", end, "must be equal to or after `startTime`")
    empty = spec.get("suspend") is True and spec.get("completions") == 0
    if (now.finished != then.finished or "startTime" in changed) and not empty and start is None and now.finished:
        field_rules.required("status.startTime", "startTime is required for finished job", errors)


def _before(left: str, right: str) -> bool:
    return datetime.fromisoformat(left) < datetime.fromisoformat(right)


def _validate_finished(
    status: Mapping[str, Any], now: _Conditions, then: _Conditions, changed: set[str], errors: FieldErrors
) -> None:
    """Note what a Job that has come to its end cannot have any more."""
    if not now.finished:
        return
    ended = not then.finished
    if (ended or "active" in changed) and status.get("active", 0) > 0:
        errors.invalid("status.active", status["active"], "active>0 is invalid for finished job")
    uncounted = status.get("uncountedTerminatedPods", {})
    if (ended or "uncountedTerminatedPods" in changed) and any(uncounted.values()):
        shown = {"Succeeded": uncounted.get("succeeded"), "Failed": uncounted.get("failed")}
        errors.invalid("status.uncountedTerminatedPods", shown, "must be empty for finished job")
    if (ended or "terminating" in changed) and status.get("terminating", 0) > 0:
        errors.invalid("status.terminating", status["terminating"], "terminating>0 is invalid for finished job")


def _validate_indexes(
    spec: Mapping[str, Any], status: Mapping[str, Any], changed: set[str], errors: FieldErrors
) -> None:
    completions = spec.get("completions")
    completed, failed = status.get("completedIndexes", ""), status.get("failedIndexes")
    if "completedIndexes" in changed:
        if completions is not None:
            _validate_format("completedIndexes", completed, completions, errors)
        if completed and spec.get("completionMode") != "Indexed":
            why = "cannot set non-empty completedIndexes when non-indexed completion mode"
            errors.invalid("status.completedIndexes", completed, why)
    if "failedIndexes" in changed and failed is not None:
        if "backoffLimitPerIndex" not in spec:
            why = "cannot set non-null failedIndexes when backoffLimitPerIndex is null"
            errors.invalid("status.failedIndexes", failed, why)
        elif completions is not None:
            _validate_format("failedIndexes", failed, completions, errors)
    if changed & {"completedIndexes", "failedIndexes"} and completions is not None and failed is not None:
        both = index_sets.overlap(completed, failed, completions)
        if both is not None:
            why = f"failedIndexes and completedIndexes overlap at index: {both}"
            errors.invalid("status.failedIndexes", failed, why)


def _validate_format(name: str, text: str, completions: int, errors: FieldErrors) -> None:
    try:
        index_sets.count(text, completions)
    except index_sets.IndexesError as error:
        errors.invalid(f"status.{name}", text, f"error parsing {name}: {error}")


def _validate_step(spec: Mapping[str, Any], new: Object, old: Object, errors: FieldErrors) -> None:
    """Note what was taken back."""
    status, before = new.get("status", {}), old.get("status", {})
    scalable = spec.get("completionMode") == "Indexed" and spec.get("completions") == spec.get("parallelism")
    for name in ("failed",) if scalable else ("failed", "succeeded"):
        if status.get(name, 0) < before.get(name, 0):
            errors.invalid(f"status.{name}", status.get(name, 0), f"cannot decrease the {name} counter")
    end, ended = status.get("completionTime"), before.get("completionTime")
    if end is not None and ended is not None and end != ended:
        errors.invalid("status.completionTime", end, field_rules.IMMUTABLE)
    start, started = status.get("startTime"), before.get("startTime")
    if started is not None and start != started and not spec.get("suspend") and not _resumes(status, before):
        errors.invalid("status.startTime", start, "field is immutable for unsuspended job once set")


def _resumes(status: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    return has_condition(before, "Suspended") and has_condition(status, "Suspended", "False")
