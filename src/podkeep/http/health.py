"""``/healthz`` and its like, with the texts that Kubernetes' servers have for them (apiserver: ``healthz``). Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from podkeep.base.frozen import FrozenStruct


class Check(FrozenStruct):
    """One check: ``look`` returns what is wrong, or nothing."""

    name: str
    look: Callable[[], str]
    only_ready: bool = False
    """It says whether requests should be sent here, not whether the process should be ended."""


PING = Check("ping", lambda: "")
LOG = Check("log", lambda: "")
"""Kubelet's, of its log: here nothing buffers it."""


def answer(
    endpoint: str, name: str, checks: Sequence[Check], *, excluded: Collection[str], verbose: bool
) -> tuple[int, str] | None:
    """Return status and text.

    :param name: of one check; empty: all.
    :returns: None if there is no such check.
    """
    chosen = [check for check in checks if not name or check.name == name]
    if not chosen:
        return None
    lines, failed = [], False
    for check in chosen:
        if check.name in excluded:
            lines.append(f"[+]{check.name} excluded: ok")
            continue
        why = check.look()
        failed = failed or bool(why)
        lines.append(f"[-]{check.name} failed: reason withheld" if why else f"[+]{check.name} ok")
    if failed:
        return 500, "\n".join((*lines, f"{endpoint} check failed", ""))
    if verbose:
        return 200, "\n".join((*lines, f"{endpoint} check passed", ""))
    return 200, "ok"
