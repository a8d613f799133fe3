"""Pod Security admission: what a namespace's labels say of its pods is enforced, audited and warned of.

After pod-security-admission 1.36: pods are refused; templates of pods are only audited and warned of; a namespace
whose enforced policy changes is told of its pods that violate the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from podkeep.api import names
from podkeep.api.feature_gates import POD_SECURITY_USER_NAMESPACES, FeatureGates
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.admission.attributes import AdmitAll, Attributes, Operation
from podkeep.apiserver.admission.pod_security.checks import violations
from podkeep.apiserver.admission.pod_security.policy import (
    LABELS,
    MODES,
    Level,
    Policies,
    Policy,
    of_labels,
    parse_level,
    parse_version,
)
from podkeep.apiserver.admission.pod_specs import PODS, RESOURCES, Template, template
from podkeep.apiserver.kinds.pods.validation.fields import CONTAINER_FIELDS
from podkeep.apiserver.meta.lister import Lister
from podkeep.apiserver.meta.objects import Object, metadata
from podkeep.apiserver.meta.status import forbidden, internal, invalid
from podkeep.base.config import PodSecurityConfig
from podkeep.base.errors import InvalidArgument
from podkeep.base.frozen import FrozenStruct

MAX_CHECKED_PODS = 500
"""Of a namespace whose policy changes. kube-apiserver's bound is 3,000 and a second; here other requests wait."""
MAX_CHECKED_BYTES = 4 << 20
"""Of these pods, encoded. All that a namespace has may be hundreds of megabytes."""
_PRIVILEGED = Policies()
_DEFAULTS = {name for mode in MODES for name in (mode, f"{mode}-version")}
_EXEMPTIONS = {"usernames", "namespaces", "runtimeClasses"}
_IGNORED_SUBRESOURCES = frozenset(
    {"exec", "attach", "binding", "eviction", "log", "portforward", "proxy", "status"},
)
"""Of pods; others may change the spec."""


class Configuration(FrozenStruct, kw_only=True):
    """What counts where labels say nothing, and for whom nothing counts."""

    defaults: Policies = _PRIVILEGED
    usernames: frozenset[str] = frozenset()
    namespaces: frozenset[str] = frozenset()
    runtime_classes: frozenset[str] = frozenset()


def configuration(given: PodSecurityConfig) -> Configuration:
    """Read what a ``PodSecurityConfiguration`` says (``pod-security.admission.config.k8s.io/v1``).

    :raises InvalidArgument: naming every field that is wrong.
    """
    errors = FieldErrors()
    for field, known, keys in (
        ("defaults", _DEFAULTS, given.defaults.keys()),
        ("exemptions", _EXEMPTIONS, given.exemptions.keys()),
    ):
        for name in sorted(keys - known):
            errors.unsupported(field, name, sorted(known))
    found = Configuration(
        defaults=Policies(*(_default(given.defaults, mode, errors) for mode in MODES)),
        usernames=_exempt(given.exemptions, "usernames", _empty, errors),
        namespaces=_exempt(given.exemptions, "namespaces", names.dns_label, errors),
        runtime_classes=_exempt(given.exemptions, "runtimeClasses", names.dns_subdomain, errors),
    )
    if errors.found:
        raise InvalidArgument(f"api.admission.pod_security: {'; '.join(map(str, errors.found))}")
    return found


def _default(defaults: Mapping[str, str], mode: str, errors: FieldErrors) -> Policy:
    level, minor = Level.PRIVILEGED, None
    try:
        level = parse_level(text := defaults.get(mode) or Level.PRIVILEGED)
    except ValueError as error:
        errors.invalid(f"defaults.{mode}", text, str(error))
    try:
        minor = parse_version(text := defaults.get(f"{mode}-version") or "latest")
    except ValueError as error:
        errors.invalid(f"defaults.{mode}-version", text, str(error))
    return Policy(level, minor)


def _empty(name: str) -> str:
    return "" if name else "username must not be empty"


def _exempt(
    exemptions: Mapping[str, Sequence[str]], field: str, problem: Callable[[str], str], errors: FieldErrors
) -> frozenset[str]:
    found: set[str] = set()
    for index, name in enumerate(exemptions.get(field, ())):
        if why := problem(name):
            errors.invalid(f"exemptions.{field}[{index}]", name, why)
        elif name in found:
            errors.duplicate(f"exemptions.{field}[{index}]", name)
        found.add(name)
    return frozenset(found)


class PodSecurity(AdmitAll):
    """The plugin ``PodSecurity``."""

    def __init__(
        self, lister: Lister, gates: FeatureGates | None = None, settings: Configuration | None = None
    ) -> None:
        self._lister = lister
        self._settings = settings or Configuration()
        self._userns_passes = (gates or FeatureGates()).enabled(POD_SECURITY_USER_NAMESPACES)

    def validate(self, attributes: Attributes) -> None:
        """Refuse a pod that violates what is enforced; warn of other violations.

        :raises StatusError: 403; of a namespace 422, if its labels are wrong.
        """
        if attributes.value is None:
            return
        resource, subresource = attributes.target.resource.storage_name, attributes.target.subresource
        if resource == "namespaces":
            if not subresource:
                self._namespace(attributes, attributes.value)
        elif resource == PODS:
            if subresource not in _IGNORED_SUBRESOURCES:
                self._pod(attributes, attributes.value)
        elif resource in RESOURCES and not subresource and (found := template(resource, attributes.value)):
            self._template(attributes, found)

    # namespaces

    def _namespace(self, attributes: Attributes, value: Object) -> None:
        name, labels = attributes.target.name, metadata(value).get("labels", {})
        errors, old_errors = FieldErrors(), FieldErrors()
        policies = of_labels(labels, self._settings.defaults, errors)
        before = None
        if attributes.operation is Operation.UPDATE and attributes.old is not None:
            before = of_labels(metadata(attributes.old).get("labels", {}), self._settings.defaults, old_errors)
        if errors.found and errors.found != old_errors.found:
            kind = attributes.target.resource.kind
            raise invalid(kind.kind, kind.group, name, errors.found)
        if before is not None and not _is_tightened(policies.enforce, before.enforce):
            return
        if name in self._settings.namespaces:
            attributes.warnings.extend(self._ignored(name, policies, labels))
        elif before is not None:
            attributes.warnings.extend(self._existing(name, policies.enforce))

    def _ignored(self, name: str, policies: Policies, labels: Mapping[str, str]) -> list[str]:
        """Return that the labels of an exempt namespace do nothing, if they ask for anything."""
        pairs = zip(policies, self._settings.defaults, strict=True)
        if policies.is_privileged or all(_equivalent(one, other) for one, other in pairs):
            return []
        asked = ", ".join(
            f"{mode}={policy}"
            for mode, policy in zip(MODES, policies, strict=True)
            if policy.level is not Level.PRIVILEGED and {f"{LABELS}{mode}", f"{LABELS}{mode}-version"} & labels.keys()
        )
        return [f'namespace "{name}" is exempt from Pod Security, and the policy ({asked}) will be ignored']

    def _existing(self, namespace: str, policy: Policy) -> list[str]:
        """Return warnings of the pods that violate a new policy."""
        sizes = list(self._lister.sizes(PODS, namespace))
        ends = accumulate(size for _, size in sizes)
        read = [name for (name, _), end in zip(sizes, ends, strict=True) if end <= MAX_CHECKED_BYTES]
        pods = self._by_importance(filter(None, (self._lister.get(PODS, namespace, name) for name in read)))
        checked, there = min(len(pods), MAX_CHECKED_PODS), len(pods) + len(sizes) - len(read)
        violating: dict[str, list[str]] = {}
        for pod in pods[:MAX_CHECKED_PODS]:
            found = violations(policy, pod["metadata"], pod.get("spec", {}), userns_passes=self._userns_passes)
            if found:
                reasons = ", ".join(violation.reason for violation in found)
                violating.setdefault(reasons, []).append(pod["metadata"]["name"])
        warnings = []
        if checked < there:
            warnings.append(
                f"new PodSecurity enforce level only checked against the first {checked} of {there} existing pods"
            )
        if violating:
            warnings.append(
                f'existing pods in namespace "{namespace}" violate the new PodSecurity enforce level "{policy}"'
            )
        return warnings + sorted(f"{min(pods)}{_others(len(pods) - 1)}: {why}" for why, pods in violating.items())

    def _by_importance(self, pods: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Put the further pods of each controller behind the others, which are more likely to differ."""
        first: list[Mapping[str, Any]] = []
        more: list[Mapping[str, Any]] = []
        controllers = set()
        for pod in pods:
            if self._is_exempt_class(pod.get("spec", {})):
                continue
            owners = pod["metadata"].get("ownerReferences", ())
            controller = next((owner["uid"] for owner in owners if owner.get("controller")), None)
            (more if controller in controllers else first).append(pod)
            if controller is not None:
                controllers.add(controller)
        return first + more

    # pods

    def _exempted(self, attributes: Attributes) -> bool:
        reason = ""
        if attributes.target.namespace in self._settings.namespaces:
            reason = "namespace"
        elif attributes.user.name in self._settings.usernames:
            reason = "user"
        return _annotate(attributes, exempt=reason) if reason else False

    def _is_exempt_class(self, spec: Mapping[str, Any]) -> bool:
        return spec.get("runtimeClassName") in self._settings.runtime_classes

    def _policies(self, namespace: str, errors: FieldErrors) -> Policies | None:
        found = self._lister.get("namespaces", "", namespace)
        return None if found is None else of_labels(metadata(found).get("labels", {}), self._settings.defaults, errors)

    def _pod(self, attributes: Attributes, value: Object) -> None:
        if self._exempted(attributes):
            return
        errors = FieldErrors()
        namespace = attributes.target.namespace
        policies = self._policies(namespace, errors)
        if policies is None:
            raise internal(f'failed to lookup namespace "{namespace}"')
        if policies.is_privileged and not errors.found:
            _annotate(attributes, **{"enforce-policy": str(Policy())})
            return
        old = attributes.old
        # A pod from before the policy was stricter can still be changed otherwise (isSignificantPodUpdate).
        if attributes.operation is Operation.UPDATE and old is not None and not _changes_images(value, old):
            return
        pod = template(PODS, value)
        if pod is not None:
            self._evaluate(attributes, pod, policies, errors, enforced=True)

    def _template(self, attributes: Attributes, found: Template) -> None:
        if self._exempted(attributes):
            return
        errors = FieldErrors()
        policies = self._policies(attributes.target.namespace, errors)
        if policies is None:
            _annotate(attributes, error=f'failed to lookup namespace "{attributes.target.namespace}"')
            return
        if errors.found or {policies.audit.level, policies.warn.level} != {Level.PRIVILEGED}:
            self._evaluate(attributes, found, policies, errors, enforced=False)

    def _evaluate(
        self, attributes: Attributes, pod: Template, policies: Policies, errors: FieldErrors, *, enforced: bool
    ) -> None:
        if self._is_exempt_class(pod.spec):
            _annotate(attributes, exempt="runtimeClass")
            return
        if errors.found:
            texts = list(map(str, errors.found))
            shown = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
            _annotate(attributes, error=f"Failed to parse policy: {shown}")
        found = {
            policy: ", ".join(map(str, violations(policy, pod.metadata, pod.spec, userns_passes=self._userns_passes)))
            for policy in set(policies if enforced else policies[1:])
        }
        if found[policies.audit]:
            shown = f'would violate PodSecurity "{policies.audit}": {found[policies.audit]}'
            _annotate(attributes, **{"audit-violations": shown})
        if enforced:
            _annotate(attributes, **{"enforce-policy": str(policies.enforce)})
            if found[policies.enforce]:
                target = attributes.target
                why = f'violates PodSecurity "{policies.enforce}": {found[policies.enforce]}'
                raise forbidden(target.resource.plural, target.resource.group, target.name, why)
        if found[policies.warn]:
            attributes.warnings.append(f'would violate PodSecurity "{policies.warn}": {found[policies.warn]}')


def _annotate(attributes: Attributes, **annotations: str) -> bool:
    attributes.annotations.update({f"{LABELS}{name}": text for name, text in annotations.items()})
    return True


def _is_tightened(policy: Policy, before: Policy) -> bool:
    """Tell whether pods that were allowed might violate a policy."""
    if policy == before or policy.level is Level.PRIVILEGED:
        return False
    return policy.minor != before.minor or policy.is_stricter(before)


def _equivalent(one: Policy, other: Policy) -> bool:
    return one == other or {one.level, other.level} == {Level.PRIVILEGED}


def _others(count: int) -> str:
    if count == 0:
        return ""
    return " (and 1 other pod)" if count == 1 else f" (and {count} other pods)"


def _changes_images(new: Object, old: Object) -> bool:
    """Tell whether an update of a pod adds a container or changes an image, the only things that matter here."""
    spec, before = new.get("spec", {}), old.get("spec", {})
    for field in CONTAINER_FIELDS[:2]:
        one, other = spec.get(field, ()), before.get(field, ())
        if [item.get("image") for item in one] != [item.get("image") for item in other]:
            return True
    known = {item.get("name"): item.get("image") for item in before.get(CONTAINER_FIELDS[2], ())}
    return any(
        item.get("name") not in known or known[item.get("name")] != item.get("image")
        for item in spec.get(CONTAINER_FIELDS[2], ())
    )
