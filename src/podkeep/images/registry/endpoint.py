"""One server to ask for an image, and all it takes to ask it.

Values, apart from ``endpoints``, which makes them of the configuration: a worker is told them, and starts sooner
without what it takes to make them.
"""

from __future__ import annotations

import msgspec

from podkeep.images.formats.image import RegistryAuth


class Tls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to speak TLS to one host: ``ca_file`` has further authorities, ``cert_file`` and ``key_file`` are ours."""

    verify: bool = True
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One server to try.

    ``schemes`` are tried in order. ``own`` marks the registry of the name itself, the only one that gets the
    credentials of a request; ``configured``: it has an entry in ``[registries]``. ``other_tls`` is for whatever it
    refers to, by ``host[:port]``. ``progress_timeout`` is in seconds; ``credentials`` are tried in their order.
    """

    host: str
    prefix: str
    schemes: tuple[str, ...]
    tls: Tls
    own: bool
    configured: bool = False
    other_tls: dict[str, Tls] = {}
    progress_timeout: float = 60.0
    credentials: tuple[RegistryAuth, ...] = ()
