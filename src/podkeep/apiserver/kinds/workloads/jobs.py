"""Job: defaults, validation of what is wanted, columns (``pkg/apis/batch``); its status is in ``job_status``. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from podkeep.api import names
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds import cells, field_rules
from podkeep.apiserver.kinds.cells import at
from podkeep.apiserver.kinds.pods.template import default_pod_template, pod_template_warnings, validate_pod_template
from podkeep.apiserver.kinds.pods.validation.updates import same
from podkeep.apiserver.kinds.resources import Column, Resource, Strategy
from podkeep.apiserver.kinds.workloads import index_sets, job_status, workload_rules
from podkeep.apiserver.meta.objects import Object, has_condition, metadata
from podkeep.apiserver.patch.values import copy, equal
from podkeep.apiserver.schema.table import Kind
from podkeep.base.text import durations

CONTROLLER_UID = "batch.kubernetes.io/controller-uid"
JOB_NAME = "batch.kubernetes.io/job-name"
_UID_LABELS = ("controller-uid", CONTROLLER_UID)
_NAME_LABELS = ("job-name", JOB_NAME)
_MAX_INT32 = (1 << 31) - 1
_MAX_INDEXED = 100_000
"""Most of an indexed Job's pods at once, and of its failed indexes."""
_MANY_COMPLETIONS = 100_000
_LIMIT_OF_MANY = 10_000
_MAX_RULES = 20
_MAX_EXIT_CODES = 255
_MAX_PATTERNS = 20
_MAX_MANAGED_BY = 63
_MAX_INDEXES_BYTES = 64 << 10
_MODES = ("NonIndexed", "Indexed")
_ACTIONS = ("Count", "FailIndex", "FailJob", "Ignore")
_OPERATORS = ("In", "NotIn")
_REPLACEMENT = ("Failed", "TerminatingOrFailed")
_RESTART = ("OnFailure", "Never")
_URL_PATH = re.compile(r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+")
_NO_PATH = r"Invalid path (regex used for validation is '[A-Za-z0-9/\-._~%!$&'()*+,;=:]+')"
_SCHEDULING = ("nodeSelector", "tolerations", "schedulingGates")
_FIXED = ("completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy")


def default(value: Object) -> None:
    """Fill in one completion and one pod at once, six retries, and that the selector is made by the API."""
    spec = value.setdefault("spec", {})
    default_template(spec)
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    # With a limit for each index the whole has none (KEP-3850).
    spec.setdefault("backoffLimit", _MAX_INT32 if "backoffLimitPerIndex" in spec else 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    # A failure policy looks at pods that have ended: none may be replaced before (KEP-3939).
    spec.setdefault("podReplacementPolicy", "Failed" if "podFailurePolicy" in spec else "TerminatingOrFailed")
    spec.setdefault("manualSelector", False)


def default_template(spec: dict[str, Any]) -> None:
    """Fill in what the specification of a Job has also as a part of a CronJob."""
    default_pod_template(spec.setdefault("template", {}))
    for rule in at(spec, "podFailurePolicy", "rules", default=()):
        for pattern in rule.get("onPodConditions", ()):
            pattern["status"] = pattern.get("status") or "True"


def _prepare_create(value: Object) -> None:
    if not value["spec"].get("manualSelector"):
        _generate_selector(value)
    _default_labels(value)
    value["status"] = {}


def _prepare_update(new: Object, _: Object) -> None:
    _default_labels(new)


def _default_labels(value: Object) -> None:
    """Give a Job the labels of its pods if it has none.

    Not a part of defaulting: the labels that are generated belong to them.
    """
    if not metadata(value).get("labels") and (found := workload_rules.template_labels(value["spec"]["template"])):
        value["metadata"]["labels"] = dict(found)


def _generate_selector(value: Object) -> None:
    """Select the pods of this Job alone, by its UID; labels that a client gave stay, and are refused if they differ."""
    spec, uid = value["spec"], metadata(value)["uid"]
    labels = spec["template"].setdefault("metadata", {}).setdefault("labels", {})
    for name in _NAME_LABELS:
        labels.setdefault(name, metadata(value).get("name", ""))
    for name in _UID_LABELS:
        labels.setdefault(name, uid)
    spec.setdefault("selector", {}).setdefault("matchLabels", {}).setdefault(CONTROLLER_UID, uid)


# validation


def validate_create(value: Object, errors: FieldErrors) -> None:
    """Note what is wrong with a new Job after defaulting."""
    _validate(value, errors, prefixed=True, any_value=False)


def validate_update(new: Object, old: Object, errors: FieldErrors) -> None:
    """Note what an update makes wrong."""
    before = old["spec"]
    labels = workload_rules.template_labels(before["template"])
    prefixed = JOB_NAME in labels and CONTROLLER_UID in labels
    _validate(new, errors, prefixed=prefixed, any_value=field_rules.has_wrong_values(before.get("selector")))
    spec = new["spec"]
    _validate_completions(spec, before, errors)
    now, then = field_rules.shown(spec.get("selector")), field_rules.shown(before.get("selector"))
    field_rules.immutable(now, then, "spec.selector", errors)
    _validate_template_update(spec["template"], old, errors)
    for name in _FIXED:
        field_rules.immutable(spec.get(name), before.get(name), f"spec.{name}", errors)


def _validate(value: Object, errors: FieldErrors, *, prefixed: bool, any_value: bool) -> None:
    spec = value["spec"]
    selector, template = spec.get("selector"), spec["template"]
    if not spec.get("manualSelector") and selector is not None:
        _validate_generated(value, errors, prefixed=prefixed)
    validate_job_spec(spec, "spec", errors)
    if selector is None:
        errors.required("spec.selector", "")
    else:
        field_rules.label_selector(selector, "spec.selector", errors, any_value=any_value)
    if field_rules.is_selector(selector) and not workload_rules.selector_matches(selector, template):
        workload_rules.note_mismatch(template, "spec.template", errors)
    completions = spec.get("completions") or 0
    if spec.get("completionMode") == "Indexed" and completions > 0:
        host = f"{metadata(value).get('name', '')}-{completions - 1}"
        if names.dns_label(host):
            why = f"will not able to create pod with invalid DNS label: {host}"
            errors.invalid("metadata.name", metadata(value).get("name", ""), why)


def _validate_generated(value: Object, errors: FieldErrors, *, prefixed: bool) -> None:
    """Note labels that are not those that the API generates."""
    uid, name = metadata(value).get("uid", ""), metadata(value).get("name", "")
    errors.required("metadata.uid", uid)
    expected = {"controller-uid": uid, "job-name": name}
    if prefixed:
        expected |= {CONTROLLER_UID: uid, JOB_NAME: name}
    labels = workload_rules.template_labels(value["spec"]["template"])
    for label, wanted in expected.items():
        path = f"spec.template.metadata.labels[{label}]"
        if label not in labels:
            field_rules.required(path, f"must be '{wanted}'", errors)
        elif labels[label] != wanted:
            errors.invalid(path, field_rules.in_order(labels), f"must be '{wanted}'")
    selector = value["spec"]["selector"]
    found = field_rules.parsed(selector)
    if found is not None and not found.matches(expected):
        errors.invalid("spec.selector", field_rules.shown(selector), "`selector` not auto-generated")


def validate_job_spec(spec: Mapping[str, Any], path: str, errors: FieldErrors) -> None:
    """Note what is wrong with the specification of a Job, or of those that a CronJob makes, but for its selector."""
    numbers = (
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    )
    field_rules.not_negative(spec, numbers, path, errors)
    if "maxFailedIndexes" in spec and "backoffLimitPerIndex" not in spec:
        field_rules.required(f"{path}.backoffLimitPerIndex", "when maxFailedIndexes is specified", errors)
    if (manager := spec.get("managedBy")) is not None:
        _validate_manager(manager, f"{path}.managedBy", errors)
    _validate_mode(spec, path, errors)
    if (policy := spec.get("podFailurePolicy")) is not None:
        _validate_failure_policy(spec, policy, f"{path}.podFailurePolicy.rules", errors)
    if (policy := spec.get("successPolicy")) is not None:
        _validate_success_policy(spec, policy, f"{path}.successPolicy", errors)
    _validate_replacement(spec, f"{path}.podReplacementPolicy", errors)
    validate_pod_template(spec["template"], f"{path}.template", errors)
    _validate_restart(spec, f"{path}.template.spec.restartPolicy", errors)


def _validate_manager(manager: str, path: str, errors: FieldErrors) -> None:
    host, slash, rest = manager.partition("/")
    if not manager:
        errors.required(path, "")
    elif not (host and slash and rest):
        errors.invalid(path, manager, 'must be a domain-prefixed path (such as "acme.io/foo")')
    else:
        field_rules.named(path, host, names.dns_subdomain(host), errors)
        if not _URL_PATH.fullmatch(rest):
            errors.invalid(path, rest, _NO_PATH)
    field_rules.too_long(path, manager, _MAX_MANAGED_BY, errors)


def _validate_mode(spec: Mapping[str, Any], path: str, errors: FieldErrors) -> None:
    mode = spec.get("completionMode", "NonIndexed")
    if mode not in _MODES:
        field_rules.not_supported(f"{path}.completionMode", mode, _MODES, errors)
    elif mode == "Indexed":
        _validate_indexed(spec, path, errors)
    else:
        for name in ("backoffLimitPerIndex", "maxFailedIndexes"):
            if name in spec:
                errors.invalid(f"{path}.{name}", spec[name], "requires indexed completion mode")


def _validate_indexed(spec: Mapping[str, Any], path: str, errors: FieldErrors) -> None:
    completions, parallelism = spec.get("completions"), spec.get("parallelism", 0)
    failed = spec.get("maxFailedIndexes")
    if completions is None:
        field_rules.required(f"{path}.completions", "when completion mode is Indexed", errors)
    if parallelism > _MAX_INDEXED:
        why = f"must be less than or equal to {_MAX_INDEXED} when completion mode is Indexed"
        errors.invalid(f"{path}.parallelism", parallelism, why)
    if failed is not None and completions is not None and failed > completions:
        errors.invalid(f"{path}.maxFailedIndexes", failed, "must be less than or equal to completions")
    if failed is not None and failed > _MAX_INDEXED:
        errors.invalid(f"{path}.maxFailedIndexes", failed, f"must be less than or equal to {_MAX_INDEXED}")
    if (completions or 0) > _MANY_COMPLETIONS and "backoffLimitPerIndex" in spec:
        why = (
            f"must be less than or equal to {_LIMIT_OF_MANY} when completions are above {_MANY_COMPLETIONS} and used"
            " with backoff limit per index"
        )
        if failed is None:
            missing = f"must be specified when completions is above {_MANY_COMPLETIONS}"
            field_rules.required(f"{path}.maxFailedIndexes", missing, errors)
        if parallelism > _LIMIT_OF_MANY:
            errors.invalid(f"{path}.parallelism", parallelism, why)
        if failed is not None and failed > _LIMIT_OF_MANY:
            errors.invalid(f"{path}.maxFailedIndexes", failed, why)


def _validate_failure_policy(
    spec: Mapping[str, Any], policy: Mapping[str, Any], path: str, errors: FieldErrors
) -> None:
    rules = policy.get("rules", ())
    field_rules.too_many(path, len(rules), _MAX_RULES, errors)
    pod = spec["template"].get("spec", {})
    containers = {item.get("name", "") for kind in ("containers", "initContainers") for item in pod.get(kind, ())}
    for index, rule in enumerate(rules):
        where = f"{path}[{index}]"
        action = rule.get("action", "")
        if action == "FailIndex":
            if "backoffLimitPerIndex" not in spec:
                errors.invalid(f"{where}.action", action, "requires the backoffLimitPerIndex to be set")
        else:
            _chosen(f"{where}.action", action, _ACTIONS, errors)
        codes, patterns = rule.get("onExitCodes"), rule.get("onPodConditions", ())
        if codes is not None:
            _validate_exit_codes(codes, containers, f"{where}.onExitCodes", errors)
        _validate_patterns(patterns, f"{where}.onPodConditions", errors)
        if codes is not None and patterns:
            field_rules.wrong(where, "specifying both OnExitCodes and OnPodConditions is not supported", errors)
        elif codes is None and not patterns:
            field_rules.wrong(where, "specifying one of OnExitCodes and OnPodConditions is required", errors)


def _chosen(path: str, value: str, known: tuple[str, ...], errors: FieldErrors) -> None:
    """Note a value that is none of the known ones, which are named also if it is empty."""
    if not value:
        listed = " ".join(f'"{name}"' for name in known)
        field_rules.required(path, f"valid values: [{listed}]", errors)
    elif value not in known:
        field_rules.not_supported(path, value, known, errors)


def _validate_exit_codes(codes: Mapping[str, Any], containers: set[str], path: str, errors: FieldErrors) -> None:
    operator, values = codes.get("operator", ""), codes.get("values", [])
    _chosen(f"{path}.operator", operator, _OPERATORS, errors)
    name = codes.get("containerName")
    if name is not None and name not in containers:
        why = "must be one of the container or initContainer names in the pod template"
        errors.invalid(f"{path}.containerName", name, why)
    if not values:
        errors.invalid(f"{path}.values", codes.get("values"), "at least one value is required")
    field_rules.too_many(f"{path}.values", len(values), _MAX_EXIT_CODES, errors)
    seen: set[int] = set()
    for index, code in enumerate(values):
        if operator == "In" and code == 0:
            errors.invalid(f"{path}.values[{index}]", code, "must not be 0 for the In operator")
        if code in seen:
            errors.duplicate(f"{path}.values[{index}]", code)
        seen.add(code)
    if values != sorted(values):
        errors.invalid(f"{path}.values", values, "must be ordered")


def _validate_patterns(patterns: list[Mapping[str, Any]], path: str, errors: FieldErrors) -> None:
    field_rules.too_many(path, len(patterns), _MAX_PATTERNS, errors)
    for index, pattern in enumerate(patterns):
        kind = pattern.get("type", "")
        field_rules.named(f"{path}[{index}].type", kind, names.label_key_problems(kind), errors)
        _chosen(f"{path}[{index}].status", pattern.get("status", ""), field_rules.CONDITION_STATUSES, errors)


def _validate_success_policy(
    spec: Mapping[str, Any], policy: Mapping[str, Any], path: str, errors: FieldErrors
) -> None:
    rules, completions = policy.get("rules", ()), spec.get("completions")
    if spec.get("completionMode") != "Indexed":
        shown = [
            {"SucceededIndexes": rule.get("succeededIndexes"), "SucceededCount": rule.get("succeededCount")}
            for rule in rules
        ]
        errors.invalid(path, {"Rules": shown or None}, "requires indexed completion mode")
        return
    if not rules:
        why = "at least one rules must be specified when the successPolicy is specified"
        field_rules.required(f"{path}.rules", why, errors)
    field_rules.too_many(f"{path}.rules", len(rules), _MAX_RULES, errors)
    if completions is not None:  # noted already
        for index, rule in enumerate(rules):
            _validate_success_rule(rule, completions, f"{path}.rules[{index}]", errors)


def _validate_success_rule(rule: Mapping[str, Any], completions: int, path: str, errors: FieldErrors) -> None:
    indexes, count = rule.get("succeededIndexes"), rule.get("succeededCount")
    if indexes is None and count is None:
        why = "at least one of succeededCount or succeededIndexes must be specified"
        field_rules.required(path, why, errors)
    total = 0
    if indexes is not None:
        field_rules.too_long(f"{path}.succeededIndexes", indexes, _MAX_INDEXES_BYTES, errors)
        try:
            total = index_sets.count(indexes, completions)
        except index_sets.IndexesError as error:
            errors.invalid(f"{path}.succeededIndexes", indexes, f"error parsing succeededIndexes: {error}")
    if count is None:
        return
    field_rules.not_negative(rule, ("succeededCount",), path, errors)
    if count > completions:
        why = f"must be less than or equal to {completions} (the number of specified completions)"
        errors.invalid(f"{path}.succeededCount", count, why)
    if indexes is not None and count > total:
        why = f"must be less than or equal to {total} (the number of indexes in the specified succeededIndexes field)"
        errors.invalid(f"{path}.succeededCount", count, why)


def _validate_replacement(spec: Mapping[str, Any], path: str, errors: FieldErrors) -> None:
    policy = spec.get("podReplacementPolicy")
    known = ("Failed",) if "podFailurePolicy" in spec else _REPLACEMENT
    if policy is not None and policy not in known:
        field_rules.not_supported(path, policy, known, errors)


def _validate_restart(spec: Mapping[str, Any], path: str, errors: FieldErrors) -> None:
    policy = spec["template"].get("spec", {}).get("restartPolicy", "")
    if policy in ("", "Always"):
        field_rules.required(path, 'valid values: "OnFailure", "Never"', errors)
    elif policy not in _RESTART:
        field_rules.not_supported(path, policy, _RESTART, errors)
    elif "podFailurePolicy" in spec and policy != "Never":
        errors.invalid(path, policy, 'only "Never" is supported when podFailurePolicy is specified')


def _validate_completions(spec: Mapping[str, Any], before: Mapping[str, Any], errors: FieldErrors) -> None:
    now, then = spec.get("completions"), before.get("completions")
    if spec.get("completionMode") != "Indexed":
        field_rules.immutable(now, then, "spec.completions", errors)
    elif now is not None and now != then and now != spec.get("parallelism"):
        errors.invalid("spec.completions", now, "can only be modified in tandem with spec.parallelism")


def _validate_template_update(template: Mapping[str, Any], old: Object, errors: FieldErrors) -> None:
    """Note changes of the template: only where nothing runs may its scheduling and its resources change."""
    before = old["spec"]["template"]
    if not _may_change(old):
        _immutable(template, before, "PodTemplateSpec", "spec.template", errors)
        return
    expected = _with_resources(_with_scheduling(copy(before["spec"]), template["spec"]), template["spec"])
    _immutable(template["spec"], expected, "PodSpec", "spec.template.spec", errors)


def _immutable(new: Mapping[str, Any], old: Mapping[str, Any], name: str, path: str, errors: FieldErrors) -> None:
    """Note a template, or its spec, that means something else."""
    if not same(new, old, name):
        errors.invalid(path, new, field_rules.IMMUTABLE)


def _may_change(old: Object) -> bool:
    """Tell whether a Job is suspended and has no pods (KEP-2926, KEP-5440)."""
    status = old.get("status", {})
    suspended = has_condition(status, "Suspended")
    idle = not status.get("active") and ("startTime" not in status or suspended)
    return bool(old["spec"].get("suspend")) and idle


def _with_scheduling(before: dict[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the old specification of a pod with where the new one says it may run."""
    for name in _SCHEDULING:
        before.pop(name, None)
        if name in spec:
            before[name] = spec[name]
    affinity = {name: item for name, item in before.get("affinity", {}).items() if name != "nodeAffinity"}
    if node := at(spec, "affinity", "nodeAffinity"):
        affinity["nodeAffinity"] = node
    if affinity or "affinity" in spec:
        before["affinity"] = affinity
    else:
        before.pop("affinity", None)
    return before


def _with_resources(before: dict[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the old specification of a pod with the resources of the new one's containers."""
    for kind in ("containers", "initContainers"):
        ours, theirs = before.get(kind, ()), spec.get(kind, ())
        if len(ours) == len(theirs):
            for container, new in zip(ours, theirs, strict=True):
                if container.get("name") == new.get("name"):
                    container.pop("resources", None)
                    if "resources" in new:
                        container["resources"] = new["resources"]
    return before


# warnings, columns


def spec_warnings(spec: Mapping[str, Any], path: str) -> list[str]:
    """Return what is to be said of the specification of a Job and of its template."""
    found = []
    many = spec.get("completions", 0) > _MANY_COMPLETIONS and spec.get("parallelism", 0) > _LIMIT_OF_MANY
    if many and spec.get("completionMode") == "Indexed":
        found.append(
            f"{path}: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4,"
            " Kubernetes might not be able to track completedIndexes when a big number of indexes fail"
        )
    return found + pod_template_warnings(spec["template"], f"{path}.template")


def warnings(new: Mapping[str, Any], old: Mapping[str, Any] | None) -> list[str]:
    changed = old is None or not equal(new["spec"], old["spec"])
    return workload_rules.name_warnings(new, old) + (spec_warnings(new["spec"], "spec") if changed else [])


def _status(value: Mapping[str, Any]) -> str:
    conditions = at(value, "status", "conditions", default=())
    for kind in ("Complete", "Failed"):
        if _first_is_true(conditions, kind):
            return kind
    if "deletionTimestamp" in value["metadata"]:
        return "Terminating"
    for kind in ("Suspended", "FailureTarget", "SuccessCriteriaMet"):
        if _first_is_true(conditions, kind):
            return kind
    return "Running"


def _first_is_true(conditions: list[Mapping[str, Any]], kind: str) -> bool:
    return next((item.get("status") == "True" for item in conditions if item.get("type") == kind), False)


def _completions(value: Mapping[str, Any]) -> str:
    done, spec = at(value, "status", "succeeded", default=0), value["spec"]
    if "completions" in spec:
        return f"{done}/{spec['completions']}"
    parallelism = spec.get("parallelism", 0)
    return f"{done}/1 of {parallelism}" if parallelism > 1 else f"{done}/1"


def _duration(value: Mapping[str, Any], now: datetime) -> str:
    start, end = at(value, "status", "startTime"), at(value, "status", "completionTime")
    if start is None:
        return ""
    span = (datetime.fromisoformat(end) if end else now) - datetime.fromisoformat(start)
    return durations.short(span.total_seconds())


def _selectable(value: Mapping[str, Any]) -> dict[str, str]:
    return {"status.successful": str(at(value, "status", "succeeded", default=0))}


JOBS = Resource(
    kind=Kind("batch", "v1", "Job"),
    plural="jobs",
    unserved=workload_rules.UNSERVED,
    categories=("all",),
    subresources=frozenset({"status"}),
    strategy=Strategy(
        default=default,
        drop=workload_rules.drop_template,
        prepare_create=_prepare_create,
        prepare_update=_prepare_update,
        warnings=warnings,
        validate_create=validate_create,
        validate_update=validate_update,
        validate_status=job_status.validate_status,
        status=True,
        generation=True,
        selectable=_selectable,
    ),
    columns=(
        cells.NAME,
        cells.column("Status", _status, description="Status of the job."),
        cells.column("Completions", _completions),
        Column(name="Duration", cell=_duration, description="Time required to complete the job."),
        cells.AGE,
        *cells.containers("spec", "template"),
        cells.selector("spec", "selector"),
    ),
)

RESOURCES = (JOBS,)
