"""The /etc/hosts file of a pod, written by the agent because it holds the pod's own address. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from podkeep.api.pod import HostAlias, PodSpec

# As a kubelet writes all of it (managedHostsFileContent). By the first line programs, and Kubernetes' conformance
# tests, know a file that the node manages.
_HEADER = "# Kubernetes-managed hosts file.\n"
_HEADER_OF_HOST = "# Kubernetes-managed hosts file (host network).\n"
_LOCAL = """127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
fe00::0\tip6-localnet
fe00::0\tip6-mcastprefix
fe00::1\tip6-allnodes
fe00::2\tip6-allrouters
"""


def render(spec: PodSpec, hostname: str, pod_ips: Sequence[str], host_file: str, domain: str = "") -> str:
    """Return the content of a pod's /etc/hosts.

    :param pod_ips: addresses of the pod; each gets the pod's name, in full where it has a ``domain``.
    :param host_file: the node's own file, which is what a pod with ``hostNetwork`` sees.
    """
    if spec.host_network:
        text = _HEADER_OF_HOST + host_file
        text += "" if host_file.endswith("\n") or not host_file else "\n"
    else:
        names = f"{hostname}.{domain}\t{hostname}" if domain else hostname
        text = _HEADER + _LOCAL + "".join(f"{address}\t{names}\n" for address in pod_ips)
    return text + _aliases(spec.host_aliases)


def _aliases(aliases: Sequence[HostAlias]) -> str:
    if not aliases:
        return ""
    lines = (f"{alias.ip}\t{chr(9).join(alias.hostnames)}\n" for alias in aliases)
    return "\n# Entries added by HostAliases.\n" + "".join(lines)
