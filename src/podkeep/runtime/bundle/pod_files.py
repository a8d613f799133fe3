"""The files that every container of a pod gets from the runtime: resolv.conf, hosts, hostname. Texts, paths; pure."""

from __future__ import annotations

from collections.abc import Sequence

from podkeep.runtime.model.layout import Layout
from podkeep.runtime.model.records import Dns, NamespaceMode, Sandbox, SandboxConfig
from podkeep.runtime.oci.mounts import PodFiles


def paths(layout: Layout, sandbox: Sandbox) -> PodFiles:
    """Return the host paths of what every container of the sandbox gets."""
    # A pod in a user namespace sees the files through an idmapped copy of their directory, made once for the pod.
    mapped = sandbox.config.namespaces.userns is not None
    data = layout.mapped_files(sandbox.id) if mapped else layout.sandbox_data(sandbox.id)
    shared_ipc = sandbox.config.namespaces.ipc is NamespaceMode.POD
    return PodFiles(
        hosts=str(data / "hosts"),
        hostname=str(data / "hostname") if sandbox.config.hostname else "",
        resolv_conf=str(data / "resolv.conf"),
        shm=str(layout.shm(sandbox.id)) if shared_ipc else "",
    )


def resolv_conf(dns: Dns | None, machine: str) -> str:
    """Return the pod's resolv.conf (CRI: DNSConfig); without a DNS configuration, the machine's own text."""
    if dns is None or not (dns.servers or dns.searches or dns.options):
        return machine
    lines = []
    if dns.searches:
        lines.append("search " + " ".join(dns.searches))
    lines += [f"nameserver {server}" for server in dns.servers]
    if dns.options:
        lines.append("options " + " ".join(dns.options))
    return "\n".join(lines) + "\n"


def hosts(config: SandboxConfig, addresses: Sequence[str], machine: str) -> str:
    """Return the pod's hosts file, with its name for each of its addresses; on the host network, the machine's own."""
    if config.namespaces.network is not NamespaceMode.POD:
        return machine
    lines = [
        "127.0.0.1\tlocalhost",
        "::1\tlocalhost ip6-localhost ip6-loopback",
        "fe00::0\tip6-localnet",
        "ff02::1\tip6-allnodes",
        "ff02::2\tip6-allrouters",
    ]
    if config.hostname:
        lines += [f"{address}\t{config.hostname}" for address in addresses]
    return "\n".join(lines) + "\n"
