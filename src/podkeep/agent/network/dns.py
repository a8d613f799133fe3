"""What a pod's resolv.conf holds, from its dnsPolicy and dnsConfig and the node's own file. Pure."""

from __future__ import annotations

from podkeep.api.pod import Pod, PodDNSConfig
from podkeep.base.frozen import FrozenStruct

_MAX_SERVERS, _MAX_SEARCHES = 3, 32
_MAX_SEARCH, _MAX_SEARCH_LINE = 253, 2048
"""Characters of a search domain, and of all together (kubelet, as for clusters of Kubernetes 1.26 and newer)."""


class ResolvConf(FrozenStruct, kw_only=True):
    """Name servers, search domains and options (resolv.conf(5); CRI: DNSConfig)."""

    servers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


NO_LOOKUPS = ResolvConf(servers=("127.0.0.1",), searches=(".",))
"""What pods get that would have the node's, if it has none on purpose (kubelet: ``resolvConf: ""``)."""


def parse(text: str) -> ResolvConf:
    """Return what the text of a resolv.conf says; the last ``search`` wins, unknown keywords are skipped."""
    servers: list[str] = []
    searches: tuple[str, ...] = ()
    options: list[str] = []
    for line in text.splitlines():
        words = line.split("#", 1)[0].split(";", 1)[0].split()
        if len(words) < 2:
            continue
        if words[0] == "nameserver":
            servers.append(words[1])
        elif words[0] in {"search", "domain"}:
            searches = tuple(word.removesuffix(".") for word in words[1:] if word != ".")
        elif words[0] == "options":
            options += words[1:]
    return ResolvConf(servers=tuple(servers), searches=searches, options=tuple(options))


class ClusterDns(FrozenStruct, kw_only=True):
    """The DNS servers of a cluster and its domain (kubelet: ``clusterDNS``, ``clusterDomain``); empty: it has none."""

    servers: tuple[str, ...] = ()
    domain: str = ""


class PodDns(FrozenStruct, kw_only=True):
    """A pod's resolv.conf, and what did not fit into it, as messages of events ``DNSConfigForming``."""

    conf: ResolvConf
    problems: tuple[str, ...] = ()


def pod_dns(pod: Pod, node: ResolvConf, cluster: ClusterDns) -> PodDns:
    """Return the pod's resolv.conf.

    ``ClusterFirst`` is the cluster's, and the node's own where there is none, and on the node's network (kubelet).
    ``None`` starts empty. ``dnsConfig`` is added; its options replace those of the same name.
    """
    spec = pod.spec
    conf = _base(pod, node, cluster)
    return _fitted(conf if spec.dns_config is None else _merge(conf, spec.dns_config))


def _base(pod: Pod, node: ResolvConf, cluster: ClusterDns) -> ResolvConf:
    policy, host_network = pod.spec.dns_policy or "ClusterFirst", pod.spec.host_network
    if policy == "None":
        return ResolvConf()
    is_cluster = policy == "ClusterFirstWithHostNet" or (policy == "ClusterFirst" and not host_network)
    if not is_cluster or not cluster.servers:
        return node
    searches = () if node == NO_LOOKUPS else node.searches
    if cluster.domain:
        inside = f"svc.{cluster.domain}"
        searches = (f"{pod.metadata.namespace}.{inside}", inside, cluster.domain, *searches)
    # Names with fewer than five dots, such as those of services, are looked up in the search domains first
    # (resolv.conf(5); kubelet, defaultDNSOptions).
    return ResolvConf(servers=cluster.servers, searches=_unique(searches), options=("ndots:5",))


def _merge(base: ResolvConf, config: PodDNSConfig) -> ResolvConf:
    options = {option.partition(":")[0]: option for option in base.options}
    for option in config.options:
        options[option.name] = option.name if not option.value else f"{option.name}:{option.value}"
    return ResolvConf(
        servers=_unique((*base.servers, *config.nameservers)),
        searches=_unique((*base.searches, *config.searches)),
        options=tuple(options.values()),
    )


def _fitted(conf: ResolvConf) -> PodDns:
    """Return what of ``conf`` resolvers take."""
    problems = []
    servers = conf.servers[:_MAX_SERVERS]
    if servers != conf.servers:
        problems.append(
            "Nameserver limits were exceeded, some nameservers have been omitted, "
            f"the applied nameserver line is: {' '.join(servers)}"
        )
    # A longer one ends glibc 2.28.
    searches = [search for search in conf.searches[:_MAX_SEARCHES] if len(search) <= _MAX_SEARCH]
    while len(" ".join(searches)) > _MAX_SEARCH_LINE:
        searches.pop()
    if len(searches) != len(conf.searches):
        problems.append(
            "Search Line limits were exceeded, some search paths have been omitted, "
            f"the applied search line is: {' '.join(searches)}"
        )
    fitted = ResolvConf(servers=servers, searches=tuple(searches), options=conf.options)
    return PodDns(conf=fitted, problems=tuple(problems))


def _unique(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))
