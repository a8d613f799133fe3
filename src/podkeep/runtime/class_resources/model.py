"""What a type of class resources is (KEP-3008): the interface that every type implements, and its words.

Owns: names and values that the registry, the types and the RPCs share, and what types and classes may be called: a
class is like the value of a label, a type like its key, so it may have the prefix of a vendor (KEP-3008, Pod Spec).
Does not own: any type, or the order in which several are applied (``registry.py``). See docs/class-resources.md.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from podkeep.base.errors import InvalidArgument, PodkeepError
from podkeep.base.frozen import FrozenStruct
from podkeep.base.undo import UndoStack
from podkeep.kernel.process.procfs import ProcessId
from podkeep.runtime.oci.compose import Config

RDT = "rdt"
"""KEP-3008, ClassResourceRdt."""
RDT_NOTES = "rdt-groups.json"
"""Where the type rdt notes what it made (``rdt/groups.py``), in the runtime's persistent directory."""
BLOCKIO = "blockio"
"""KEP-3008, ClassResourceBlockio."""
OOM = "oom"
QOS = "qos"

DEFAULT_CLASS = "default"
"""Reserved: the class that the node chose. No configuration may name a class so."""
BUILT_IN = frozenset({RDT, BLOCKIO, OOM, QOS})
"""Types that podkeep brings along."""

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_NAME_RULE = "use at most 63 letters, digits, -, _ and ., the first and the last of them a letter or digit"
_TYPE_RULE = f"{_NAME_RULE}; a vendor's domain and / may go before, as in vendor.example/thing"


class Level(enum.StrEnum):
    """Which of the two independent sets (KEP-3008, Proposal)."""

    POD = "pod"
    CONTAINER = "container"


class Origin(enum.StrEnum):
    """Whose annotation asks for a class: of the container, which is the client's, or the pod, which is its author's."""

    CONTAINER = "container"
    POD = "pod"


class Offer(FrozenStruct, kw_only=True):
    """What the node offers of one type at one level (KEP-3008, ClassResourceInfo)."""

    classes: tuple[str, ...]
    """Sorted, never empty."""
    immutable: bool = False
    """The class cannot be changed after creation."""


class Target(FrozenStruct, kw_only=True):
    """What is put into a class: a container whose OCI runtime made it, or a pod sandbox with its cgroup."""

    level: Level
    id: str
    """The container's or the sandbox's."""
    name: str
    """For messages: ``namespace/pod`` or ``namespace/pod/container``."""
    cgroup: str
    """Where its processes and limits are, as :class:`podkeep.kernel.cgroup.cgroups.Cgroups` takes it."""
    process: ProcessId | None = None
    """The container's first process."""


class ClassResource(Protocol):
    """One type. Methods block and may be called on several threads at once, for one target on one at a time.

    ``offers``, ``why_not`` and ``check`` are called on the event loop, too: they look at memory, or at a few files of
    the kernel, and wait for nothing.

    A type derives from this class, and has what does nothing here only if it has something to do.

    The life of a container in the class ``gold``::

        resource.check(Level.CONTAINER, "gold")           # the request is refused before anything is made
        config = resource.edit("gold", config)            # what the OCI runtime has to be told
        resource.apply(target, "gold")                    # its first process is there, its program does not run
        resource.verify(target, "gold")                   # right before that runs
        resource.apply(target, "silver", previous="gold") # UpdateContainerResources
        resource.release(target, "silver")                # it ended

    After a restart of the runtime, and after a reload, ``apply`` is called again with the class as its own
    ``previous`` if what is in force is another.
    """

    name: str
    """Such as ``rdt`` or ``vendor.example/thing``."""

    def offers(self) -> Mapping[Level, Offer]:
        """Return what is offered now; a level that is missing is not supported, or has no class."""

    def why_not(self, level: Level) -> str:
        """Return why nothing is offered at ``level``, for the message of a refusal; empty if something is."""

    def check(self, level: Level, class_name: str) -> None:
        """Check that an offered class can be given now.

        :raises FailedPrecondition: if it cannot.
        """

    def denies_annotation(self, _class_name: str, _origin: Origin) -> bool:
        """Return whether annotations cannot ask for a class, offered or not (goresctrl: kubernetes.deny*Annotation)."""
        return False

    def edit(self, class_name: str, config: Config) -> Config:
        """Return the OCI configuration of a container with what says its class; pure, ``config`` is left as it is."""

    def apply(self, target: Target, class_name: str, *, previous: str | None = None) -> None:
        """Put ``target`` into a class, wholly; applying a class again fixes what somebody else changed.

        :param previous: the class it has; None: none yet. If this fails, that is what stays in force.
        :raises PodkeepError: if the kernel, or the hook of the type, refuses.
        """
        with named(self.name), UndoStack() as undo:
            if class_name != previous:
                back = f"put {target.name} back into {f'class {previous}' if previous else 'no class'} of {self.name}"
                undo.push(back, self.way_back(target, class_name, previous))
            self.put(target, class_name, previous)

    def put(self, target: Target, class_name: str, previous: str | None) -> None:
        """Do what :meth:`apply` promises; half of it may be done if this raises."""

    def verify(self, target: Target, class_name: str) -> None:
        """Check that ``target`` is in the class and the class is in force.

        :raises FailedPrecondition: saying what is not as it should be.
        """

    def release(self, target: Target, class_name: str) -> None:
        """Take ``target`` out of its class, if it still lives, and give back what was made for it; safe to repeat."""

    def way_back(self, target: Target, class_name: str, previous: str | None) -> Callable[[], None]:
        """Return what takes back the change from ``previous`` to ``class_name``, or half of it; called before that.

        ``previous`` may not be configured any more: then what is in force for ``target`` now is what is put back.
        """
        if previous is None:
            return partial(self.release, target, class_name)
        return partial(self.put, target, previous, class_name)

    def entering(self, target: Target, class_name: str) -> Callable[[int], None] | None:
        """Return what puts a process, by its ID, into the class of a container in which it is about to run a command.

        None: it is in the class by being in the cgroup, or by the OCI configuration that it is started with. The class
        may be one that is not configured any more.
        """
        return None

    def activate(self, in_use: Collection[str], *, previous: ClassResource | None) -> None:
        """Put the configuration into force: when the daemon starts, and when a reload replaces ``previous``.

        Nothing is made or written before. No other method of this type or of ``previous`` runs meanwhile. After a
        reload :meth:`apply` follows for everything that is in a class, with that class as ``previous``.

        :param in_use: the classes that something is in. At the start some may not be configured any more: what is in
            them stays as it is.
        :param previous: the object of the same name that it follows, also to take back a reload that failed.
        :raises PodkeepError: if it cannot be in force; then what ``previous`` had is in force again.
        """
        return None  # noqa: RET501 - without it the method would be abstract

    def deactivate(self) -> None:
        """Give back what :meth:`activate` made: nothing is in a class, and the daemon ends or the type is gone.

        Also called if it made nothing, because something else kept the daemon from starting.

        :raises PodkeepError: if something cannot be given back.
        """
        return None  # noqa: RET501 - as above

    def describe(self) -> dict[str, Any]:
        """Return what the configured classes mean on this node, for verbose status and ``podkeep classes``; JSON."""


def problem(type_name: str, text: str) -> str:
    """Return the message of an error of a type; its beginning can be searched for (KEP-3008, Monitoring)."""
    return f"class resource {type_name}: {text}"


@contextmanager
def named(type_name: str) -> Iterator[None]:
    """Let the message of every error begin as that of :func:`problem` does."""
    try:
        yield
    except PodkeepError as error:
        # Uses of this may be nested: the beginning is said once.
        if not error.message.startswith(problem(type_name, "")):
            error.message = problem(type_name, error.message)
        raise


def check_class(name: str, *, key: str) -> None:
    """Check the name of a class.

    :param key: where it stands, for the message: ``class_resources.oom``.
    :raises InvalidArgument: if it is not like a label's value, or reserved.
    """
    if name == DEFAULT_CLASS:
        hint = "call it otherwise, and name it in container_defaults or pod_defaults of [class_resources]"
        raise InvalidArgument(
            f"{key}: no class may be called {name!r}: the name stands for the node's choice", hint=hint
        )
    if not _NAME.fullmatch(name):
        raise InvalidArgument(f"{key}: {name!r} is no name of a class", hint=_NAME_RULE)


def check_type(name: str, *, key: str) -> None:
    """Check the name of a type that a configuration defines.

    :param key: where it stands, for the message.
    :raises InvalidArgument: if it is not like a label's key, or one of podkeep's own.
    """
    if name in BUILT_IN:
        raise InvalidArgument(f"{key}: {name!r} is a type of podkeep's own", hint="give yours another name")
    prefix, separator, rest = name.rpartition("/")
    labels = prefix.split(".") if separator else []
    if len(prefix) > 253 or not all(_DNS_LABEL.fullmatch(label) for label in labels) or not _NAME.fullmatch(rest):
        raise InvalidArgument(f"{key}: {name!r} is no name of a type", hint=_TYPE_RULE)
