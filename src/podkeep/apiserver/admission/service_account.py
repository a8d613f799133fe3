"""ServiceAccount: every pod has a service account, its token mounted, and its image pull secrets."""

from __future__ import annotations

import secrets as random
from collections.abc import Iterator, Mapping
from typing import Any

from podkeep.apiserver.admission.attributes import Attributes, Operation
from podkeep.apiserver.admission.refusal import refused
from podkeep.apiserver.auth import pod_references
from podkeep.apiserver.auth.token_request import WARN_SECONDS
from podkeep.apiserver.kinds.access.service_accounts import MOUNTABLE_SECRETS
from podkeep.apiserver.meta.lister import Lister
from podkeep.apiserver.meta.objects import Object, metadata

DEFAULT = "default"
VOLUME_PREFIX = "kube-api-access-"
MOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
ROOT_CA = "kube-root-ca.crt"
"""The ConfigMap in every namespace with the certificate of the authority that signed the API's."""
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
# Those of Kubernetes' names (apimachinery: util/rand): no vowels, so that they spell no words.
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_KINDS = {"initContainers": "init container", "containers": "container", "ephemeralContainers": "ephemeral container"}


def token_volume(name: str) -> dict[str, Any]:
    """Return the volume with a token, the certificate of the API's authority, and the namespace."""
    namespace = {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": WARN_SECONDS}},
        {"configMap": {"name": ROOT_CA, "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [namespace]}},
    ]
    return {"name": name, "projected": {"defaultMode": 0o644, "sources": sources}}


class ServiceAccount:
    """The plugin."""

    def __init__(self, lister: Lister) -> None:
        self._lister = lister

    def mutate(self, attributes: Attributes) -> None:
        """Give a new pod what its service account has for it."""
        pod = attributes.value
        if pod is None or not _is_pod(attributes) or attributes.operation is not Operation.CREATE:
            return
        if attributes.target.subresource:
            return
        if pod_references.is_mirror(pod):  # its node would not know it again
            self.validate(attributes)
            return
        spec = pod.setdefault("spec", {})
        name = spec.get("serviceAccountName") or spec.get("serviceAccount") or DEFAULT
        spec["serviceAccountName"] = spec["serviceAccount"] = name
        account = self._account(attributes, name)
        if spec.get("automountServiceAccountToken", account.get("automountServiceAccountToken", True)):
            _mount_token(spec)
        if not spec.get("imagePullSecrets") and account.get("imagePullSecrets"):
            spec["imagePullSecrets"] = [dict(item) for item in account["imagePullSecrets"]]

    def validate(self, attributes: Attributes) -> None:
        """Refuse a pod whose service account is not there, or must not name what it names."""
        pod = attributes.value
        if pod is None or not _is_pod(attributes):
            return
        ephemeral = attributes.target.subresource == "ephemeralcontainers"
        if attributes.operation is not (Operation.UPDATE if ephemeral else Operation.CREATE):
            return
        if attributes.target.subresource and not ephemeral:
            return
        if not ephemeral and pod_references.is_mirror(pod):
            _check_mirror(attributes, pod)
            return
        name = pod.get("spec", {}).get("serviceAccountName", "")
        if not name:
            place = f"{attributes.target.namespace}/{metadata(pod).get('name', '')}"
            raise refused(attributes, f"no service account specified for pod {place}")
        account = self._account(attributes, name)
        if metadata(account).get("annotations", {}).get(MOUNTABLE_SECRETS) in _TRUE:
            problem = next(_forbidden_references(pod["spec"], account, ephemeral=ephemeral), "")
            if problem:
                raise refused(attributes, problem)

    def _account(self, attributes: Attributes, name: str) -> Mapping[str, Any]:
        namespace = attributes.target.namespace
        found = self._lister.get("serviceaccounts", namespace, name)
        if found is None and name == DEFAULT and self._lister.get("namespaces", "", namespace) is not None:
            # The one that a controller makes, and makes again if it is deleted, is on its way: kube-apiserver waits.
            return {"metadata": {"name": name, "namespace": namespace}}
        if found is None:
            raise refused(
                attributes,
                f'error looking up service account {namespace}/{name}: serviceaccount "{name}" not found',
            )
        return found


def _is_pod(attributes: Attributes) -> bool:
    resource = attributes.target.resource
    return (resource.group, resource.plural) == ("", "pods")


def _mount_token(spec: Object) -> None:
    volumes = spec.get("volumes", [])
    own = [volume["name"] for volume in volumes if volume.get("name", "").startswith(VOLUME_PREFIX)]
    # A pod that was written from another one's YAML has the volume already (mountServiceAccountToken).
    name = own[0] if own else VOLUME_PREFIX + "".join(random.choice(_LETTERS) for _ in range(5))
    needed = False
    for kind in ("initContainers", "containers"):
        for container in spec.get(kind, ()):
            mounts = container.setdefault("volumeMounts", [])
            if any(mount.get("mountPath") == MOUNT_PATH for mount in mounts):
                continue
            mounts.append({"name": name, "readOnly": True, "mountPath": MOUNT_PATH})
            needed = True
    if needed and not own:
        spec["volumes"] = [*volumes, token_volume(name)]


def _check_mirror(attributes: Attributes, pod: Mapping[str, Any]) -> None:
    spec = pod.get("spec", {})
    if spec.get("serviceAccountName"):
        raise refused(attributes, "a mirror pod may not reference service accounts")
    if next(pod_references.secrets(pod), None) is not None:
        raise refused(attributes, "a mirror pod may not reference secrets")
    sources = [
        source for volume in spec.get("volumes", ()) for source in volume.get("projected", {}).get("sources", ())
    ]
    if any("serviceAccountToken" in source for source in sources):
        raise refused(attributes, "a mirror pod may not use ServiceAccountToken volume projections")


def _forbidden_references(spec: Mapping[str, Any], account: Mapping[str, Any], *, ephemeral: bool) -> Iterator[str]:
    """Yield what a pod names of secrets that its service account does not list, though it must."""
    mountable = {item.get("name") for item in account.get("secrets", ())}
    who = metadata(account)["name"]
    because = f"is not allowed because service account {who} does not reference that secret"
    if not ephemeral:
        for volume in spec.get("volumes", ()):
            name = volume.get("secret", {}).get("secretName")
            if "secret" in volume and name not in mountable:
                yield f'volume with secret.secretName="{name}" {because}'
    for kind in ("ephemeralContainers",) if ephemeral else ("initContainers", "containers"):
        for container in spec.get(kind, ()):
            place = f"{_KINDS[kind]} {container.get('name')} with"
            for variable in container.get("env", ()):
                ref = variable.get("valueFrom", {}).get("secretKeyRef")
                if ref is not None and (name := ref.get("name", "")) not in mountable:
                    yield f'{place} envVar {variable["name"]} referencing secret.secretName="{name}" {because}'
            for source in container.get("envFrom", ()):
                ref = source.get("secretRef")
                if ref is not None and (name := ref.get("name", "")) not in mountable:
                    yield f'{place} envFrom referencing secret.secretName="{name}" {because}'
    pull = {item.get("name") for item in account.get("imagePullSecrets", ())}
    for index, item in enumerate(() if ephemeral else spec.get("imagePullSecrets", ())):
        if item.get("name") not in pull:
            yield (
                f'imagePullSecrets[{index}].name="{item.get("name", "")}" is not allowed because service account {who}'
                " does not reference that imagePullSecret"
            )
