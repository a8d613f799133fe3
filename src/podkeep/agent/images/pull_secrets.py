"""The pull secrets of a pod: which credentials they hold, and which of them are missing."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace

from podkeep.agent.events import Event
from podkeep.agent.objects.sources import Sources
from podkeep.api.configuration import Secret
from podkeep.api.pod import Pod
from podkeep.api.validation.secret_types import docker_entries
from podkeep.base.errors import InvalidArgument
from podkeep.base.registries.docker_config import Entry, Keyring, pattern_length

log = logging.getLogger(__name__)

MOST_BYTES = 1 << 20
MOST_ENTRIES = 1000
MOST_PATTERNS = 8 << 10
"""Characters of hosts that are patterns. All three are of all secrets of a pod together: each name of an image is
compared with all of them, and a pod may name any number of secrets of 1 MiB."""


class _Room:
    """What is left of the bounds."""

    def __init__(self) -> None:
        self._size, self._entries, self._patterns = MOST_BYTES, MOST_ENTRIES, MOST_PATTERNS

    def take(self, *, size: int = 0, entries: int = 0, patterns: int = 0) -> None:
        """Take some of it for a secret.

        :raises InvalidArgument: if there is not that much; then nothing is taken.
        """
        left = (self._size - size, self._entries - entries, self._patterns - patterns)
        if min(left) < 0:
            raise InvalidArgument("the pull secrets of the pod have too many credentials, or too long ones")
        self._size, self._entries, self._patterns = left


def _from(secret: Secret, entries: Iterable[Entry]) -> Iterator[Entry]:
    """Yield entries with the Secret that they are from; one that no API has is none that could be replaced."""
    meta = secret.metadata
    origin = f"{meta.namespace}/{meta.name}/{meta.uid}" if meta.uid else ""
    for where, credentials in entries:
        yield where, replace(credentials, origin=origin)


def keyring(pod: Pod, sources: Sources) -> tuple[Keyring, Event | None]:
    """Return the credentials in ``spec.imagePullSecrets``, and the event about those that are not to be had. Blocks.

    A pod goes on without a secret that is missing: the image may be here, or free for everybody. So it does without one
    that is of no use for registries or cannot be read, or that is one too many. References without a name are passed
    over.
    """
    entries: list[Entry] = []
    missing = []
    room = _Room()
    for name in dict.fromkeys(reference.name for reference in pod.spec.image_pull_secrets if reference.name):
        secret = sources.secrets.get((pod.metadata.namespace, name))
        if secret is None:
            missing.append(name)
            continue
        try:
            room.take(size=sum(map(len, secret.data.values())))
            found = docker_entries(secret)
            room.take(entries=len(found), patterns=sum(pattern_length(where) for where, _ in found))
            entries += _from(secret, found)
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
