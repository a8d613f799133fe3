"""One run of a CNI plugin (CNI specification 1.1.0, section 2, execution protocol). Blocks.

Owns: the environment, input, output and errors of a plugin. Does not own: the order of plugins (``network.py``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from podkeep.base import spawn
from podkeep.base.errors import DeadlineExceeded, Internal, NotFound, PodkeepError, ResourceExhausted, Unavailable
from podkeep.base.frozen import FrozenStruct
from podkeep.runtime.network.cni.conflist import Json

TRY_AGAIN_LATER = 11
UNAVAILABLE = 50
LIMITED_CONNECTIVITY = 51
"""Codes of the specification's section "Error" that time may cure."""
_MAX_TEXT = 1000
_MAX_OUTPUT = 4 << 20
"""Bytes that a plugin may print: a result is some hundred, and is kept in the sandbox's record."""


class Call(FrozenStruct, kw_only=True):
    """What a plugin is told by its environment."""

    command: str
    container: str = ""
    netns: str = ""
    ifname: str = ""
    arguments: Sequence[tuple[str, str]] = ()

    def environment(self, directories: Sequence[Path]) -> dict[str, str]:
        """Return the variables of section "Parameters"; those that a command has not are not set, except the netns."""
        variables = {
            "CNI_COMMAND": self.command,
            "CNI_PATH": os.pathsep.join(map(str, directories)),
            "CNI_CONTAINERID": self.container,
            "CNI_IFNAME": self.ifname,
            "CNI_ARGS": ";".join(f"{key}={value}" for key, value in self.arguments),
        }
        present = {name: value for name, value in variables.items() if value}
        return {**present, "CNI_NETNS": self.netns} if self.container else present


class PluginFailed(Internal):
    """A plugin refused, or broke the protocol. ``code`` is the specification's, 0 if it gave none."""

    def __init__(self, message: str, *, code: int = 0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


def find(directories: Sequence[Path], kind: str) -> Path:
    """Return the program of a plugin.

    :raises Unavailable: if no directory has it: it may be about to be installed.
    """
    for directory in directories:
        path = directory / kind
        if path.is_file() and os.access(path, os.X_OK):
            return path
    raise Unavailable(
        f"CNI plugin {kind!r} is in none of {', '.join(map(str, directories))}",
        hint="install it, or name its directory in network.cni_plugin_dirs",
    )


def run(directories: Sequence[Path], kind: str, call: Call, config: Mapping[str, object], timeout: float) -> Json:
    """Run a plugin and return what it printed, an empty object if that is nothing.

    :param timeout: seconds after which it is killed.
    :raises Unavailable: if it is not installed, or says that a later try may succeed.
    :raises DeadlineExceeded: if it took too long.
    :raises PluginFailed: if it failed otherwise.
    """
    program = find(directories, kind)
    what = f"CNI plugin {kind} ({call.command})"
    # Without those that the daemon itself was started with: a plugin would take them for this call's.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CNI_")}
    try:
        done = spawn.run_foreign(
            [str(program)],
            stdin=json.dumps(config).encode(),
            env=environment | call.environment(directories),
            timeout=timeout,
            output_limit=_MAX_OUTPUT,
        )
    except DeadlineExceeded as error:
        raise DeadlineExceeded(f"{what} did not finish within {timeout:g} s and was killed") from error
    except ResourceExhausted as error:
        raise PluginFailed(f"{what} printed more than {_MAX_OUTPUT} bytes and was killed") from error
    except NotFound as error:
        # Not NotFound, which a client that stops or removes a sandbox would take for "gone".
        raise PluginFailed(f"{what} cannot be run: {error.message}") from error
    except OSError as error:
        raise PluginFailed(f"{what} cannot be run: {program}: {error.strerror}") from error
    if done.returncode != 0:
        raise _error(what, done)
    if not done.stdout.strip():
        return {}
    try:
        answer = json.loads(done.stdout)
    except (ValueError, RecursionError) as error:
        raise PluginFailed(f"{what} printed no JSON: {_short(done.stdout)}") from error
    if not isinstance(answer, dict):
        raise PluginFailed(f"{what} printed no JSON object: {_short(done.stdout)}")
    if answer.get("code") and "msg" in answer:
        # An error is one whatever the exit status; no result has these keys.
        raise _error(what, done)
    return answer


def _error(what: str, done: spawn.Completed) -> PodkeepError:
    try:
        said = json.loads(done.stdout)
        code, message, details = int(said.get("code", 0)), str(said.get("msg", "")), str(said.get("details", ""))
    # OverflowError: Python's JSON takes Infinity for a number.
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        code, message, details = 0, "", ""
    if not message:
        message = _short(done.stderr) or _short(done.stdout) or "it said nothing"
    text = f"{what} failed: {'; '.join(filter(None, (message, details)))}"
    text += f" (code {code})" if code else f" (exit status {done.returncode})"
    text = " ".join(text.split())
    if code in {TRY_AGAIN_LATER, UNAVAILABLE, LIMITED_CONNECTIVITY}:
        return Unavailable(text)
    return PluginFailed(text, code=code)


def _short(output: bytes) -> str:
    return " ".join(output.decode(errors="replace").split())[:_MAX_TEXT]
