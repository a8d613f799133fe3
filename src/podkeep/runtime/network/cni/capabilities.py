"""What a pod asks of its network beyond an address, in the form of CNI's capabilities. Pure.

Source: CNI's CONVENTIONS.md, "Dynamic Plugin specific fields"; Kubernetes, "Network Plugins", for the annotations.
"""

from __future__ import annotations

import re
from decimal import Decimal

from podkeep.base.errors import InvalidArgument
from podkeep.base.text.printable import quoted
from podkeep.runtime.model.records import SandboxConfig
from podkeep.runtime.network.cni.conflist import Json

INGRESS = "kubernetes.io/ingress-bandwidth"
EGRESS = "kubernetes.io/egress-bandwidth"
_MIN_RATE, _MAX_RATE = 1000, 10**15
"""Bits per second; what Kubernetes accepts."""
_BURST = 0xFFFFFFFF
"""The largest that the bandwidth plugin takes: no packet is too large for it."""
# At most 60 digits: with many more Decimal raises Overflow.
_QUANTITY = re.compile(r"([0-9]{1,60}(?:\.[0-9]{0,60})?|\.[0-9]{1,60})([kMGTPE]|[KMGTPE]i|[mun]|[eE][+-]?[0-9]{1,2})?")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


def capabilities(config: SandboxConfig, cgroup: str) -> Json:
    """Return every capability that a sandbox has arguments for; each plugin gets the ones in its configuration.

    :raises InvalidArgument: if an annotation is no bandwidth.
    """
    found: Json = {"cgroupPath": cgroup}
    if config.host_ports:
        found["portMappings"] = [
            {
                "hostPort": port.host_port,
                "containerPort": port.container_port,
                "protocol": port.protocol,
                "hostIP": port.host_ip,
            }
            for port in config.host_ports
        ]
    if bandwidth := _bandwidth(config.annotations):
        found["bandwidth"] = bandwidth
    if config.dns is not None:
        found["dns"] = {
            "servers": list(config.dns.servers),
            "searches": list(config.dns.searches),
            "options": list(config.dns.options),
        }
    if config.annotations:
        found["io.kubernetes.cri.pod-annotations"] = dict(config.annotations)
    return found


def _bandwidth(annotations: dict[str, str]) -> Json:
    found: Json = {}
    for annotation, name in ((INGRESS, "ingress"), (EGRESS, "egress")):
        if annotation in annotations:
            found[f"{name}Rate"] = rate(annotation, annotations[annotation])
            found[f"{name}Burst"] = _BURST
    return found


def rate(annotation: str, text: str) -> int:
    """Return a quantity as bits per second.

    :raises InvalidArgument: naming the annotation, if it is not between 1k and 1P.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise InvalidArgument(f"annotation {annotation}: {quoted(text)} is no quantity", hint="write it as 10M")
    number, suffix = Decimal(match[1]), match[2] or ""
    if suffix.endswith("i"):
        value = number * 1024 ** ("KMGTPE".index(suffix[0]) + 1)
    elif suffix[:1] in {"e", "E"} and len(suffix) > 1:
        value = number.scaleb(int(suffix[1:]))
    else:
        value = number.scaleb(_DECIMAL[suffix])
    if not _MIN_RATE <= value <= _MAX_RATE:
        raise InvalidArgument(f"annotation {annotation}: {quoted(text)} is not between 1k and 1P bits per second")
    return int(value)


def arguments(sandbox_id: str, config: SandboxConfig) -> tuple[tuple[str, str], ...]:
    """Return CNI_ARGS as Kubernetes' plugins know them.

    :raises InvalidArgument: if a name holds what would be another argument.
    """
    for name, value in (("name", config.name), ("namespace", config.namespace), ("uid", config.uid)):
        if ";" in value or "=" in value:
            raise InvalidArgument(
                f"config.metadata.{name}: {quoted(value)}: CNI plugins cannot be told names with ; or ="
            )
    return (
        ("IgnoreUnknown", "1"),
        ("K8S_POD_NAMESPACE", config.namespace),
        ("K8S_POD_NAME", config.name),
        ("K8S_POD_INFRA_CONTAINER_ID", sandbox_id),
        ("K8S_POD_UID", config.uid),
    )
