"""Where a node's kubelet is, and how the API and it know each other (kubernetes: ``pkg/kubelet/client``)."""

from __future__ import annotations

import ssl
from pathlib import Path

from podkeep.apiserver.kinds.cells import at
from podkeep.apiserver.meta.lister import Lister
from podkeep.apiserver.meta.status import StatusError, not_found
from podkeep.http.backend import Address

DEFAULT_PORT = 10250
ADDRESS_TYPES = ("InternalIP", "ExternalIP", "Hostname", "InternalDNS", "ExternalDNS")
"""The first of these that a node has is taken. IP addresses come first, as kubeadm has it: they need no name server."""


class Kubelets:
    """Finds kubelets.

    :param certificate: PEM file of the client certificate that is shown to them; ``key``: of its key.
    :param authority: PEM file of the authority that their certificates are verified against.
    """

    def __init__(self, lister: Lister, certificate: Path, key: Path, authority: Path) -> None:
        self._lister = lister
        self._files = certificate, key, authority
        self._contexts: dict[bool, ssl.SSLContext] = {}

    def renew(self) -> None:
        """Take certificates that were renewed for new connections."""
        self._contexts.clear()

    def find(self, node: str, *, verified: bool = True) -> Address:
        """Return where the kubelet of a node is.

        :param verified: whether it must prove that it is the kubelet.
        :raises StatusError: 404, if there is no such node; 500, if it has no address, or the authority cannot be used.
        """
        found = self._lister.get("nodes", "", node)
        if found is None:
            raise not_found("nodes", "", node)
        addresses = at(found, "status", "addresses", default=())
        # Reversed, so that of several of a type the first is left.
        by_type = {item.get("type"): item.get("address", "") for item in reversed(addresses)}
        host = next((by_type[kind] for kind in ADDRESS_TYPES if by_type.get(kind)), "")
        if not host:
            known = " ".join(f"{{{item.get('type', '')} {item.get('address', '')}}}" for item in addresses)
            raise StatusError(500, "", f"no preferred addresses found; known addresses: [{known}]")
        port = at(found, "status", "daemonEndpoints", "kubeletEndpoint", "Port", default=0)
        return Address(host=host, port=port if 0 < port < 1 << 16 else DEFAULT_PORT, tls=self._context(verified))

    def _context(self, verified: bool) -> ssl.SSLContext:
        if verified not in self._contexts:
            certificate, key, authority = self._files
            try:
                context = client_context(authority if verified else None)
            except OSError as error:  # of ssl, too; not looked at before, as an agent may make the file after the start
                why = f"the kubelets' authority {authority} (api.kubelet_ca) cannot be used: {error.strerror or error}"
                raise StatusError(500, "", why) from error
            # With a password, even an empty one, OpenSSL does not ask for that of an encrypted key on the terminal.
            context.load_cert_chain(certificate, key, password="")
            self._contexts[verified] = context
        return self._contexts[verified]


def client_context(authority: Path | None = None) -> ssl.SSLContext:
    """Return TLS settings for a server of the cluster.

    :param authority: PEM file with its authority; None: any certificate will do, as for what pods serve.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if authority is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context.load_verify_locations(authority)
    return context
