"""What a person asks of a pod: is it well, and if not, why, in one line. Pure, over the object as the API has it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import structs

from podkeep.base.frozen import FrozenStruct
from podkeep.base.text.printable import shortened

_MAX_MESSAGE = 300
_MIRROR = "kubernetes.io/config.mirror"
_BENIGN = ("ContainerCreating", "PodInitializing")
"""Reasons for waiting that are no problem yet."""


def is_mirror(pod: Mapping[str, Any]) -> bool:
    """Say whether an object stands for a static pod, which its node runs whatever becomes of the object."""
    return _MIRROR in ((pod.get("metadata") or {}).get("annotations") or {})


def uid_of_events(pod: Mapping[str, Any]) -> str:
    """Return the UID by which events name a pod: of a static one that which its node gave it, not its mirror's."""
    metadata = pod.get("metadata") or {}
    return str((metadata.get("annotations") or {}).get(_MIRROR) or metadata.get("uid", ""))


class Verdict(FrozenStruct, kw_only=True):
    """``state`` is what ``kubectl get`` would say; ``why`` is empty if nothing is wrong."""

    state: str
    why: str = ""

    @property
    def is_well(self) -> bool:
        return not self.why


def verdict(pod: Mapping[str, Any], events: Iterable[Mapping[str, Any]] = ()) -> Verdict:
    """Return how a pod is.

    :param events: of the pod; the newest warning says why it waits, if nothing else does.
    """
    status = pod.get("status") or {}
    phase = str(status.get("phase") or "Pending")
    happened = list(events)
    warning = newest_warning(event for event in happened if not _is_over(event, pod))
    if pod.get("metadata", {}).get("deletionTimestamp"):
        return Verdict(state="Terminating", why="")
    if phase == "Succeeded":
        return Verdict(state="Completed")
    if phase == "Failed":
        ended = next(_terminated(status, happened), "")
        # The reason is the state, and not said twice.
        said = _joined(status.get("message") or status.get("reason")) or ended or "a container failed"
        return Verdict(state=str(status.get("reason") or "Failed"), why=said)
    if problem := next(_problems(status, happened), None):
        # What its containers ended with is past; without a sandbox none of them runs again.
        return structs.replace(problem, why=_without_sandbox(status, happened) or problem.why)
    if phase == "Pending":
        return _pending(status, warning)
    if phase == "Unknown":
        return Verdict(state="Unknown", why=_joined(status.get("reason"), status.get("message")) or "its node is away")
    if is_ready(status):
        return Verdict(state="Running")
    return Verdict(state="NotReady", why=_not_ready(status, warning))


def is_ready(status: Mapping[str, Any]) -> bool:
    return any(item.get("type") == "Ready" and item.get("status") == "True" for item in status.get("conditions") or ())


def _problems(status: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> Iterator[Verdict]:
    """Yield what keeps containers from running, init containers first."""
    for container in _containers(status):
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason = str(waiting.get("reason") or "")
        if reason and reason not in _BENIGN:
            last = (container.get("lastState") or {}).get("terminated")
            ended = f"; before: {_joined(_ended(last), _cause(container, last, events))}" if last else ""
            text = _joined(waiting.get("message") or reason)
            yield Verdict(state=reason, why=f"container {container.get('name')}: {text}{ended}")
        terminated = (container.get("state") or {}).get("terminated") or {}
        if terminated.get("exitCode"):
            state = str(terminated.get("reason") or "Error")
            why = _joined(_ended(terminated), _cause(container, terminated, events))
            yield Verdict(state=state, why=f"container {container.get('name')}: {why}")


def _without_sandbox(status: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> str:
    """Return why a pod that ran has no sandbox any more; empty if it has one, as far as its containers show."""
    states = [container.get("state") or {} for container in _containers(status)]
    last = max((str((state.get("terminated") or {}).get("finishedAt") or "") for state in states), default="")
    if not last or any("running" in state for state in states):
        return ""
    failed = (event for event in events if event.get("reason") == "FailedCreatePodSandBox")
    return newest_warning(event for event in failed if event_time(event) >= last)


def _cause(container: Mapping[str, Any], terminated: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> str:
    """Return the failure of a probe or hook for which a container may have been ended: its exit status says nothing."""
    where, started = f"{{{container.get('name')}}}", str(terminated.get("startedAt") or "")
    return newest_warning(
        event
        for event in events
        if _ends_containers(event)
        and str((event.get("involvedObject") or {}).get("fieldPath")).endswith(where)
        and event_time(event) >= started
    )


def _ends_containers(event: Mapping[str, Any]) -> bool:
    if event.get("reason") == "FailedPostStartHook":
        return True
    return event.get("reason") == "Unhealthy" and str(event.get("message")).startswith(("Liveness", "Startup"))


def _is_over(event: Mapping[str, Any], pod: Mapping[str, Any]) -> bool:
    """Return whether a warning says why a pod had no node, and it has one now."""
    return event.get("reason") == "FailedScheduling" and bool((pod.get("spec") or {}).get("nodeName"))


def _pending(status: Mapping[str, Any], warning: str) -> Verdict:
    for item in status.get("conditions") or ():
        if item.get("type") == "PodScheduled" and item.get("status") == "False":
            why = _joined(item.get("reason"), item.get("message"))
            return Verdict(state="Pending", why=why or "no node has it yet")
    if status.get("resize") and not warning:
        return Verdict(state="Pending")
    waiting = next(
        (
            str(((container.get("state") or {}).get("waiting") or {}).get("reason") or "")
            for container in _containers(status)
        ),
        "",
    )
    return Verdict(state=waiting or "Pending", why=warning)


def _not_ready(status: Mapping[str, Any], warning: str) -> str:
    conditions = {item.get("type"): item for item in status.get("conditions") or ()}
    for name in ("ContainersReady", "Ready"):
        item = conditions.get(name) or {}
        if item.get("status") == "False" and item.get("message"):
            return _joined(item["message"], warning)
    return warning or "not ready yet"


def _containers(status: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    for key in ("initContainerStatuses", "containerStatuses"):
        yield from status.get(key) or ()


def _terminated(status: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for container in _containers(status):
        ended = (container.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode"):
            yield f"container {container.get('name')}: {_joined(_ended(ended), _cause(container, ended, events))}"


def _ended(terminated: Mapping[str, Any]) -> str:
    reason = str(terminated.get("reason") or "")
    words = f"exit status {terminated.get('exitCode', 0)}"
    if reason and reason != "Error":
        words = f"{reason}, {words}"
    return _joined(words, str(terminated.get("message") or "").strip())


def newest_warning(events: Iterable[Mapping[str, Any]]) -> str:
    """Return ``REASON: MESSAGE`` of the newest warning; empty if there is none."""
    warnings = [event for event in events if event.get("type") == "Warning"]
    if not warnings:
        return ""
    newest = max(warnings, key=event_time)
    return _joined(newest.get("reason"), newest.get("message"))


def event_time(event: Mapping[str, Any]) -> str:
    """Return when an event was seen last, in RFC 3339."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    first = next((str(time) for time in times if time), "")
    return first or str(event.get("metadata", {}).get("creationTimestamp") or "")


def restarts(pod: Mapping[str, Any]) -> int:
    """Return how often its containers were started again."""
    return sum(int(item.get("restartCount") or 0) for item in _containers(pod.get("status") or {}))


def _joined(*parts: object) -> str:
    """Join what is there with colons; of long texts the beginning, as one line."""
    return ": ".join(shortened(" ".join(str(part).split()), _MAX_MESSAGE) for part in parts if part)
