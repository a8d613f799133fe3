"""The range of host IDs that the administrator gives to pods: what getsubids(1) says of user ``kubelet``.

KEP-127, configuration of ranges. The program is asked and not the files, as nsswitch.conf(5) may name a central
directory in their place (``subid``). Without the user or without the program there is no such configuration, and the
default range is used. Anything else that is not one range, the same for users and groups and with a block for each pod,
is an error: with other IDs than were meant, pods could get those of somebody else. Blocking.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping

from podkeep.agent.user_namespaces import subordinate_ids
from podkeep.agent.user_namespaces.blocks import NO_ID, IdRange, default_range
from podkeep.agent.user_namespaces.subordinate_ids import KUBELET
from podkeep.base import spawn
from podkeep.base.config import AgentConfig
from podkeep.base.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    NotFound,
    PodkeepError,
    ResourceExhausted,
    reason_of,
)
from podkeep.base.registries.credential_providers import last_words
from podkeep.base.text.printable import printable
from podkeep.kernel.process import process_tree, users

log = logging.getLogger(__name__)

PROGRAM = "getsubids"
TIMEOUT_S = 20.0
"""A central directory may be asked for the range."""
MAX_OUTPUT = 1 << 16
"""Bytes of both outputs; one line of less than 100 is meant to come."""
_LINE = re.compile(rb"[0-9]{1,20}: +(\S+) +([0-9]{1,20}) +([0-9]{1,20})")
_SHOWN = 200
_ALL_IDS = 1 << 32


def id_range(agent: AgentConfig, environ: Mapping[str, str] = os.environ) -> IdRange:
    """Return the host IDs that this node may give to pods.

    :param environ: ``PATH`` of it is where the program is looked for.
    :raises FailedPrecondition: if a range is configured and cannot be retrieved, or pods cannot have it.
    :raises InvalidArgument: if none is configured, and a block for each pod does not fit into the default range.
    """
    pods, length = agent.max_pods, agent.user_namespaces.ids_per_pod
    program = _program(environ)
    if program is None:
        return default_range(pods, length)
    first, count = _ask(program)
    found = checked(first, count, pods=pods, length=length)
    log.info(
        "user namespaces: pods get IDs %d-%d, which %s gives to user %s", first, first + count - 1, program, KUBELET
    )
    return found


def _program(environ: Mapping[str, str]) -> str | None:
    """Return the program to ask; ``None`` if no range is configured.

    :raises FailedPrecondition: if it cannot be told whether there is the user.
    """
    try:
        uid = users.user_id(KUBELET)
    except OSError as error:
        raise _failed(
            f"whether there is a user {KUBELET} cannot be told: {error.strerror}",
            hint=f"see why `getent passwd {KUBELET}` does not answer",
        ) from error
    program = None if uid is None else spawn.find(PROGRAM, environ.get("PATH"))
    if uid is None:
        log.info("user namespaces: there is no user %s: the default range of IDs is used", KUBELET)
    elif program is None:
        log.info("user namespaces: %s is not installed: the default range of IDs is used", PROGRAM)
    return program


def _ask(program: str) -> tuple[int, int]:
    """Return the first ID of the range and how many there are, the same for users and groups."""
    users, groups = _range(program), _range(program, "-g")
    if users != groups:
        raise _failed(
            f"user {KUBELET} has other subordinate user IDs ({_text(users)}) than group IDs ({_text(groups)})",
            hint=f"give user {KUBELET} the same range in {' and '.join(subordinate_ids.FILES)}",
        )
    return users


def _range(program: str, *options: str) -> tuple[int, int]:
    command = spawn.command_line([PROGRAM, *options, KUBELET])
    try:
        done = spawn.run_foreign(
            [program, *options, KUBELET],
            stdin=b"",
            timeout=TIMEOUT_S,
            # The output is parsed, so it must not be translated; a PATH of the agent's own must not choose what the
            # program starts.
            env={"LC_ALL": "C", "PATH": os.defpath},
            output_limit=MAX_OUTPUT,
            # What it started to ask a central directory would keep the pipes open after it was killed.
            kill_others=process_tree.kill_session,
        )
    except DeadlineExceeded as error:
        why = f"`{command}` did not end within {TIMEOUT_S:g} s and was killed"
        raise _failed(why, hint="see what it waits for: nsswitch.conf(5) says who is asked (`subid`)") from error
    except ResourceExhausted as error:
        raise _failed(f"`{command}` printed more than {MAX_OUTPUT >> 10} KiB and was killed") from error
    except (NotFound, OSError) as error:
        raise _failed(
            f"`{command}` cannot be run: {reason_of(error)}", hint="install it again (Debian: uidmap)"
        ) from error
    if done.returncode != 0:
        raise _failed(f"`{command}` failed with status {done.returncode}: {last_words(done.stderr)}")
    return _parsed(done.stdout, command)


def _parsed(output: bytes, command: str) -> tuple[int, int]:
    """Return the range in what the program printed: ``0: kubelet 65536 7208960``."""
    lines = output.strip(b"\n").split(b"\n")
    if len(lines) != 1:
        raise _failed(
            f"`{command}` printed {len(lines)} lines: user {KUBELET} may have one range only",
            hint=f"leave one line of user {KUBELET} in each of {' and '.join(subordinate_ids.FILES)}",
        )
    match = _LINE.fullmatch(lines[0].rstrip())
    if match is None or match[1] != KUBELET.encode():
        shown = printable(lines[0][:_SHOWN].decode(errors="replace"))
        raise _failed(f"`{command}` printed {shown!r}, which is not a range of user {KUBELET}")
    return int(match[2]), int(match[3])


def checked(first: int, count: int, *, pods: int, length: int) -> IdRange:
    """Return the range, if pods can have it (KEP-127, configuration of ranges)."""
    what, hint = f"the range {_text((first, count))} of user {KUBELET}", _example(pods, length)
    if first + count > _ALL_IDS:
        raise _failed(f"{what} ends beyond the last ID, {_ALL_IDS - 1}", hint=hint)
    if first % length:
        raise _failed(f"{what} does not begin at a multiple of {length}", hint=hint)
    if first < length:
        raise _failed(f"{what} begins below {length}, with IDs of the machine itself", hint=hint)
    if count % length:
        raise _failed(f"{what} has {count} IDs, which is not a multiple of {length}", hint=hint)
    # A range may reach the last ID, which the kernel maps for nobody: the block that has it is left out.
    end = min(first + count, NO_ID)
    blocks = (end - first) // length
    if blocks < pods:
        why = f"{what} has {blocks} blocks of {length} IDs, and agent.max_pods is {pods}"
        raise _failed(why, hint=f"{hint}, or lower agent.max_pods")
    found = IdRange(first=first, blocks=blocks, length=length, end=end, wanted=pods)
    try:
        shortage = found.without(subordinate_ids.read()).shortage()
    except (OSError, PodkeepError) as error:
        raise _failed(f"what other users have cannot be told: {error}") from error
    if shortage:
        raise _failed(
            f"{what} has not {pods} blocks (agent.max_pods) of its own: {shortage}",
            hint=f"take those users' ranges out of it, or give user {KUBELET} another range",
        )
    return found


def _example(pods: int, length: int) -> str:
    return (
        f"put a range such as {KUBELET}:{length}:{pods * length}, with {length} IDs for each of {pods} pods, into"
        f" {' and '.join(subordinate_ids.FILES)}"
    )


def _text(found: tuple[int, int]) -> str:
    return f"{KUBELET}:{found[0]}:{found[1]}"


def _failed(why: str, hint: str = "") -> FailedPrecondition:
    return FailedPrecondition(
        f"the ID range could not be retrieved: {why}",
        hint=hint or f"give user {KUBELET} a range in {' and '.join(subordinate_ids.FILES)}, or remove the user",
    )
