"""How the agent gets at its API: with a kubeconfig, with one that it makes of a bootstrap token, or by the socket.

The kubeconfig that is made names the node's certificate by its path, so it does not change when that is renewed
(kubelet, certificate/bootstrap).
"""

from __future__ import annotations

import asyncio
import base64
import logging
from pathlib import Path

import msgspec

from podkeep.agent.certificates.manager import CertificateManager, client_certificate
from podkeep.agent.certificates.store import CertificateStore
from podkeep.base import atomicfile
from podkeep.base.config import Config
from podkeep.base.errors import InvalidArgument, refused
from podkeep.client import kubeconfig
from podkeep.client.client import Client
from podkeep.client.settings import Settings

log = logging.getLogger(__name__)


def store(config: Config) -> CertificateStore:
    """Return where the node's client certificate is."""
    return CertificateStore(Path(config.agent.root) / "pki", "kubelet-client")


def is_renewed_here(config: Config, settings: Settings) -> bool:
    """Say whether the certificate that is used is one that the agent asks the cluster for."""
    return bool(settings.certificate.path) and Path(settings.certificate.path) == store(config).current


async def settings_of(config: Config, node: str) -> Settings:
    """Return how the API is reached; wait for the cluster to sign a certificate, if there is none yet.

    :raises FailedPrecondition: if a kubeconfig cannot be read or written.
    :raises InvalidArgument: if one is wrong.
    """
    agent = config.agent
    if not agent.bootstrap_kubeconfig:
        if agent.kubeconfig:
            return kubeconfig.load([Path(agent.kubeconfig)])
        return Settings(server=f"unix://{config.api.unix_socket}")
    if not agent.kubeconfig:
        raise InvalidArgument(
            "agent.bootstrap_kubeconfig is set, and agent.kubeconfig is not",
            hint="name with agent.kubeconfig the file that is to be written",
        )
    target = Path(agent.kubeconfig)
    manager = CertificateManager(store(config), client_certificate(node))
    if target.exists():
        settings = kubeconfig.load([target])
        # A kubeconfig with other credentials is the administrator's; one of ours is of no use once its certificate has
        # expired.
        if not is_renewed_here(config, settings) or await manager.current() is not None:
            return settings
    bootstrap = kubeconfig.load([Path(agent.bootstrap_kubeconfig)])
    if await manager.current() is None:
        client = Client(bootstrap, user_agent="podkeep-agent")
        try:
            await manager.obtain(client)
        finally:
            await client.close()
    await asyncio.to_thread(_write, target, bootstrap, store(config).current)
    return kubeconfig.load([target])


def _write(target: Path, bootstrap: Settings, certificate: Path) -> None:
    """Write a kubeconfig for the same server, with a certificate in place of the bootstrap token."""
    cluster: dict[str, object] = {"server": bootstrap.server}
    if bootstrap.authority.data:
        cluster["certificate-authority-data"] = base64.b64encode(bootstrap.authority.data).decode()
    elif bootstrap.authority.path:
        cluster["certificate-authority"] = bootstrap.authority.path
    if bootstrap.insecure:
        cluster["insecure-skip-tls-verify"] = True
    if bootstrap.server_name:
        cluster["tls-server-name"] = bootstrap.server_name
    user = {"client-certificate": str(certificate), "client-key": str(certificate)}
    value = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "default-cluster", "cluster": cluster}],
        "users": [{"name": "default-auth", "user": user}],
        "contexts": [{"name": "default-context", "context": {"cluster": "default-cluster", "user": "default-auth"}}],
        "current-context": "default-context",
    }
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        atomicfile.write(target, msgspec.yaml.encode(value))
    except OSError as error:
        raise refused(f"{target} cannot be written", error) from error
    log.info("wrote %s", target)
