"""What types and classes may be called: the rule for the names and values of labels, and what is reserved. Pure.

The rule is KEP-3008's (Pod Spec): a class is like the value of a label, a type like its key, so it may have the prefix
of a vendor. Used by every reader of a configuration. Does not own: validation of Pods (``api``).
"""

from __future__ import annotations

import re

from podkeep.base.errors import InvalidArgument
from podkeep.runtime.class_resources.model import BLOCKIO, DEFAULT_CLASS, OOM, QOS, RDT

BUILT_IN = frozenset({RDT, BLOCKIO, OOM, QOS})
"""Types that podkeep brings along."""

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_NAME_RULE = "use at most 63 letters, digits, -, _ and ., the first and the last of them a letter or digit"
_TYPE_RULE = f"{_NAME_RULE}; a vendor's domain and / may go before, as in vendor.example/thing"


def check_class(name: str, *, key: str) -> None:
    """Check the name of a class.

    :param key: where it stands, for the message: ``class_resources.oom``.
    :raises InvalidArgument: if it is not like a label's value, or reserved.
    """
    if name == DEFAULT_CLASS:
        hint = "call it otherwise, and name it in container_defaults or pod_defaults of [class_resources]"
        raise InvalidArgument(
            f"{key}: no class may be called {name!r}: the name stands for the node's choice", hint=hint
        )
    if not _NAME.fullmatch(name):
        raise InvalidArgument(f"{key}: {name!r} is no name of a class", hint=_NAME_RULE)


def check_type(name: str, *, key: str) -> None:
    """Check the name of a type that a configuration defines.

    :param key: where it stands, for the message.
    :raises InvalidArgument: if it is not like a label's key, or one of podkeep's own.
    """
    if name in BUILT_IN:
        raise InvalidArgument(f"{key}: {name!r} is a type of podkeep's own", hint="give yours another name")
    prefix, separator, rest = name.rpartition("/")
    labels = prefix.split(".") if separator else []
    if len(prefix) > 253 or not all(_DNS_LABEL.fullmatch(label) for label in labels) or not _NAME.fullmatch(rest):
        raise InvalidArgument(f"{key}: {name!r} is no name of a type", hint=_TYPE_RULE)
