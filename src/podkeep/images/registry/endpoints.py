"""Where to ask for an image: the mirrors of its registry in order, then the registry itself. Pure.

Also which images may be asked for at all (``images.allowed_registries``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from msgspec import structs

from podkeep.base.config import RegistryConfig
from podkeep.base.errors import InvalidArgument, PermissionDenied
from podkeep.base.registries.reference import DEFAULT_HOST, Reference, is_host, is_pattern, matches
from podkeep.images.formats.image import RegistryAuth
from podkeep.images.registry.endpoint import Endpoint, Tls

_API_HOSTS = {DEFAULT_HOST: "registry-1.docker.io"}


def check(registries: Mapping[str, RegistryConfig], allowed: Sequence[str] = ()) -> None:
    """Check ``[registries]`` and ``images.allowed_registries`` before an image is asked for.

    :raises InvalidArgument: if a table's name is not the host of a registry, a mirror not a host or an http(s) URL, a
        key without its certificate, or a pattern one that nothing matches.
    """
    for host, config in registries.items():
        if not is_host(host):
            raise InvalidArgument(
                f"registries.{host!r}: this is not the host[:port] of a registry",
                hint="write it as images are named, like registry.example:5000, without http:// and path",
            )
        if config.key_file and not config.cert_file:
            raise InvalidArgument(f'registries."{host}": key_file without cert_file', hint="set both")
        for text in config.mirrors:
            _mirror(host, text, registries)
    for pattern in allowed:
        if not is_pattern(pattern):
            raise InvalidArgument(
                f"images.allowed_registries: {pattern!r} is not host[:port][/prefix]",
                hint="write it like registry.example, docker.io/library or *.example.com, without http://",
            )


def check_allowed(reference: Reference, allowed: Sequence[str]) -> None:
    """Check that an image may be pulled; by its name, wherever its mirrors are.

    :raises PermissionDenied: if no pattern matches.
    """
    if allowed and not any(matches(pattern, reference) for pattern in allowed):
        raise PermissionDenied(
            f"{reference}: images of {reference.name} may not be pulled to this node",
            hint="images.allowed_registries of the node's configuration lists what may",
        )


def endpoints_of(reference: Reference, registries: Mapping[str, RegistryConfig]) -> tuple[Endpoint, ...]:
    """Return the servers for ``reference``, first to be tried first.

    :raises InvalidArgument: if a mirror in the configuration is not a host or an http(s) URL.
    """
    config = registries.get(reference.host, RegistryConfig())
    mirrors = tuple(_mirror(reference.host, text, registries) for text in config.mirrors)
    host = _API_HOSTS.get(reference.host, reference.host)
    own = _endpoint(host, "", config, own=True)
    return (*mirrors, structs.replace(own, configured=reference.host in registries))


def for_worker(
    reference: Reference,
    registries: Mapping[str, RegistryConfig],
    *,
    progress_timeout: float,
    auth: RegistryAuth | None = None,
) -> tuple[Endpoint, ...]:
    """Return the servers for ``reference`` with all it takes to ask them, but for the node's credentials.

    :param auth: credentials of the request.
    :raises InvalidArgument: if a mirror in the configuration is not a host or an http(s) URL.
    """
    given = RegistryAuth() if auth is None else replace(auth, server_address="")
    credentials = () if given == RegistryAuth() else (given,)
    return tuple(
        structs.replace(
            endpoint,
            other_tls=_tls_settings(registries),
            progress_timeout=progress_timeout,
            # A request's credentials are the registry's; a mirror is another party.
            credentials=credentials if endpoint.own else (),
        )
        for endpoint in endpoints_of(reference, registries)
    )


def _tls_settings(registries: Mapping[str, RegistryConfig]) -> dict[str, Tls]:
    """Return how to speak TLS to each configured host, for whatever a registry refers to."""
    return {_API_HOSTS.get(host, host): _tls(config) for host, config in registries.items()}


def _tls(config: RegistryConfig) -> Tls:
    return Tls(verify=not config.insecure, ca_file=config.ca_file, cert_file=config.cert_file, key_file=config.key_file)


def _mirror(registry: str, text: str, registries: Mapping[str, RegistryConfig]) -> Endpoint:
    try:
        parts = urlsplit(text if "://" in text else f"//{text.strip('/')}")
        usable = bool(parts.hostname) and parts.port != 0 and "@" not in parts.netloc
    except ValueError:  # A bracket without its other one, a port that is none.
        usable = False
    if not usable or parts.scheme not in ("", "http", "https") or any(item.isspace() or item in "?#" for item in text):
        shown = "what has an '@'" if "@" in text else repr(text)  # there may be a password before it
        raise InvalidArgument(
            f'registries."{registry}".mirrors: {shown} is not host[:port] or an http(s) URL',
            hint="write it like mirror.example:5000 or https://mirror.example/path",
        )
    scheme, host, prefix = parts.scheme, parts.netloc, parts.path.strip("/")
    config = registries.get(host, RegistryConfig())
    # That the configuration names it as a mirror is enough to trust its address.
    endpoint = structs.replace(_endpoint(host, prefix, config, own=False), configured=True)
    return structs.replace(endpoint, schemes=(scheme,)) if scheme else endpoint


def _endpoint(host: str, prefix: str, config: RegistryConfig, *, own: bool) -> Endpoint:
    return Endpoint(
        host=host,
        prefix=prefix,
        # With TLS first, an insecure registry that has it still keeps credentials from eavesdroppers.
        schemes=("https", "http") if config.insecure else ("https",),
        tls=_tls(config),
        own=own,
    )


def meant_for(auth: RegistryAuth | None, reference: Reference) -> RegistryAuth | None:
    """Return the credentials of a request, unless they say that they are for another registry.

    :raises InvalidArgument: if what they say is no address.
    """
    if auth is None or not auth.server_address:
        return auth
    text = auth.server_address
    try:
        host = urlsplit(text if "://" in text else f"//{text}").netloc.lower()
    except ValueError:  # not in its words, nor the text: there may be a password in it
        raise InvalidArgument("auth.server_address is neither host[:port] nor a URL") from None
    names = {reference.host.lower()} | (
        {"index.docker.io", "registry-1.docker.io"} if reference.host == DEFAULT_HOST else set()
    )
    return auth if host in names else None
