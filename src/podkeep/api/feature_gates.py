"""Feature gates: which are known, what they are by default, and which parts of podkeep ask them. Pure.

Owns: names, defaults, and how ``[agent] feature_gates`` is read. Does not own: what a feature does. Called by the
command line, which hands the result to ``api`` (validation) and ``agent``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from podkeep.base.errors import InvalidConfiguration
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text.similar import similar

Component = Literal["api", "agent"]
"""``api``: validation of new objects; ``agent``: turning pods into CRI requests."""


class Gate(FrozenStruct, kw_only=True):
    """One feature that can be switched on and off, under its Kubernetes name."""

    name: str
    default: bool
    components: tuple[Component, ...]
    """The parts that ask it; the others do the same whatever it says."""
    about: str


CLASS_RESOURCES = Gate(
    name="ClassResources",
    default=True,
    components=("agent", "api"),
    about="QoS-class resources of pods and containers (KEP-3008)",
)
POD_SECURITY_USER_NAMESPACES = Gate(
    name="UserNamespacesPodSecurityStandards",
    default=False,
    components=("api",),
    about="Pod Security passes pods with a user namespace of their own that run as root (KEP-127)",
)
CLUSTER_TRUST_BUNDLES = Gate(
    name="ClusterTrustBundleProjection",
    default=False,
    components=("api",),
    about="certificates of signers in projected volumes (KEP-3257)",
)
NO_HOST_DEFAULTING = Gate(
    name="DisableHostUserNamespaceDefaulting",
    default=False,
    components=("agent",),
    about="pods that cannot work in a user namespace get one all the same, with one mapping (KEP-127 draft)",
)
IMAGE_VOLUME = Gate(
    name="ImageVolume",
    default=True,
    components=("agent", "api"),
    about="volumes that are images (KEP-4639)",
)
IMAGE_VOLUME_SUB_PATHS = Gate(
    name="ImageVolumeSubPaths",
    default=True,
    components=("api",),
    about="sub paths of volumes that are images (KEP-4639, beta)",
)
POD_CERTIFICATES = Gate(
    name="PodCertificateRequest",
    default=False,
    components=("api",),
    about="certificates of pods in projected volumes (KEP-4317)",
)
POD_GROUPS = Gate(
    name="GenericWorkload",
    default=False,
    components=("api",),
    about="pods that are scheduled as a group (KEP-4671)",
)
STOP_SIGNALS = Gate(
    name="ContainerStopSignals",
    default=False,
    components=("api",),
    about="stop signals of containers in their lifecycle (KEP-4960)",
)
ONE_USER_MAPPING = Gate(
    name="UserNamespaceSupport",
    default=False,
    components=("agent",),
    about="one user mapping for all pods of a node, which get a user namespace by default (KEP-127 draft)",
)
USER_NAMESPACES = Gate(
    name="UserNamespacesSupport",
    default=True,
    components=("agent", "api"),
    about="user namespaces of pods (KEP-127)",
)
KNOWN: tuple[Gate, ...] = (
    CLASS_RESOURCES,
    CLUSTER_TRUST_BUNDLES,
    STOP_SIGNALS,
    NO_HOST_DEFAULTING,
    POD_GROUPS,
    IMAGE_VOLUME,
    IMAGE_VOLUME_SUB_PATHS,
    POD_CERTIFICATES,
    ONE_USER_MAPPING,
    POD_SECURITY_USER_NAMESPACES,
    USER_NAMESPACES,
)
"""In the order of their names."""


class FeatureGates(FrozenStruct, kw_only=True):
    """The gates of one process, which do not change while it runs."""

    given: Mapping[str, bool] = msgspec.field(default_factory=dict)
    """What the configuration says, by known name."""

    def enabled(self, gate: Gate) -> bool:
        return self.given.get(gate.name, gate.default)


def read(given: Mapping[str, bool], component: Component) -> FeatureGates:
    """Return the gates that ``feature_gates`` of a component's section asks for.

    :raises InvalidConfiguration: naming every gate that the component does not ask: nothing would come of it.
    """
    known = [gate.name for gate in KNOWN if component in gate.components]
    unknown = sorted(given.keys() - set(known))
    if unknown:
        near = [match for name in unknown for match in similar(name, known)[:1]]
        raise InvalidConfiguration(
            f"{component}.feature_gates: unrecognized feature gate: {', '.join(unknown)}",
            hint=f"did you mean {' and '.join(dict.fromkeys(near))}?" if near else f"known: {', '.join(known)}",
        )
    return FeatureGates(given=dict(given))
