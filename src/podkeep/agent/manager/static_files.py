"""Static pods: manifests in a directory, or one file, that the node runs without an API.

What is read is judged as hostile: editors leave files of all kinds, and some directories are written by programs. Only
regular files are read, of a bounded size; a file that is wrong is said once, and the others go on. Names, UIDs and
annotations are a kubelet's (pkg/kubelet/config: common.go, file.go).
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import logging
import os
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from podkeep.agent.convert import names
from podkeep.agent.manager import static_resources
from podkeep.api import manifest
from podkeep.api.feature_gates import FeatureGates
from podkeep.api.fields import FieldErrors
from podkeep.api.pod import Pod
from podkeep.api.scheduling import Toleration
from podkeep.api.status import PodStatus
from podkeep.base.errors import InvalidArgument, PodkeepError, words_of
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text.printable import printable
from podkeep.kernel.files import openat

log = logging.getLogger(__name__)

SOURCE = "file"
CONFIG_HASH = "kubernetes.io/config.hash"
MAX_BYTES = 10 << 20
"""Of one manifest (kubelet, maxConfigLength)."""
MAX_FILES = 1000
LOOK_S = 1.0
"""Between looks whether a file changed."""

Mark = tuple[int, int, int, int]
"""Device, inode, size and time of the last write of a file."""


class _File(FrozenStruct, kw_only=True):
    mark: Mark
    pod: Pod | None
    problem: str = ""


@dataclass(kw_only=True)
class StaticFiles:
    """Follows the manifests below ``path``, and hands over all their pods whenever one of them changed.

    :ivar take: gets all static pods.
    :ivar refused: gets what is wrong with the files that are left out, by path, whenever that is something else.
    """

    path: Path
    node_name: str
    gates: FeatureGates
    take: Callable[[Sequence[Pod]], None]
    refused: Callable[[Mapping[str, str]], None] = lambda _: None
    _known: dict[str, _File] = field(default_factory=dict)
    _beyond: str = ""
    """The first file that there is no place for."""
    _problem: str = ""
    _seen: bool = False
    """Whether it is known which files there are."""

    async def run(self) -> None:
        """Look each second until cancelled."""
        first = True
        told: Mapping[str, str] = {}
        while True:
            changed = await asyncio.to_thread(self.look)
            problems = self.problems()
            if problems != told:
                told = problems
                self.refused(told)
            # Pods of an earlier agent are not ended because the path cannot be read now.
            if self._seen and (changed or first):
                self.take(self.pods())
                first = False
            await asyncio.sleep(LOOK_S)

    def look(self) -> bool:
        """Read what changed; return whether anything did. A directory that cannot be read keeps its pods."""
        try:
            marks, beyond = _marks(self.path, self._known)
        except FileNotFoundError:
            # As with a kubelet (file.go, listConfig), a path that is not there has no pods; one that cannot be read
            # keeps those it had.
            marks, beyond = {}, ""
            self._say(f"the manifest path {self.path} is not there")
        except OSError as error:
            self._say(f"the manifest path {self.path} cannot be read: {error.strerror}")
            return False
        else:
            self._problem = ""
        self._seen = True
        before = self._known
        self._known = {
            name: before[name] if name in before and before[name].mark == mark else self._read(name, mark)
            for name, mark in marks.items()
        }
        for name, file in self._known.items():
            if file.problem and (name not in before or before[name].problem != file.problem):
                log.error("static pod %s is left out: %s", printable(name), printable(file.problem))
        if beyond and beyond != self._beyond:
            log.error("static pod %s is left out: %s", printable(beyond), _no_place())
        self._beyond = beyond
        return {name: file.pod for name, file in before.items()} != {n: file.pod for n, file in self._known.items()}

    def problems(self) -> Mapping[str, str]:
        """Return what is wrong with the files that are left out, by path; names of files need not be text."""
        wrong = {printable(name): printable(file.problem) for name, file in self._known.items() if file.problem}
        if self._beyond:
            wrong[printable(self._beyond)] = _no_place()
        return wrong | self._chosen()[1]

    def _say(self, problem: str) -> None:
        if problem != self._problem:
            log.warning("static pods: %s", problem)
        self._problem = problem

    def _read(self, name: str, mark: Mark) -> _File:
        try:
            data = _content(name)
            if data is None:
                return _File(mark=mark, pod=None)
            return _File(mark=mark, pod=decoded(data, name, self.node_name, self.gates))
        # RecursionError: of a manifest nested too deeply. One file must not keep the others from being read.
        except (PodkeepError, OSError, RecursionError) as error:
            # In an event, a status and a line of the log it is one line.
            said = words_of(error) if isinstance(error, OSError) else str(error)
            text = "; ".join(line.removeprefix(f"{name}: ") for line in said.splitlines())
            return _File(mark=mark, pod=None, problem=text)

    def pods(self) -> list[Pod]:
        """Return the pods; of two of one name, that of the first file."""
        pods, repeated = self._chosen()
        for name, problem in repeated.items():
            log.warning("static pod %s is left out: %s", name, problem)
        return pods

    def _chosen(self) -> tuple[list[Pod], dict[str, str]]:
        """Return the pods, and what is wrong with the files that have one which an earlier file has, by path."""
        found: dict[tuple[str, str], tuple[str, Pod]] = {}
        repeated: dict[str, str] = {}
        for name, file in sorted(self._known.items()):
            if file.pod is None:
                continue
            key = file.pod.metadata.namespace, file.pod.metadata.name
            if key in found:
                repeated[printable(name)] = f"its pod {'/'.join(key)} is that of {printable(found[key][0])}, too"
            found.setdefault(key, (name, file.pod))
        return [pod for _, pod in found.values()], repeated


def _no_place() -> str:
    return f"no more than {MAX_FILES} files of a directory are taken, and those after it are left out, too"


def _marks(path: Path, known: Container[str]) -> tuple[dict[str, Mark], str]:
    """Return the files that may be manifests, no directories nor editors' files, and the first without a place.

    :param known: those that were taken before. They stay, whatever is added: the rest is taken in the order of names.
    """
    if not path.is_dir():
        return {str(path): _mark(path.stat())}, ""
    with os.scandir(path) as entries:
        names = (entry.path for entry in entries if not _is_editors(entry.name) and _is_file(entry))
        taken = heapq.nsmallest(MAX_FILES + 1, names, key=lambda name: (name not in known, name))
    found: dict[str, Mark] = {}
    for name in taken[:MAX_FILES]:
        with suppress(OSError):  # it went meanwhile
            found[name] = _mark(os.stat(name))
    return found, taken[MAX_FILES] if len(taken) > MAX_FILES else ""


def _is_editors(name: str) -> bool:
    """Return whether an editor keeps a file of this name beside the one that is edited.

    A kubelet leaves out only what begins with a dot. It runs a backup (``web.yaml~``) of a pod that was removed, and
    what was not saved yet (``#web.yaml#``) in place of what was: its name is the first in order.
    """
    return name.startswith(".") or name.endswith("~") or (name.startswith("#") and name.endswith("#"))


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        return False  # it went meanwhile, or leads nowhere


def _mark(info: os.stat_result) -> Mark:
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns


def _content(name: str) -> bytes | None:
    # A manifest may be a link. What was a file a moment ago can be a FIFO by now, and opening that would block for
    # ever.
    fd = openat.open_beside(os.path.realpath(name))
    if fd is None:
        return None
    with openat.closing(fd):
        data = openat.read_bytes(fd, MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise InvalidArgument(f"it has more than {MAX_BYTES} bytes")
    return data if data.strip() else None


def decoded(data: bytes, name: str, node_name: str, gates: FeatureGates) -> Pod:
    """Return the pod of a manifest as this node runs it.

    :raises InvalidArgument: if it is not one valid Pod, or refers to objects of the API.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{name}: not UTF-8 text: {error.reason} at byte {error.start}") from error
    found = manifest.parse(text, source=name, gates=gates, node=True)
    if len(found.pods) != 1 or found.config_maps or found.secrets:
        raise InvalidArgument(f"{name}: a static pod's file has one Pod and nothing else")
    pod = static_resources.completed(found.pods[0])
    errors = FieldErrors()
    static_resources.validate(pod, errors)
    if errors.found:
        raise InvalidArgument("\n".join(f"{name}: {error}" for error in errors.found))
    return static(pod, name, node_name)


def static(pod: Pod, name: str, node_name: str) -> Pod:
    """Return a pod of a file with the identity that it has on this node."""
    # The name of a file need not be UTF-8 text; MD5 is an identity here, as in a kubelet (applyDefaults), no
    # protection.
    text = msgspec.json.encode(pod) + os.fsencode(f"host:{node_name}file:{name}")
    uid = pod.metadata.uid or hashlib.md5(text, usedforsecurity=False).hexdigest()
    metadata = msgspec.structs.replace(
        pod.metadata,
        uid=uid,
        name=f"{pod.metadata.name}-{node_name}",
        namespace=pod.metadata.namespace or "default",
        annotations=pod.metadata.annotations | {CONFIG_HASH: uid, names.CONFIG_SOURCE: SOURCE},
    )
    # As a kubelet adds it: a taint on the Node does not end static pods, which nothing could start elsewhere.
    stays = Toleration(operator="Exists", effect="NoExecute")
    spec = pod.spec
    tolerations = spec.tolerations if stays in spec.tolerations else (*spec.tolerations, stays)
    spec = msgspec.structs.replace(spec, node_name=node_name, tolerations=tolerations)
    return msgspec.structs.replace(pod, metadata=metadata, spec=spec, status=PodStatus(phase="Pending"))
