"""NamespaceLifecycle: nothing new in a namespace that is not there or goes away, and three that stay."""

from __future__ import annotations

from podkeep.apiserver.admission.attributes import Attributes, Operation
from podkeep.apiserver.admission.refusal import refused
from podkeep.apiserver.meta.lister import Lister
from podkeep.apiserver.meta.objects import metadata
from podkeep.apiserver.meta.status import forbidden, not_found

IMMORTAL = frozenset({"default", "kube-public", "kube-system"})
_REVIEWS = ("authorization.k8s.io", "localsubjectaccessreviews")
"""What may be asked of any namespace: saying that it is not there would tell that."""


class NamespaceLifecycle:
    """The plugin."""

    def __init__(self, lister: Lister) -> None:
        self._lister = lister

    def mutate(self, attributes: Attributes) -> None:
        """Refuse a write into a namespace that is not there, or what is new in one that goes away."""
        resource, namespace = attributes.target.resource, attributes.target.namespace
        if not resource.namespaced or (resource.group, resource.plural) in (("", "namespaces"), _REVIEWS):
            return
        found = self._lister.get("namespaces", "", namespace)
        if found is None:
            raise not_found("namespaces", "", namespace)
        if attributes.operation is Operation.CREATE and (
            found.get("status", {}).get("phase") == "Terminating" or "deletionTimestamp" in metadata(found)
        ):
            error = refused(
                attributes, f"unable to create new content in namespace {namespace} because it is being terminated"
            )
            cause = {
                "reason": "NamespaceTerminating",
                "message": f"namespace {namespace} is being terminated",
                "field": "metadata.namespace",
            }
            error.details["causes"] = [cause]
            raise error

    def validate(self, attributes: Attributes) -> None:
        """Refuse the deletion of a namespace that stays."""
        target = attributes.target
        is_namespace = (target.resource.group, target.resource.plural) == ("", "namespaces")
        if attributes.operation is Operation.DELETE and is_namespace and target.name in IMMORTAL:
            raise forbidden("namespaces", "", target.name, "this namespace may not be deleted")
