"""A kubelet's configuration file (``kubelet.config.k8s.io/v1beta1``) as settings of ``[agent]``.

A field has the name of a setting in camel case; its times become seconds. What has no setting means nothing here, and
is told of; what no kubelet knows is an error. Pure, but for reading the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from podkeep.agent import durations
from podkeep.agent.node_status import registration
from podkeep.api import documents, feature_gates
from podkeep.base.config import Config
from podkeep.base.errors import InvalidArgument
from podkeep.base.frozen import FrozenStruct

API_VERSION, KIND = "kubelet.config.k8s.io/v1beta1", "KubeletConfiguration"
MAX_BYTES = 1 << 20
_DROP_IN = ".conf"
"""What the names of files in a drop-in directory end with."""

_BOOL, _INT, _FLOAT, _TEXT, _TIME = "a boolean", "an integer", "a number", "a string", "a duration, as 1m30s"
_TEXTS, _INTS, _MAP, _TIMES, _BOOLS = "strings", "integers", "strings by name", "durations by name", "booleans by name"
_ANY = "anything"
_Form = str | dict[str, Any]

FIELDS: dict[str, _Form] = {
    **dict.fromkeys(
        "enableServer rotateCertificates serverTLSBootstrap enableDebuggingHandlers enableContentionProfiling"
        " cgroupsPerQOS singleProcessOOMKill runOnce cpuCFSQuota serializeImagePulls mergeDefaultEvictionSettings"
        " enableControllerAttachDetach protectKernelDefaults makeIPTablesUtilChains failSwapOn kernelMemcgNotification"
        " enableSystemLogHandler enableSystemLogQuery enableProfilingHandler enableDebugFlagsHandler seccompDefault"
        " registerNode localStorageCapacityIsolation failCgroupV1".split(),
        _BOOL,
    ),
    **dict.fromkeys(
        "port readOnlyPort registryPullQPS registryBurst eventRecordQPS eventBurst healthzPort oomScoreAdj"
        " nodeLeaseDurationSeconds imageGCHighThresholdPercent imageGCLowThresholdPercent maxPods podPidsLimit"
        " nodeStatusMaxImages maxOpenFiles kubeAPIQPS kubeAPIBurst maxParallelImagePulls evictionMaxPodGracePeriod"
        " podsPerCore iptablesMasqueradeBit iptablesDropBit containerLogMaxFiles containerLogMaxWorkers".split(),
        _INT,
    ),
    **dict.fromkeys(
        "staticPodPath podLogsDir staticPodURL address tlsCertFile tlsPrivateKeyFile tlsMinVersion"
        " imagePullCredentialsVerificationPolicy healthzBindAddress clusterDomain kubeletCgroups systemCgroups"
        " cgroupRoot cgroupDriver cpuManagerPolicy memoryManagerPolicy topologyManagerPolicy topologyManagerScope"
        " hairpinMode podCIDR resolvConf contentType containerLogMaxSize configMapAndSecretChangeDetectionStrategy"
        " reservedSystemCPUs showHiddenMetricsForVersion systemReservedCgroup kubeReservedCgroup volumePluginDir"
        " providerID memoryReservationPolicy containerRuntimeEndpoint imageServiceEndpoint".split(),
        _TEXT,
    ),
    **dict.fromkeys(
        "syncFrequency fileCheckFrequency httpCheckFrequency streamingConnectionIdleTimeout nodeStatusUpdateFrequency"
        " nodeStatusReportFrequency imageMinimumGCAge imageMaximumGCAge volumeStatsAggPeriod cpuManagerReconcilePeriod"
        " runtimeRequestTimeout cpuCFSQuotaPeriod evictionPressureTransitionPeriod containerLogMonitorInterval"
        " shutdownGracePeriod shutdownGracePeriodCriticalPods".split(),
        _TIME,
    ),
    **dict.fromkeys(
        "tlsCipherSuites preloadedImagesVerificationAllowlist clusterDNS enforceNodeAllocatable"
        " allowedUnsafeSysctls".split(),
        _TEXTS,
    ),
    **dict.fromkeys(
        "cpuManagerPolicyOptions topologyManagerPolicyOptions qosReserved evictionHard evictionSoft"
        " evictionMinimumReclaim systemReserved kubeReserved".split(),
        _MAP,
    ),
    **dict.fromkeys(
        "staticPodURLHeader logging reservedMemory shutdownGracePeriodByPodPriority registerWithTaints tracing".split(),
        _ANY,
    ),
    "tlsCurvePreferences": _INTS,
    "evictionSoftGracePeriod": _TIMES,
    "featureGates": _BOOLS,
    "memoryThrottlingFactor": _FLOAT,
    "memorySwap": {"swapBehavior": _TEXT},
    "crashLoopBackOff": {"maxContainerRestartPeriod": _TIME},
    "userNamespaces": {"idsPerPod": _INT},
    "authentication": {
        "x509": {"clientCAFile": _TEXT},
        "webhook": {"enabled": _BOOL, "cacheTTL": _TIME},
        "anonymous": {"enabled": _BOOL},
    },
    "authorization": {
        "mode": _TEXT,
        "webhook": {"cacheAuthorizedTTL": _TIME, "cacheUnauthorizedTTL": _TIME},
    },
}
"""Every field of a kubelet 1.36, with its form."""

ELSEWHERE = {
    "podLogsDir": "agent.pod_logs",
    "containerRuntimeEndpoint": "runtime.socket",
    "cgroupDriver": "runtime.cgroup_driver",
    "kubeAPIQPS": "agent.kube_api_qps",
}
"""Fields whose settings are called otherwise."""
_ZERO_IS_UNSET = frozenset({_TIME, _TEXT})
"""Forms in which a kubelet takes the empty value for one that is not given, as kubeadm writes them."""
_EMPTY_IS_SET = frozenset({"resolvConf"})
"""Fields of these forms that are pointers in Go: the empty value is one (``resolvConf: ""``, no name servers)."""
_ZERO_IS_DEFAULT = frozenset({"port", "registryBurst", "eventBurst", "nodeLeaseDurationSeconds", "maxPods"})
"""Integers of which a kubelet takes 0 for the default, since they are none (``SetDefaults_KubeletConfiguration``)."""
_MERGE_EVICTIONS = "mergeDefaultEvictionSettings"
"""The field by which a file keeps the default eviction thresholds that it does not name (:func:`_of_main`)."""
_EVICTION_HARD = "agent.eviction_hard"
_UPDATE, _REPORT = "agent.node_status_update_frequency", "agent.node_status_report_frequency"
_KINDS: dict[str, tuple[type, ...]] = {
    _BOOL: (bool,),
    _INT: (int,),
    _FLOAT: (int, float),
    _TEXT: (str,),
    _TIME: (str,),
}
_ELEMENTS = {_TEXTS: str, _INTS: int}
_VALUES = {_MAP: str, _TIMES: str, _BOOLS: bool}
_GATES = frozenset(gate.name for gate in feature_gates.KNOWN if "agent" in gate.components)
# Go takes both signs for micro: U+00B5 and U+03BC (time.ParseDuration).
_PART = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


class Read(FrozenStruct, kw_only=True):
    """What a file says: settings by key (``agent.port``), and the fields that mean nothing here."""

    settings: Mapping[str, Any]
    ignored: tuple[str, ...]


def seconds(text: str) -> float:
    """Return a duration as Go writes it in seconds.

    :raises ValueError: if it is not one.
    """
    rest = text[1:] if text[:1] in ("+", "-") else text
    if rest == "0":
        return 0.0
    parts = list(_PART.finditer(rest))
    if not parts or "".join(match[0] for match in parts) != rest or len(text) > 100:
        raise ValueError(text[:100])
    total = sum(float(match[1]) * _UNITS[match[2]] for match in parts)
    return -total if text.startswith("-") else total


def snake(name: str) -> str:
    """Return the setting of a field's name: ``cpuCFSQuota`` is ``cpu_cfs_quota``, ``clusterDNS`` ``cluster_dns``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def read(document: Mapping[str, Any], source: str) -> Read:
    """Return what a file says.

    :raises InvalidArgument: naming the field, if it is not a KubeletConfiguration, or has an unknown field or a wrong
        type.
    """
    settings: dict[str, Any] = {}
    ignored: list[str] = []
    for key, value in document.items():
        if key in ("apiVersion", "kind"):
            continue
        for path, form, found in _leaves(source, key, FIELDS.get(key), value):
            # kubeadm writes every field of the Go type, the empty ones too.
            if found is None or path == _MERGE_EVICTIONS or _is_unset(path, form, found):
                continue
            if path == "featureGates":
                known = {name: on for name, on in found.items() if name in _GATES}
                ignored += [f"featureGates.{name}" for name in found if name not in known]
                found = known
            setting = ELSEWHERE.get(path) or f"agent.{snake(path)}"
            if _is_known(setting):
                settings[setting] = _converted(path, found)
            elif not _is_empty(found):
                ignored.append(path)
    return Read(settings=settings, ignored=tuple(ignored))


def _is_unset(path: str, form: str, value: Any) -> bool:
    """Return whether a kubelet takes a value for one that is not given."""
    if form in _ZERO_IS_UNSET:
        return value in ("", 0.0) and path not in _EMPTY_IS_SET
    return path in _ZERO_IS_DEFAULT and value == 0


def _leaves(source: str, path: str, form: _Form | None, value: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield the fields of a value that have no fields themselves: path, form, value; times in seconds."""
    if form is None:
        raise InvalidArgument(
            f"{source}: {path}: unknown field", hint=f"remove it; {KIND} of {API_VERSION} has no such field"
        )
    if value is None:
        return
    if isinstance(form, dict):
        if not isinstance(value, dict):
            raise InvalidArgument(f"{source}: {path}: expected an object")
        for key, inner in value.items():
            yield from _leaves(source, f"{path}.{key}", form.get(key), inner)
        return
    yield path, form, _checked(source, path, form, value)


def _checked(source: str, path: str, form: str, value: Any) -> Any:
    wrong = InvalidArgument(f"{source}: {path}: expected {form}")
    if form in _KINDS and (not isinstance(value, _KINDS[form]) or (form != _BOOL and isinstance(value, bool))):
        raise wrong
    # By the exact type, since a boolean is an integer to isinstance.
    if form in _ELEMENTS and not (isinstance(value, list) and all(type(item) is _ELEMENTS[form] for item in value)):
        raise wrong
    if form in _VALUES and not (
        isinstance(value, dict) and all(type(item) is _VALUES[form] for item in value.values())
    ):
        raise wrong
    try:
        if form == _TIME:
            return seconds(value)
        if form == _TIMES:
            return {key: seconds(text) for key, text in value.items()}
    except ValueError:
        raise wrong from None
    return value


def _is_known(setting: str) -> bool:
    kind: Any = Config
    for part in setting.split("."):
        fields = {field.name: field.type for field in msgspec.structs.fields(kind)} if _is_struct(kind) else {}
        if part not in fields:
            return False
        kind = fields[part]
    return True


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _converted(path: str, value: Any) -> Any:
    if path == "shutdownGracePeriodByPodPriority" and isinstance(value, list):
        names = {"shutdownGracePeriodSeconds": "seconds"}
        return [
            {names.get(key, key): inner for key, inner in item.items()} if isinstance(item, dict) else item
            for item in value
        ]
    if path == "registerWithTaints" and isinstance(value, list):
        return [_taint(item) for item in value]
    return value


def _taint(item: Any) -> Any:
    """Return a v1.Taint as ``agent.register_with_taints`` has it."""
    if not isinstance(item, dict) or not isinstance(item.get("key"), str):
        return item
    value = f"={item['value']}" if item.get("value") else ""
    return f"{item['key']}{value}:{item.get('effect', '')}"


def _is_empty(value: Any) -> bool:
    """Return whether a value says nothing, as kubeadm writes the fields of ``logging``."""
    if isinstance(value, dict):
        return all(map(_is_empty, value.values()))
    return value in (None, "", 0, "0", "0s") or value == []


def load(file: Path | None, directory: Path | None = None) -> Read:
    """Read a file, and the drop-in files of a directory that add to it, in the order of their names.

    :raises InvalidArgument: naming the file, if one cannot be read or understood.
    """
    files = [file] if file is not None else []
    if directory is not None:
        try:
            files += sorted(path for path in directory.iterdir() if path.name.endswith(_DROP_IN) and path.is_file())
        except OSError as error:
            raise InvalidArgument(f"{directory}: {error.strerror}") from error
    settings: dict[str, Any] = {}
    ignored: dict[str, None] = {}
    for path in files:
        document = _document(path)
        found = read(document, str(path))
        given = _of_main(document, found.settings) if path is file else found.settings
        for key, value in given.items():
            before = settings.get(key, _default_evictions() if key == _EVICTION_HARD and path is not file else None)
            # As a kubelet merges drop-in files: maps key by key, lists as a whole.
            settings[key] = {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value
        ignored |= dict.fromkeys(found.ignored)
    return Read(settings=settings, ignored=tuple(ignored))


def _of_main(document: Mapping[str, Any], settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of the file that drop-in files add to, with what follows from others of it."""
    found = dict(settings)
    if _EVICTION_HARD in found and document.get(_MERGE_EVICTIONS):
        found[_EVICTION_HARD] = _default_evictions() | found[_EVICTION_HARD]
    if _UPDATE in found:
        # As a kubelet has it for those who set one of them before there was the other.
        found.setdefault(_REPORT, found[_UPDATE])
    return found


def _default_evictions() -> dict[str, str]:
    return Config().agent.eviction_hard


def _document(path: Path) -> Mapping[str, Any]:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidArgument(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{path}: not UTF-8 text") from error
    if len(text) > MAX_BYTES:
        raise InvalidArgument(f"{path}: larger than {MAX_BYTES >> 20} MiB")
    found = [document.value for document in documents.parse(text, source=str(path))]
    if len(found) != 1 or not isinstance(found[0], dict):
        raise InvalidArgument(f"{path}: not one {KIND}")
    value = found[0]
    if (value.get("apiVersion"), value.get("kind")) != (API_VERSION, KIND):
        raise InvalidArgument(
            f"{path}: not a {KIND} of {API_VERSION}", hint=f"begin it with apiVersion: {API_VERSION} and kind: {KIND}"
        )
    return value


def assignments(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as ``KEY=VALUE``, as ``--set`` takes them."""
    return [f"{key}={_toml(value)}" for key, value in settings.items()]


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_text(key)} = {_toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return _text(value)


def _text(value: Any) -> str:
    # A TOML string may be written as JSON but for DEL, which JSON leaves as it is and TOML forbids.
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")


def in_force(config: Config) -> dict[str, Any]:
    """Return the configuration as a kubelet shows it at ``/configz``: the fields that mean something here."""
    return {"kind": KIND, "apiVersion": API_VERSION} | dict(_shown(config, "", FIELDS))


def _shown(config: Config, path: str, fields: Mapping[str, _Form]) -> Iterator[tuple[str, Any]]:
    for key, form in fields.items():
        place = f"{path}{key}"
        if isinstance(form, dict):
            if inner := dict(_shown(config, f"{place}.", form)):
                yield key, inner
            continue
        setting = ELSEWHERE.get(place) or f"agent.{snake(place)}"
        if _is_known(setting):
            yield key, _kubelets(form, _value(config, setting.split(".")))


def _value(config: Config, names: Iterable[str]) -> Any:
    found: Any = config
    for name in names:
        found = getattr(found, name)
    return msgspec.to_builtins(found)


def _kubelets(form: str, value: Any) -> Any:
    if form == _INT and isinstance(value, float):
        return int(value)
    if form == _TIME:
        return durations.text(value)
    if form == _TIMES:
        return {key: durations.text(inner) for key, inner in value.items()}
    if form == _ANY and isinstance(value, list | tuple):
        names = {"seconds": "shutdownGracePeriodSeconds"}
        return [
            registration.taint(item)
            if isinstance(item, str)
            else {names.get(key, key): inner for key, inner in item.items()}
            for item in value
        ]
    return value
