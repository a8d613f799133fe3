"""The type ``qos``: the QoS class of a pod, told to the runtime and not guessed from other values (KEP-3008).

Owns: the three classes and how OCI hooks hear of them. It enforces nothing: what the classes mean is in the limits that
come with them. Sources: KEP-3008, Pod QoS class; Kubernetes, "Pod Quality of Service Classes".
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from podkeep.runtime.class_resources.model import QOS, ClassResource, Level, Offer, Target
from podkeep.runtime.oci.compose import Config, setting

log = logging.getLogger(__name__)

CLASSES = ("BestEffort", "Burstable", "Guaranteed")
CONTAINER_ANNOTATION = "io.kubernetes.container.qos-class"
"""OCI annotation with the class of the container."""
POD_ANNOTATION = "io.kubernetes.pod.qos-class"
"""OCI annotation with the class of the container's pod."""

_OFFER = Offer(classes=CLASSES)
_OFFERS = {Level.CONTAINER: _OFFER, Level.POD: _OFFER}


class Qos(ClassResource):
    """See the module."""

    name = QOS

    def offers(self) -> Mapping[Level, Offer]:
        return _OFFERS

    def why_not(self, _level: Level) -> str:
        return ""

    def check(self, _level: Level, _class_name: str) -> None:
        """Every class can be given at any time."""

    def edit(self, class_name: str, config: Config) -> Config:
        return setting("annotations", **{CONTAINER_ANNOTATION: class_name})(config)

    def put(self, target: Target, class_name: str, previous: str | None) -> None:
        if class_name != previous:
            log.info("%s: QoS class %s", target.name, class_name)

    def verify(self, _target: Target, _class_name: str) -> None:
        """Nothing was written that somebody could have changed."""

    def release(self, _target: Target, _class_name: str) -> None:
        """Nothing was made."""

    def describe(self) -> dict[str, Any]:
        return {"classes": {name: {} for name in CLASSES}}


def edit_of_pod(classes: Mapping[str, str], config: Config) -> Config:
    """Return the OCI configuration of a container with what says its pod's QoS class, if that was told; pure.

    :param classes: the pod's.
    """
    return setting("annotations", **{POD_ANNOTATION: classes.get(QOS)})(config)
