"""Validation of probes and lifecycle hooks (core/validation: ``validateProbe``, ``validateLifecycle``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from podkeep.api.validation.handlers import STOP_SIGNALS
from podkeep.apiserver.kinds import field_rules
from podkeep.apiserver.kinds.field_rules import named, required
from podkeep.apiserver.kinds.pods.validation import fields as pod_fields
from podkeep.apiserver.kinds.pods.validation.fields import Context

_COUNTS = ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold")
_PROBE_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc")
_HOOK_HANDLERS = ("exec", "httpGet", "tcpSocket", "sleep")
_SCHEMES = ("HTTP", "HTTPS")
_WINDOWS_SIGNALS = ("SIGKILL", "SIGTERM")

Values = Mapping[str, Any]


def validate_handlers(container: Values, path: str, context: Context) -> None:
    """Note every rule that the probes and hooks of a container break."""
    errors = context.errors
    if lifecycle := container.get("lifecycle"):
        for name in ("postStart", "preStop"):
            if name in lifecycle:
                _handler(lifecycle[name], f"{path}.lifecycle.{name}", _HOOK_HANDLERS, context)
        if "stopSignal" in lifecycle:
            _stop_signal(lifecycle["stopSignal"], f"{path}.lifecycle.stopSignal", context)
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        if name not in container:
            continue
        probe, where = container[name], f"{path}.{name}"
        _probe(probe, where, context)
        if name == "readinessProbe":
            if "terminationGracePeriodSeconds" in probe:
                seconds = probe["terminationGracePeriodSeconds"]
                why = "must not be set for readinessProbes"
                errors.invalid(f"{where}.terminationGracePeriodSeconds", seconds, why)
        elif probe.get("successThreshold", 0) != 1:
            errors.invalid(f"{where}.successThreshold", probe.get("successThreshold", 0), "must be 1")


def _probe(probe: Values, path: str, context: Context) -> None:
    _handler(probe, path, _PROBE_HANDLERS, context)
    field_rules.not_negative(probe, _COUNTS, path, context.errors)
    seconds = probe.get("terminationGracePeriodSeconds", 1)
    if seconds <= 0:
        context.errors.invalid(f"{path}.terminationGracePeriodSeconds", seconds, "must be greater than 0")


def _handler(handler: Values, path: str, known: Sequence[str], context: Context) -> None:
    given = [name for name in known if name in handler]
    if not given:
        required(path, "must specify a handler type", context.errors)
        return
    for name in given[1:]:
        context.errors.forbidden(f"{path}.{name}", "may not specify more than 1 handler type")
    _HANDLERS[given[0]](handler[given[0]], f"{path}.{given[0]}", context)


def _exec(action: Values, path: str, context: Context) -> None:
    context.errors.required(f"{path}.command", action.get("command"))


def _http_get(action: Values, path: str, context: Context) -> None:
    errors = context.errors
    errors.required(f"{path}.path", action.get("path"))
    field_rules.port(f"{path}.port", action.get("port", 0), errors)
    pod_fields.supported(f"{path}.scheme", action.get("scheme", ""), _SCHEMES, errors)
    for header in action.get("httpHeaders", ()):
        name = header.get("name", "")
        named(f"{path}.httpHeaders", name, pod_fields.header_name(name), errors)


def _port(action: Values, path: str, context: Context) -> None:
    field_rules.port(f"{path}.port", action.get("port", 0), context.errors)


def _sleep(action: Values, path: str, context: Context) -> None:
    seconds, most = action.get("seconds", 0), context.grace_period
    if not 0 <= seconds <= most:
        why = f"must be non-negative and less than terminationGracePeriodSeconds ({most})"
        context.errors.invalid(path, seconds, why)


_HANDLERS = {"exec": _exec, "httpGet": _http_get, "tcpSocket": _port, "grpc": _port, "sleep": _sleep}


def _stop_signal(signal: str, path: str, context: Context) -> None:
    if "os" not in context.spec:
        context.errors.forbidden(path, "may not be set for containers with empty `spec.os.name`")
    elif context.os in ("linux", "windows"):
        known = STOP_SIGNALS if context.os == "linux" else _WINDOWS_SIGNALS
        pod_fields.supported(path, signal, known, context.errors)
