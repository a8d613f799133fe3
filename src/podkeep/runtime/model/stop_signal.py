"""Which signal asks a container to end. Pure.

Names come from images (OCI image-spec, config.md, ``StopSignal``: a name or a number, ``SIGRTMIN+3``) and from
requests (CRI: Signal, whose real-time signals are spelled ``SIGRTMINPLUS3``). Called by ``containers.py`` and by
ContainerStatus.
"""

from __future__ import annotations

import re
import signal

from podkeep.base.errors import InvalidArgument
from podkeep.runtime.model.records import Container

_REAL_TIME = re.compile(r"SIGRT(?:MIN(?:\+|PLUS)|MAX(?:-|MINUS))([0-9]{1,2})")


def of(container: Container) -> int:
    """Return the request's signal, else the image's, else SIGTERM; an image's nonsense must not keep it running."""
    if container.config.stop_signal:
        return parse(container.config.stop_signal)
    try:
        return parse(container.image_stop_signal)
    except InvalidArgument:
        return signal.SIGTERM


def parse(text: str) -> int:
    """Return the number of a signal; SIGTERM for an empty text.

    :raises InvalidArgument: if the kernel has no such signal.
    """
    if not text:
        return signal.SIGTERM
    name = text.upper() if text.upper().startswith("SIG") else f"SIG{text.upper()}"
    number = 0
    # Two digits at most: an image may have thousands of them, which int() refuses with an error of its own.
    if text.isascii() and text.isdigit() and len(text) <= 2:
        number = int(text)
    elif name in signal.Signals.__members__:
        number = signal.Signals[name]
    elif match := _REAL_TIME.fullmatch(name):
        distance = int(match[1])
        number = signal.SIGRTMIN + distance if name.startswith("SIGRTMIN") else signal.SIGRTMAX - distance
        # SIGRTMAX-40 would be a signal that is none of the real-time ones.
        number = number if number >= signal.SIGRTMIN else 0
    if number not in signal.valid_signals():
        raise InvalidArgument(f"stop signal {text[:40]!r} is not a signal", hint="signal(7) lists them")
    return number
