"""The plugins that need nothing but a lister and the configuration, by name."""

from __future__ import annotations

from podkeep.api.feature_gates import FeatureGates
from podkeep.apiserver.admission.always_pull_images import AlwaysPullImages
from podkeep.apiserver.admission.attributes import Admission
from podkeep.apiserver.admission.classes import ClassResources
from podkeep.apiserver.admission.default_toleration_seconds import DefaultTolerationSeconds
from podkeep.apiserver.admission.image_policy import ImagePolicy
from podkeep.apiserver.admission.namespace_lifecycle import NamespaceLifecycle
from podkeep.apiserver.admission.pod_security import PodSecurity, configuration
from podkeep.apiserver.admission.storage_classes import DefaultStorageClass, PersistentVolumeClaimResize
from podkeep.apiserver.admission.taint_nodes_by_condition import TaintNodesByCondition
from podkeep.apiserver.meta.lister import Lister
from podkeep.base.config import AdmissionConfig


def plugins(config: AdmissionConfig, lister: Lister, gates: FeatureGates) -> dict[str, Admission]:
    """Return them; what asks an authorizer, or counts, is added by whoever has it.

    :raises InvalidArgument: if the configuration is wrong.
    """
    pod_security = {"defaults": config.pod_security.defaults, "exemptions": config.pod_security.exemptions}
    return {
        "AlwaysPullImages": AlwaysPullImages(),
        "ClassResources": ClassResources(gates),
        "DefaultStorageClass": DefaultStorageClass(lister),
        "DefaultTolerationSeconds": DefaultTolerationSeconds(),
        "ImagePolicy": ImagePolicy(config.allowed_registries),
        "NamespaceLifecycle": NamespaceLifecycle(lister),
        "PersistentVolumeClaimResize": PersistentVolumeClaimResize(lister),
        "PodSecurity": PodSecurity(lister, gates, configuration(pod_security)),
        "TaintNodesByCondition": TaintNodesByCondition(),
    }
