"""Admission and controllers: which there are, and in which order a write meets them."""

from __future__ import annotations

from collections.abc import Sequence

from podkeep.api.feature_gates import FeatureGates
from podkeep.apiserver.admission import limits
from podkeep.apiserver.admission.always_pull_images import AlwaysPullImages
from podkeep.apiserver.admission.attributes import Admission
from podkeep.apiserver.admission.chain import Chain, chain
from podkeep.apiserver.admission.classes import ClassResources
from podkeep.apiserver.admission.default_toleration_seconds import DefaultTolerationSeconds
from podkeep.apiserver.admission.image_policy import ImagePolicy
from podkeep.apiserver.admission.image_volumes import ImageVolumes
from podkeep.apiserver.admission.namespace_lifecycle import NamespaceLifecycle
from podkeep.apiserver.admission.node_restriction import NodeRestriction
from podkeep.apiserver.admission.pod_security.plugin import PodSecurity, configuration
from podkeep.apiserver.admission.quota.ledger import QuotaLedger
from podkeep.apiserver.admission.rbac_escalation import RbacEscalation
from podkeep.apiserver.admission.service_account import ServiceAccount
from podkeep.apiserver.admission.storage_classes import (
    DefaultStorageClass,
    PersistentVolumeClaimResize,
    StorageObjectInUseProtection,
)
from podkeep.apiserver.admission.taint_nodes_by_condition import TaintNodesByCondition
from podkeep.apiserver.auth.secret_tokens import SecretTokens
from podkeep.apiserver.controllers.controller import Controller
from podkeep.apiserver.controllers.disruption_budgets import DisruptionBudgets
from podkeep.apiserver.controllers.event_expiry import EventExpiry
from podkeep.apiserver.controllers.namespace_contents import NamespaceContents
from podkeep.apiserver.controllers.namespaces import NamespaceDeletion
from podkeep.apiserver.controllers.node_health import NodeHealth
from podkeep.apiserver.controllers.owners import GarbageCollector
from podkeep.apiserver.controllers.pod_garbage import PodGarbage
from podkeep.apiserver.controllers.quota_status import QuotaStatus
from podkeep.apiserver.controllers.role_aggregation import RoleAggregation
from podkeep.apiserver.controllers.scheduler import Scheduler
from podkeep.apiserver.controllers.storage_protection import StorageProtection
from podkeep.apiserver.controllers.taint_eviction import TaintEviction
from podkeep.apiserver.controllers.token_secrets import TokenSecrets
from podkeep.apiserver.controllers.volume_binder import VolumeBinder
from podkeep.apiserver.kinds.resources import Resource
from podkeep.apiserver.kinds.services.service_allocation import Ranges
from podkeep.apiserver.registry.lister import StoreLister
from podkeep.apiserver.server.access import Access
from podkeep.apiserver.server.service_addresses import ServiceAddresses
from podkeep.apiserver.storage.store import Store
from podkeep.base.config import Config


def admission(config: Config, store: Store, lister: StoreLister, access: Access, gates: FeatureGates) -> Admission:
    """Return everything that may change or refuse a write.

    :raises InvalidArgument: if the configuration names a plugin that there is not, or what it is told is wrong.
    """
    plugins: dict[str, Admission] = {
        "NamespaceLifecycle": NamespaceLifecycle(lister),
        "ServiceAccount": ServiceAccount(lister),
        "NodeRestriction": NodeRestriction(lister, access.authorizer),
        "TaintNodesByCondition": TaintNodesByCondition(),
        "AlwaysPullImages": AlwaysPullImages(),
        "ImagePolicy": ImagePolicy(config.api.admission.allowed_registries),
        "PodSecurity": PodSecurity(lister, gates, configuration(config.api.admission.pod_security)),
        "DefaultTolerationSeconds": DefaultTolerationSeconds(),
        "DefaultStorageClass": DefaultStorageClass(lister),
        "StorageObjectInUseProtection": StorageObjectInUseProtection(),
        "PersistentVolumeClaimResize": PersistentVolumeClaimResize(lister),
        "ClassResources": ClassResources(gates),
        "ImageVolumes": ImageVolumes(gates),
        **limits.plugins(lister, gates),
    }
    chosen = chain(plugins, config.api.enable_admission_plugins, config.api.disable_admission_plugins)
    # What a role may grant, and which addresses are free, are rules of these kinds that nobody can switch off.
    own = (RbacEscalation(access.rbac, access.authorizer), ServiceAddresses(store, Ranges()))
    return Chain((chosen, *own))


def controllers(
    config: Config,
    resources: Sequence[Resource],
    lister: StoreLister,
    gates: FeatureGates,
    authority: str,
    tokens: SecretTokens,
) -> list[Controller]:
    """Return new controllers.

    :param authority: PEM of the certificate that pods verify the API with.
    :param tokens: makes those that Secrets have.
    """
    return [
        NamespaceDeletion(resources),
        NamespaceContents(authority),
        GarbageCollector(resources),
        DisruptionBudgets(),
        EventExpiry(),
        NodeHealth(),
        PodGarbage(config.api.terminated_pod_gc_threshold),
        QuotaStatus(QuotaLedger(lister), gates),
        RoleAggregation(),
        Scheduler(gates),
        StorageProtection(),
        TaintEviction(),
        TokenSecrets(authority, tokens.issue),
        VolumeBinder(),
    ]
