"""Validation of probes and hooks of containers (core/validation: ``validateProbe``, ``validateLifecycle``)."""

from __future__ import annotations

import re

from podkeep.api import names
from podkeep.api.containers import Container, HTTPGetAction, Lifecycle, LifecycleHandler, Probe
from podkeep.api.fields import FieldErrors
from podkeep.api.structs import json_name

_COUNTS = ("initial_delay_seconds", "timeout_seconds", "period_seconds", "success_threshold", "failure_threshold")
_PROBE_HANDLERS = ("exec", "http_get", "tcp_socket", "grpc")
_HOOK_HANDLERS = ("exec", "http_get", "tcp_socket", "sleep")
_HEADER = re.compile(r"[-A-Za-z0-9]+")

STOP_SIGNALS = tuple(
    sorted(
        f"SIG{name}"
        for name in (
            *"ABRT ALRM BUS CHLD CLD CONT FPE HUP ILL INT IO IOT KILL PIPE POLL PROF PWR QUIT SEGV STKFLT STOP".split(),
            *"SYS TERM TRAP TSTP TTIN TTOU URG USR1 USR2 VTALRM WINCH XCPU XFSZ RTMIN RTMAX".split(),
            *(f"RTMIN+{number}" for number in range(1, 16)),
            *(f"RTMAX-{number}" for number in range(1, 15)),
        )
    )
)
"""Names of signals of Linux (KEP-4960)."""


def validate_handlers(container: Container, path: str, grace: int, os: str, errors: FieldErrors) -> None:
    """Note every rule that the probes and hooks of a container break.

    :param grace: the pod's grace period in seconds, which a sleeping hook must keep to.
    :param os: the pod's operating system; empty if it says none.
    """
    if container.lifecycle is not None:
        _lifecycle(container.lifecycle, f"{path}.lifecycle", grace, errors)
        _stop_signal(container.lifecycle.stop_signal, f"{path}.lifecycle.stopSignal", os, errors)
    for name in ("liveness_probe", "readiness_probe", "startup_probe"):
        probe: Probe | None = getattr(container, name)
        if probe is None:
            continue
        where = f"{path}.{json_name(name)}"
        _probe(probe, where, grace, errors)
        if name != "readiness_probe":
            if probe.success_threshold != 1:
                errors.invalid(f"{where}.successThreshold", probe.success_threshold, "must be 1")
        elif probe.termination_grace_period_seconds is not None:
            seconds = probe.termination_grace_period_seconds
            errors.invalid(f"{where}.terminationGracePeriodSeconds", seconds, "must not be set for readinessProbes")


def forbid_handlers(container: Container, path: str, errors: FieldErrors) -> None:
    """Note probes and hooks of an init container that ends before others begin."""
    for name in ("lifecycle", "liveness_probe", "readiness_probe", "startup_probe"):
        if getattr(container, name) is not None:
            why = "may not be set for init containers without restartPolicy=Always"
            errors.forbidden(f"{path}.{json_name(name)}", why)


def _lifecycle(lifecycle: Lifecycle, path: str, grace: int, errors: FieldErrors) -> None:
    for name, handler in (("postStart", lifecycle.post_start), ("preStop", lifecycle.pre_stop)):
        if handler is not None:
            _handler(handler, _HOOK_HANDLERS, f"{path}.{name}", grace, errors)


def _stop_signal(signal: str | None, path: str, os: str, errors: FieldErrors) -> None:
    if signal is not None and not os:
        errors.forbidden(path, "may not be set for containers with empty `spec.os.name`")
    elif signal is not None and signal not in STOP_SIGNALS:
        errors.unsupported(path, signal, STOP_SIGNALS)


def _probe(probe: Probe, path: str, grace: int, errors: FieldErrors) -> None:
    _handler(probe, _PROBE_HANDLERS, path, grace, errors)
    for name in _COUNTS:
        if getattr(probe, name) < 0:
            errors.invalid(f"{path}.{json_name(name)}", getattr(probe, name), "must be greater than or equal to 0")
    seconds = probe.termination_grace_period_seconds
    if seconds is not None and seconds <= 0:
        errors.invalid(f"{path}.terminationGracePeriodSeconds", seconds, "must be greater than 0")


def _handler(
    handler: Probe | LifecycleHandler, known: tuple[str, ...], path: str, grace: int, errors: FieldErrors
) -> None:
    given = [name for name in known if getattr(handler, name) is not None]
    if not given:
        errors.add(path, "Required value: must specify a handler type")
        return
    for name in given[1:]:
        errors.forbidden(f"{path}.{json_name(name)}", "may not specify more than 1 handler type")
    where, action = f"{path}.{json_name(given[0])}", getattr(handler, given[0])
    if given[0] == "exec":
        errors.required(f"{where}.command", action.command)
    elif given[0] == "sleep":
        if not 0 <= action.seconds <= grace:
            why = f"must be non-negative and less than terminationGracePeriodSeconds ({grace})"
            errors.invalid(where, action.seconds, why)
    else:
        _port(action.port, f"{where}.port", errors)
        if isinstance(action, HTTPGetAction):
            _http_get(action, where, errors)


def _http_get(action: HTTPGetAction, path: str, errors: FieldErrors) -> None:
    errors.required(f"{path}.path", action.path)
    for header in action.http_headers:
        if not _HEADER.fullmatch(header.name):
            why = (
                "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used"
                " for validation is '[-A-Za-z0-9]+')"
            )
            errors.invalid(f"{path}.httpHeaders", header.name, why)


def _port(port: int | str, path: str, errors: FieldErrors) -> None:
    if isinstance(port, int):
        if not 0 < port < 65536:
            errors.invalid(path, port, "must be between 1 and 65535, inclusive")
        return
    for why in names.port_name_problems(port):
        errors.invalid(path, port, why)
