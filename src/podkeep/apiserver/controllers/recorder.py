"""Events that controllers tell people of."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from podkeep.apiserver.controllers.controller import Create, Patch, Write, revised
from podkeep.apiserver.controllers.event_expiry import EVENTS, last_seen
from podkeep.apiserver.meta.lister import Lister
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text import rfc3339

REPEATED = timedelta(minutes=5)
"""When an event is told again of what is as before."""
MAX_MESSAGE = 1024
"""Characters of an event's message (pkg/apis/core/validation: ``NoteLengthLimit``)."""
_MAX_BASE = 220
"""Characters of the object's name that are kept in that of the event."""


class Told(FrozenStruct, kw_only=True):
    """What an event says. ``kind`` is ``Normal`` or ``Warning``, ``action`` what was done or tried.

    :param about: kind of the object that it is about, of ``api_version``.
    """

    component: str
    kind: str
    reason: str
    action: str
    message: str
    about: str = "Pod"
    api_version: str = "v1"


def event(value: Mapping[str, Any], told: Told, lister: Lister, now: datetime) -> Write:
    """Return the write that tells an event about an object; one that was told before is counted up."""
    metadata = value["metadata"]
    namespace, name = metadata["namespace"], name_of(value, told)
    if (old := lister.get(EVENTS, namespace, name)) is not None:
        patch = {"count": old.get("count", 0) + 1, "lastTimestamp": rfc3339.of(now)}
        return Patch(resource=EVENTS, namespace=namespace, name=name, patch=revised(old, patch))
    new = {
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": {
            "apiVersion": told.api_version,
            "kind": told.about,
            "namespace": namespace,
            "name": metadata["name"],
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
        },
        "reason": told.reason,
        "message": told.message[:MAX_MESSAGE],
        "type": told.kind,
        "action": told.action,
        "source": {"component": told.component},
        "reportingComponent": told.component,
        # The host of who tells it: empty for who runs beside the API, as with client-go's recorder.
        "reportingInstance": "",
        "firstTimestamp": rfc3339.of(now),
        "lastTimestamp": rfc3339.of(now),
        "count": 1,
    }
    return Create(resource=EVENTS, namespace=namespace, value=new)


def is_due(value: Mapping[str, Any], told: Told, lister: Lister, now: datetime) -> bool:
    """Return whether an event is to be told: nobody was told lately."""
    old = lister.get(EVENTS, value["metadata"]["namespace"], name_of(value, told))
    return old is None or now - last_seen(old, now) >= REPEATED


def name_of(value: Mapping[str, Any], told: Told) -> str:
    """Return the name of an event, the same for all that say the same of an object.

    It begins as that of an event of a kubelet would (client-go: ``makeEvent``) at the moment when the object was made.
    Lists are in the order of names, and clients that sort by times in whole seconds keep it: what led to the object's
    being on a node comes before what became of it there, and why it had to wait before that it was done.
    """
    metadata = value["metadata"]
    said = f"{metadata['uid']}\n{told.reason}\n{told.message[:MAX_MESSAGE]}"
    made = int(rfc3339.seconds(metadata["creationTimestamp"])) * 10**9 + (told.kind == "Normal")
    what = hashlib.sha256(said.encode()).hexdigest()[:16]
    return f"{metadata['name'][:_MAX_BASE].rstrip('-.')}.{made:x}{what}"
