"""What a pod's resolv.conf holds, from its dnsPolicy and dnsConfig and the node's own file. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from podkeep.api.pod import PodDNSConfig, PodSpec

_MAX_SERVERS = 3


@dataclass(frozen=True, kw_only=True)
class ResolvConf:
    """Name servers, search domains and options (resolv.conf(5); CRI: DNSConfig)."""

    servers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


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
            searches = tuple(words[1:])
        elif words[0] == "options":
            options += words[1:]
    return ResolvConf(servers=tuple(servers), searches=searches, options=tuple(options))


def resolv_conf(spec: PodSpec, node: ResolvConf) -> ResolvConf:
    """Return the pod's resolv.conf.

    Without a cluster there is no cluster DNS: ``ClusterFirst`` is then the node's own, as for a kubelet without
    ``clusterDNS``. ``None`` starts empty. ``dnsConfig`` is added; its options replace those of the same name.
    """
    base = ResolvConf() if spec.dns_policy == "None" else node
    return base if spec.dns_config is None else _merge(base, spec.dns_config)


def _merge(base: ResolvConf, config: PodDNSConfig) -> ResolvConf:
    options = {option.partition(":")[0]: option for option in base.options}
    for option in config.options:
        options[option.name] = option.name if option.value is None else f"{option.name}:{option.value}"
    return ResolvConf(
        servers=_unique((*base.servers, *config.nameservers))[:_MAX_SERVERS],
        searches=_unique((*base.searches, *config.searches)),
        options=tuple(options.values()),
    )


def _unique(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))
