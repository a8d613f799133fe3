"""Where to ask for an image: the mirrors of its registry in order, then the registry itself. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

from podkeep.base.config import RegistryConfig
from podkeep.base.errors import InvalidArgument
from podkeep.images.image import RegistryAuth
from podkeep.images.reference import DEFAULT_HOST, Reference, is_host

_API_HOSTS = {DEFAULT_HOST: "registry-1.docker.io"}


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """One server to try.

    ``schemes`` are tried in order; ``verify``: check its certificate, against ``ca_file`` if that is not empty.
    ``own`` marks the registry of the name itself, the only one that gets credentials.
    """

    host: str
    prefix: str
    schemes: tuple[str, ...]
    verify: bool
    ca_file: str
    own: bool

    def as_json(self) -> dict[str, object]:
        """Return the form for the worker's request."""
        return asdict(self)


def check(registries: Mapping[str, RegistryConfig]) -> None:
    """Check ``[registries]`` before an image is asked for.

    :raises InvalidArgument: if a table's name is not the host of a registry, or a mirror not a host or an http(s) URL.
    """
    for host, config in registries.items():
        if not is_host(host):
            raise InvalidArgument(
                f"registries.{host!r}: this is not the host[:port] of a registry",
                hint="write it as images are named, like registry.example:5000, without http:// and path",
            )
        for text in config.mirrors:
            _mirror(host, text, registries)


def endpoints_of(reference: Reference, registries: Mapping[str, RegistryConfig]) -> tuple[Endpoint, ...]:
    """Return the servers for ``reference``, first to be tried first.

    :raises InvalidArgument: if a mirror in the configuration is not a host or an http(s) URL.
    """
    config = registries.get(reference.host, RegistryConfig())
    mirrors = tuple(_mirror(reference.host, text, registries) for text in config.mirrors)
    host = _API_HOSTS.get(reference.host, reference.host)
    return (*mirrors, _endpoint(host, "", config, own=True))


def _mirror(registry: str, text: str, registries: Mapping[str, RegistryConfig]) -> Endpoint:
    try:
        parts = urlsplit(text if "://" in text else f"//{text.strip('/')}")
        usable = bool(parts.hostname) and parts.port != 0 and "@" not in parts.netloc
    except ValueError:  # A bracket without its other one, a port that is none.
        usable = False
    if not usable or parts.scheme not in ("", "http", "https") or any(item.isspace() for item in text):
        raise InvalidArgument(
            f'registries."{registry}".mirrors: {text!r} is not host[:port] or an http(s) URL',
            hint="write it like mirror.example:5000 or https://mirror.example/path",
        )
    scheme, host, prefix = parts.scheme, parts.netloc, parts.path.strip("/")
    config = registries.get(host, RegistryConfig())
    endpoint = _endpoint(host, prefix, config, own=False)
    if not scheme:
        return endpoint
    return Endpoint(**{**asdict(endpoint), "schemes": (scheme,)})


def _endpoint(host: str, prefix: str, config: RegistryConfig, *, own: bool) -> Endpoint:
    return Endpoint(
        host=host,
        prefix=prefix,
        # With TLS first, an insecure registry that has it still keeps credentials from eavesdroppers.
        schemes=("https", "http") if config.insecure else ("https",),
        verify=not config.insecure,
        ca_file=config.ca_file,
        own=own,
    )


def auth_as_json(auth: RegistryAuth | None) -> dict[str, str]:
    """Return credentials in the form for the worker's request."""
    return {} if auth is None else asdict(auth)
