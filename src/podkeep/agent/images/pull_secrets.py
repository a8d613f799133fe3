"""The pull secrets of a pod: which credentials they hold, and which of them are missing."""

from __future__ import annotations

import logging

from podkeep.agent.events import Event
from podkeep.agent.objects.sources import Sources
from podkeep.api.pod import Pod
from podkeep.api.validation.secret_types import docker_entries
from podkeep.base.errors import InvalidArgument
from podkeep.base.registries.docker_config import Entry, Keyring

log = logging.getLogger(__name__)


def keyring(pod: Pod, sources: Sources) -> tuple[Keyring, Event | None]:
    """Return the credentials in ``spec.imagePullSecrets``, and the event about those that are not to be had.

    A pod goes on without a secret that is missing: the image may be here, or free for everybody. So it does without one
    that is of no use for registries or cannot be read. References without a name are passed over.
    """
    entries: list[Entry] = []
    missing = []
    for name in (reference.name for reference in pod.spec.image_pull_secrets if reference.name):
        secret = sources.secrets.get((pod.metadata.namespace, name))
        if secret is None:
            missing.append(name)
            continue
        try:
            entries += docker_entries(secret)
        except InvalidArgument as error:
            log.warning("pull secret %s/%s: %s", pod.metadata.namespace, name, error.message)
            missing.append(name)
    if not missing:
        return Keyring(entries), None
    message = (
        f"Unable to retrieve some image pull secrets ({', '.join(missing)}); "
        "attempting to pull the image may not succeed."
    )
    return Keyring(entries), Event(type="Warning", reason="FailedToRetrieveImagePullSecret", message=message)
