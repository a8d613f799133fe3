"""CronJob (``pkg/apis/batch``). When it is due is in ``cron_schedule``. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from podkeep.api.feature_gates import FeatureGates
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds import cells, field_rules
from podkeep.apiserver.kinds.cells import at, since
from podkeep.apiserver.kinds.pods.template import drop_pod_template
from podkeep.apiserver.kinds.resources import Column, Resource, Strategy
from podkeep.apiserver.kinds.workloads import cron_schedule, jobs, workload_rules
from podkeep.apiserver.meta.objects import Object, metadata
from podkeep.apiserver.patch.values import equal
from podkeep.apiserver.schema.table import Kind

MAX_NAME = 52
"""Characters of a name: those of a Job without what is appended to it."""
MAX_SCHEDULE_BYTES = 4_096
"""Far more than five fields with all of their numbers; kube-apiserver has no bound, and reads it each time."""
_POLICIES = ("Allow", "Forbid", "Replace")
_ZONE_PART = re.compile(r"[A-Za-z._0-9+][A-Za-z._0-9+-]{0,13}")


def default(value: Object) -> None:
    """Fill in that Jobs may run beside each other, and how many finished ones are kept."""
    spec = value.setdefault("spec", {})
    jobs.default_template(spec.setdefault("jobTemplate", {}).setdefault("spec", {}))
    spec["concurrencyPolicy"] = spec.get("concurrencyPolicy") or "Allow"
    spec.setdefault("suspend", False)
    spec.setdefault("successfulJobsHistoryLimit", 3)
    spec.setdefault("failedJobsHistoryLimit", 1)


def _drop(new: Object, old: Object | None, gates: FeatureGates) -> None:
    path = ("spec", "jobTemplate", "spec", "template")
    if (template := at(new, *path)) is not None:
        drop_pod_template(template, at(old or {}, *path), gates)


def _prepare_create(value: Object) -> None:
    value["status"] = {}


def validate_create(value: Object, errors: FieldErrors) -> None:
    """Note what is wrong with a new CronJob after defaulting."""
    _validate(value["spec"], None, errors)
    name = metadata(value).get("name", "")
    if len(name) > MAX_NAME:
        errors.invalid("metadata.name", name, f"must be no more than {MAX_NAME} characters")


def validate_update(new: Object, old: Object, errors: FieldErrors) -> None:
    """Note what an update makes wrong; a name that is too long may stay."""
    _validate(new["spec"], old["spec"], errors)


def _validate(spec: Mapping[str, Any], old: Mapping[str, Any] | None, errors: FieldErrors) -> None:
    schedule = spec.get("schedule", "")
    if errors.required("spec.schedule", schedule):
        _validate_schedule(spec, old, errors)
    field_rules.not_negative(spec, ("startingDeadlineSeconds",), "spec", errors)
    # A zone that the machine does not know any more may stay.
    if old is None or old.get("timeZone") != spec.get("timeZone"):
        _validate_zone(spec.get("timeZone"), errors)
    field_rules.one_of("spec.concurrencyPolicy", spec["concurrencyPolicy"], _POLICIES, errors)
    job, path = spec["jobTemplate"]["spec"], "spec.jobTemplate.spec"
    jobs.validate_job_spec(job, path, errors)
    if "selector" in job:
        errors.invalid(f"{path}.selector", field_rules.shown(job["selector"]), "`selector` will be auto-generated")
    if job.get("manualSelector"):
        field_rules.not_supported(f"{path}.manualSelector", True, ("nil", "false"), errors)
    field_rules.not_negative(spec, ("successfulJobsHistoryLimit", "failedJobsHistoryLimit"), "spec", errors)


def _validate_schedule(spec: Mapping[str, Any], old: Mapping[str, Any] | None, errors: FieldErrors) -> None:
    schedule = spec["schedule"]
    if len(schedule.encode()) > MAX_SCHEDULE_BYTES:
        if schedule != (old or {}).get("schedule"):
            field_rules.too_long("spec.schedule", schedule, MAX_SCHEDULE_BYTES, errors)
        return
    try:
        cron_schedule.parse(schedule)
    except cron_schedule.ScheduleError as error:
        errors.invalid("spec.schedule", schedule, str(error))
    if "TZ" not in schedule:
        return
    if "TZ" not in (old or {}).get("schedule", ""):
        why = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
        errors.invalid("spec.schedule", schedule, why)
    elif "timeZone" in spec:
        why = "cannot use both timeZone field and TZ or CRON_TZ in schedule"
        errors.invalid("spec.schedule", schedule, why)


def _validate_zone(zone: str | None, errors: FieldErrors) -> None:
    if zone is None:
        return
    if not zone:
        errors.invalid("spec.timeZone", zone, "timeZone must be nil or non-empty string")
        return
    if any(part in (".", "..") or not _ZONE_PART.fullmatch(part) for part in zone.split("/")):
        errors.invalid("spec.timeZone", zone, f"unknown time zone {zone}")
        return
    if zone.lower() == "local":
        why = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"
        errors.invalid("spec.timeZone", zone, why)
        return
    try:
        cron_schedule.zone(zone)
    except cron_schedule.ScheduleError:
        errors.invalid("spec.timeZone", zone, f"unknown time zone {zone}")


def warnings(new: Mapping[str, Any], old: Mapping[str, Any] | None) -> list[str]:
    found = workload_rules.name_warnings(new, old)
    if old is None or not equal(new["spec"], old["spec"]):
        found += jobs.spec_warnings(new["spec"]["jobTemplate"]["spec"], "spec.jobTemplate.spec")
    if old is not None and "TZ" in new["spec"]["schedule"]:
        # `spec.spec` is kube-apiserver's.
        found.append(
            "cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see"
            " https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details"
        )
    return found


def _last_schedule(value: Mapping[str, Any], now: datetime) -> str:
    last = at(value, "status", "lastScheduleTime")
    return since(last, now) if last else cells.NONE


def _suspend(value: Mapping[str, Any]) -> str:
    return {None: "<unset>", True: "True", False: "False"}[value["spec"].get("suspend")]


_JOB = ("spec", "jobTemplate", "spec")
CRON_JOBS = Resource(
    kind=Kind("batch", "v1", "CronJob"),
    plural="cronjobs",
    unserved=workload_rules.UNSERVED,
    short_names=("cj",),
    categories=("all",),
    subresources=frozenset({"status"}),
    strategy=Strategy(
        default=default,
        drop=_drop,
        prepare_create=_prepare_create,
        warnings=warnings,
        validate_create=validate_create,
        validate_update=validate_update,
        status=True,
        generation=True,
    ),
    columns=(
        cells.NAME,
        cells.column("Schedule", lambda value: at(value, "spec", "schedule", default="")),
        cells.column("Timezone", lambda value: at(value, "spec", "timeZone", default=cells.NONE)),
        cells.column("Suspend", _suspend, type="boolean"),
        cells.column("Active", lambda value: len(at(value, "status", "active", default=())), type="integer"),
        Column(name="Last Schedule", cell=_last_schedule),
        cells.AGE,
        *cells.containers(*_JOB, "template"),
        cells.selector(*_JOB, "selector"),
    ),
)

RESOURCES = (CRON_JOBS,)
