"""The resources of the API that podkeep asks for: their names and where they are. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, urlencode

from podkeep.base.frozen import FrozenStruct


class Resource(FrozenStruct, kw_only=True):
    """A resource: ``group`` is empty for core/v1; ``name`` is the plural, as in paths."""

    group: str = ""
    version: str = "v1"
    name: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def __str__(self) -> str:
        return f"{self.name}.{self.group}" if self.group else self.name

    def path(
        self, namespace: str = "", name: str = "", subresource: str = "", query: Mapping[str, str] | None = None
    ) -> str:
        """Return the path of a collection, or of an object or its subresource; empty values of ``query`` are left out.

        :param namespace: empty: all namespaces.
        """
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.name)
        if name:
            parts.append(quote(name, safe=""))
        if subresource:
            parts.append(subresource)
        text = urlencode({key: value for key, value in (query or {}).items() if value})
        return "/" + "/".join(parts) + (f"?{text}" if text else "")


CONFIG_MAPS = Resource(name="configmaps", kind="ConfigMap")
EVENTS = Resource(name="events", kind="Event")
NAMESPACES = Resource(name="namespaces", kind="Namespace", namespaced=False)
NODES = Resource(name="nodes", kind="Node", namespaced=False)
PERSISTENT_VOLUME_CLAIMS = Resource(name="persistentvolumeclaims", kind="PersistentVolumeClaim")
PERSISTENT_VOLUMES = Resource(name="persistentvolumes", kind="PersistentVolume", namespaced=False)
PODS = Resource(name="pods", kind="Pod")
SECRETS = Resource(name="secrets", kind="Secret")
SERVICE_ACCOUNTS = Resource(name="serviceaccounts", kind="ServiceAccount")
SERVICES = Resource(name="services", kind="Service")
LEASES = Resource(group="coordination.k8s.io", name="leases", kind="Lease")
RUNTIME_CLASSES = Resource(group="node.k8s.io", name="runtimeclasses", kind="RuntimeClass", namespaced=False)
CERTIFICATE_SIGNING_REQUESTS = Resource(
    group="certificates.k8s.io", name="certificatesigningrequests", kind="CertificateSigningRequest", namespaced=False
)
TOKEN_REVIEWS = Resource(group="authentication.k8s.io", name="tokenreviews", kind="TokenReview", namespaced=False)
SUBJECT_ACCESS_REVIEWS = Resource(
    group="authorization.k8s.io", name="subjectaccessreviews", kind="SubjectAccessReview", namespaced=False
)
