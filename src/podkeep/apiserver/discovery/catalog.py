"""The paths that are served, as one table: each resource, each subresource, each review, with kind and verbs. Pure.

Routing, discovery and OpenAPI read it.
"""

from __future__ import annotations

from collections.abc import Iterator

from podkeep.apiserver.kinds.access import reviews
from podkeep.apiserver.kinds.resources import Resource
from podkeep.apiserver.kinds.served import Served
from podkeep.apiserver.schema.table import Kind
from podkeep.base.frozen import FrozenStruct

CHANGES = frozenset({"get", "patch", "update"})
CREATES = frozenset({"create"})
_SUBRESOURCES: dict[str, tuple[Kind | None, frozenset[str]]] = {
    "status": (None, CHANGES),
    "scale": (Kind("autoscaling", "v1", "Scale"), CHANGES),
    "ephemeralcontainers": (None, CHANGES),
    "resize": (None, CHANGES),
    "finalize": (None, frozenset({"update"})),
    "binding": (Kind("", "v1", "Binding"), CREATES),
    "eviction": (Kind("policy", "v1", "Eviction"), CREATES),
    "token": (Kind("authentication.k8s.io", "v1", "TokenRequest"), CREATES),
    "log": (None, frozenset({"get"})),
    "exec": (Kind("", "v1", "PodExecOptions"), frozenset({"create", "get"})),
    "attach": (Kind("", "v1", "PodAttachOptions"), frozenset({"create", "get"})),
    "portforward": (Kind("", "v1", "PodPortForwardOptions"), frozenset({"create", "get"})),
    "proxy": (Kind("", "v1", "PodProxyOptions"), frozenset({"create", "delete", "get", "patch", "update"})),
}
"""What each subresource takes and returns (None: its resource's kind), and its verbs."""
NOT_SERVED = frozenset(
    {
        ("admissionregistration.k8s.io", "mutatingadmissionpolicies"),
        ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
        ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
        ("admissionregistration.k8s.io", "validatingwebhookconfigurations"),
        ("apiextensions.k8s.io", "customresourcedefinitions"),
        ("apiregistration.k8s.io", "apiservices"),
        ("autoscaling", "horizontalpodautoscalers"),
        ("certificates.k8s.io", "certificatesigningrequests"),
        ("networking.k8s.io", "ingressclasses"),
        ("networking.k8s.io", "ingresses"),
        ("networking.k8s.io", "networkpolicies"),
    }
)
"""Resources that kube-apiserver has, by group and plural, and that are left out: whoever asks for one is told so."""
_PROXIES = {"nodes": "NodeProxyOptions", "services": "ServiceProxyOptions"}


class Entry(FrozenStruct, kw_only=True):
    """What is at a path. ``kind`` is that of bodies; ``resource`` is None where nothing is stored."""

    group: str
    version: str
    plural: str
    subresource: str = ""
    kind: Kind
    verbs: frozenset[str]
    namespaced: bool
    resource: Resource | None = None

    @property
    def name(self) -> str:
        """The name in discovery: ``pods/status``."""
        return f"{self.plural}/{self.subresource}" if self.subresource else self.plural

    @property
    def singular(self) -> str:
        """The name of one; a subresource has none."""
        return "" if self.subresource else self.kind.kind.lower()

    @property
    def is_generic(self) -> bool:
        """Whether its verbs are those of every resource, on an object or a part of it that its kind describes."""
        if self.resource is None:
            return False
        return self.subresource in ("", "status") or self.subresource in self.resource.strategy.parts


def _creation(group: str, plural: str, kind: Kind, *, namespaced: bool = False) -> Entry:
    return Entry(group=group, version="v1", plural=plural, kind=kind, verbs=CREATES, namespaced=namespaced)


REVIEWS = tuple(_creation(item.group, item.plural, item.kind, namespaced=item.namespaced) for item in reviews.VIRTUAL)
BINDINGS = _creation("", "bindings", Kind("", "v1", "Binding"), namespaced=True)


def entries(served: Served) -> Iterator[Entry]:
    for resource in served.resources:
        yield Entry(
            group=resource.group,
            version=resource.kind.version,
            plural=resource.plural,
            kind=resource.kind,
            verbs=resource.verbs,
            namespaced=resource.namespaced,
            resource=resource,
        )
        for subresource in resource.subresources & _SUBRESOURCES.keys():
            kind, verbs = _SUBRESOURCES[subresource]
            if subresource == "proxy":
                kind = Kind("", "v1", _PROXIES.get(resource.plural, "PodProxyOptions"))
            yield Entry(
                group=resource.group,
                version=resource.kind.version,
                plural=resource.plural,
                subresource=subresource,
                kind=kind or resource.kind,
                verbs=verbs,
                namespaced=resource.namespaced,
                resource=resource,
            )
        if resource.plural == "pods" and not resource.group:
            yield BINDINGS
    yield from REVIEWS


class Catalog:
    """The entries, by path and by group and version."""

    def __init__(self, served: Served) -> None:
        self.entries = tuple(sorted(entries(served), key=lambda entry: (entry.group, entry.version, entry.name)))
        self._by_path = {(item.group, item.version, item.plural, item.subresource): item for item in self.entries}
        self.group_versions = list(dict.fromkeys((item.group, item.version) for item in self.entries))
        """Each group and version, the core group first."""

    def find(self, group: str, version: str, plural: str, subresource: str) -> Entry | None:
        return self._by_path.get((group, version, plural, subresource))

    def of(self, group: str, version: str) -> list[Entry]:
        """Return the entries of a group and version, by name; subresources follow their resource."""
        return [item for item in self.entries if (item.group, item.version) == (group, version)]
