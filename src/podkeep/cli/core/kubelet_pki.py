"""The kubelet's certificates where the API is this machine's own: its authority signs them.

Owns: where they are. The agent knows the Kubernetes API and nothing of the embedded one, so its command line does that.
With a kubeconfig, certificates are the cluster's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from podkeep.base.errors import PodkeepError

if TYPE_CHECKING:
    from podkeep.apiserver.server.certificates import Files
    from podkeep.base.config import Config

log = logging.getLogger(__name__)

_WAIT_S = 10.0
_LOOK_S = 0.02
_NAME = "kubelet"


def prepared(config: Config, addresses: Sequence[str], *, wait: float = _WAIT_S) -> Config:
    """Return a configuration that names the kubelet's certificate and the authority of its clients; blocks.

    Both are left alone if the configuration names them. An API that has no authority in time gets a kubelet with a
    certificate of its own.

    :param addresses: IP addresses of the node.
    :param wait: seconds in which the API may make its authority.
    """
    from podkeep.apiserver.server.certificates import AUTHORITY, Files

    agent = config.agent
    files = Files(Path(config.api.root))
    authority = files.certificate(AUTHORITY)
    end = time.monotonic() + wait
    while not authority.exists() and time.monotonic() < end:
        time.sleep(_LOOK_S)
    if not authority.exists():
        log.warning("the API has no authority at %s: it cannot ask the kubelet for logs and streams", authority)
        return config
    replace = msgspec.structs.replace
    if not agent.authentication.x509.client_ca_file:
        x509 = replace(agent.authentication.x509, client_ca_file=str(authority))
        agent = replace(agent, authentication=replace(agent.authentication, x509=x509))
    if not agent.tls_cert_file:
        try:
            certificate, key = _ensure(config, files, tuple(sorted({"127.0.0.1", *addresses})))
            agent = replace(agent, tls_cert_file=str(certificate), tls_private_key_file=str(key))
        except (OSError, PodkeepError) as error:
            log.warning("the API's authority signs no certificate for the kubelet: %s", error)
    return replace(config, agent=agent)


def _ensure(config: Config, files: Files, addresses: tuple[str, ...]) -> tuple[Path, Path]:
    from podkeep.apiserver.server import certificates

    node = config.agent.own_name()
    own = certificates.Files(Path(config.agent.root))
    wanted = msgspec.structs.replace(certificates.of_node(node, addresses)[1], name=_NAME)
    certificates.keep(files, own, wanted, int(time.time()))
    return own.certificate(_NAME), own.key(_NAME)
