"""Pods with volumes and what they refer to, for tests of the agent's volumes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from podkeep.agent.objects.sources import Claim, Sources
from podkeep.api.configuration import ConfigMap, Secret
from podkeep.api.meta import ObjectMeta
from podkeep.api.pod import Pod

SECRET_TEXT = "private"


def pod_with(
    volumes: Sequence[dict[str, Any]],
    *,
    labels: Mapping[str, str] | None = None,
    security: Mapping[str, Any] | None = None,
    users: Sequence[int | None] = (None,),
    mounted: bool = True,
    resources: Mapping[str, Any] | None = None,
    also: Sequence[Mapping[str, str]] = (),
) -> Pod:
    """Return a pod that mounts volumes, if ``mounted``; ``users`` are of its containers, ``c`` the first one's name.

    :param also: more mounts.
    """
    mounts = [{"name": volume["name"], "mountPath": f"/{volume['name']}"} for volume in volumes] if mounted else []
    mounts += also
    containers = [
        {
            "name": "c" if index == 0 else f"c{index}",
            "image": "i",
            "volumeMounts": mounts,
            "securityContext": {} if user is None else {"runAsUser": user},
            "resources": resources or {"requests": {"memory": "100Mi"}},
        }
        for index, user in enumerate(users)
    ]
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "namespace": "default", "uid": "u1", "labels": dict(labels or {})},
        "spec": {"volumes": list(volumes), "containers": containers, "securityContext": dict(security or {})},
    }
    return msgspec.convert(document, Pod)


def sources_of(a: str = "1", tokens: Mapping[tuple[str, int], str] | None = None) -> Sources:
    """Return a ConfigMap ``m`` with keys ``a`` and ``b``, a Secret ``s`` with ``key``, and tokens."""
    return Sources(
        config_maps={("default", "m"): ConfigMap(metadata=ObjectMeta(name="m"), data={"a": a, "b": "2"})},
        secrets={("default", "s"): Secret(metadata=ObjectMeta(name="s"), data={"key": SECRET_TEXT.encode()})},
        tokens=tokens or {},
    )


def claim(
    *, name: str = "data", phase: str = "Bound", volume: str = "pv1", deleted: bool = False, owner: str = ""
) -> dict[str, Any]:
    """Return a PersistentVolumeClaim as an API server has it."""
    metadata: dict[str, Any] = {"name": name, "namespace": "default", "uid": "c1"}
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    if owner:
        metadata["ownerReferences"] = [
            {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": owner, "controller": True}
        ]
    return {"metadata": metadata, "spec": {"volumeName": volume}, "status": {"phase": phase}}


def persistent_volume(**spec: Any) -> dict[str, Any]:
    """Return PersistentVolume ``pv1``, bound to :func:`claim` if ``spec`` does not say otherwise."""
    whole = {"accessModes": ["ReadWriteOnce"], "claimRef": {"name": "data", "uid": "c1"}} | spec
    return {"metadata": {"name": "pv1", "uid": "v1"}, "spec": whole}


def claiming(kind: str, root: Path, **security: Any) -> tuple[Pod, Sources]:
    """Return a pod with a persistent volume of the node, and the claim."""
    pod = pod_with([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}], security=security)
    source = {kind: {"path": str(root)}}
    return pod, Sources(claims={("default", "data"): Claim(claim=claim(), volume=persistent_volume(**source))})
