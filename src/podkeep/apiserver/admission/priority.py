"""The plugin ``Priority``: pods get the priority of their class, and there is one default class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from podkeep.apiserver.admission.attributes import Attributes, Operation
from podkeep.apiserver.admission.refusal import refused
from podkeep.apiserver.meta.lister import Lister
from podkeep.apiserver.meta.objects import metadata

_CLASSES = "scheduling.k8s.io/priorityclasses"
_POLICY = "PreemptLowerPriority"


class Priority:
    """The plugin.

    :param lister: of ``priorityclasses``.
    """

    def __init__(self, lister: Lister) -> None:
        self._lister = lister

    def mutate(self, attributes: Attributes) -> None:
        """Give a new pod the priority of its class, and keep it in updates.

        :raises StatusError: 403, if there is no such class or the pod says otherwise.
        """
        if attributes.target.resource.storage_name != "pods" or attributes.target.subresource:
            return
        if attributes.value is None:
            return
        spec = attributes.value.setdefault("spec", {})
        if attributes.operation is Operation.CREATE:
            self._resolve(attributes, spec)
        elif attributes.old is not None:
            # Both are immutable, and set by this plugin: a client that does not send them back changes nothing.
            for name in ("priority", "preemptionPolicy"):
                if name in attributes.old.get("spec", {}):
                    spec.setdefault(name, attributes.old["spec"][name])

    def _resolve(self, attributes: Attributes, spec: dict[str, Any]) -> None:
        name = spec.get("priorityClassName", "")
        found: Mapping[str, Any] | None
        if name:
            found = self._lister.get(_CLASSES, "", name)
            if found is None:
                raise refused(attributes, f"no PriorityClass with name {name} was found")
        else:
            found = self._default()
            if found is not None:
                spec["priorityClassName"] = metadata(found)["name"]
        found = found or {"preemptionPolicy": _POLICY}
        for field, value, text in (
            ("priority", found.get("value", 0), "the integer value of priority"),
            ("preemptionPolicy", found.get("preemptionPolicy"), "the string value of PreemptionPolicy"),
        ):
            if value is None:
                continue
            if spec.get(field, value) != value:
                raise refused(
                    attributes,
                    f"{text} ({spec[field]}) must not be provided in pod spec; priority admission controller computed"
                    f" {value} from the given PriorityClass name",
                )
            spec[field] = value

    def _default(self) -> Mapping[str, Any] | None:
        found = [item for item in self._lister.list(_CLASSES) if item.get("globalDefault")]
        # Should there be several, the lowest, as in kube-apiserver (getDefaultPriorityClass).
        return min(found, key=lambda item: item.get("value", 0), default=None)

    def validate(self, attributes: Attributes) -> None:
        """Refuse a second default class.

        :raises StatusError: 403.
        """
        value, target = attributes.value, attributes.target
        if target.resource.storage_name != _CLASSES or value is None or not value.get("globalDefault"):
            return
        default = self._default()
        if default is None:
            return
        name = metadata(default)["name"]
        if attributes.operation is Operation.CREATE or name != metadata(value)["name"]:
            raise refused(attributes, f"PriorityClass {name} is already marked as default. Only one default can exist")
