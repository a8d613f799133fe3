"""Objects of an API server, as an agent takes them: what is not known is passed over, what is wrong is said.

A field that a newer server knows and this agent does not has no effect, as with a kubelet (KEP-127 and KEP-4639,
version skew). A known field with a value that is not known is another thing: left at its default it could take away a
protection that was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from podkeep.api.decode import decode
from podkeep.api.fields import FieldErrors
from podkeep.api.pod import Pod
from podkeep.base.frozen import FrozenStruct


class ReceivedPod(FrozenStruct, kw_only=True):
    """A pod, and which fields of its specification this version cannot take: it must not run then."""

    pod: Pod
    problems: tuple[str, ...] = ()


def pod(value: Mapping[str, Any]) -> ReceivedPod:
    """Return the pod in ``value``. What is wrong in its status, which is the agent's own, is passed over.

    Each status that the agent writes comes back in an object, so what a server writes usually is taken the fast way;
    that stops at the first thing it does not know.
    """
    try:
        return ReceivedPod(pod=msgspec.convert(value, Pod))
    except msgspec.ValidationError:
        return _looked_at(value)


def _looked_at(value: Mapping[str, Any]) -> ReceivedPod:
    """Return a pod of which each field is looked at by itself."""
    errors = FieldErrors(tolerant=True)
    decoded = decode(Pod, value, errors)
    wrong = tuple(str(error) for error in errors.found if not error.path.startswith("status"))
    return ReceivedPod(pod=decoded, problems=wrong)
