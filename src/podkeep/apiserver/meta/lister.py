"""Reading other objects while one is decided about."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

Part = TypeVar("Part")


class Lister(Protocol):
    """The objects as they are acknowledged. What it returns is shared: nobody changes it.

    ``resource`` is the name that the store has: ``pods``, ``apps/deployments``.
    """

    def get(self, resource: str, namespace: str, name: str) -> Mapping[str, Any] | None:
        """Return an object; None if there is none. ``namespace`` is empty for what has none."""
        ...

    def list(self, resource: str, namespace: str = "") -> Iterable[Mapping[str, Any]]:
        """Return every object of a resource, by namespace and name; in one namespace if that is not empty."""
        ...

    def parts(self, resource: str, namespace: str, of: type[Part]) -> Iterable[Part]:
        """Return a part of each object that :meth:`list` returns: what msgspec makes of it as a ``Struct``.

        For who reads all of a namespace for little of each: its objects may be gigabytes when they are decoded whole.
        """
        ...

    def part(self, resource: str, namespace: str, name: str, of: type[Part]) -> Part | None:
        """Return a part of what :meth:`get` returns, as :meth:`parts` does."""
        ...

    def sizes(self, resource: str, namespace: str) -> Iterable[tuple[str, int]]:
        """Return the name of each object of a namespace, and how many bytes it has, encoded."""
        ...

    def revision_of(self, resource: str, namespace: str, name: str) -> int:
        """Return the revision with which an object was written last, without reading it; 0 if there is none."""
        ...


class Follower(Protocol):
    """Keeps an index of what it read of a lister."""

    def catch_up(self) -> None:
        """Look at what was written since the index was asked last."""
        ...


class ChangingLister(Lister, Protocol):
    """A lister that tells what was written, for whoever keeps an index of what it read."""

    def follow(self, follower: Follower) -> None:
        """Have an index catch up before it is forgotten what was written, for as long as anybody else knows it."""
        ...

    @property
    def revision(self) -> int:
        """The newest revision that is acknowledged."""
        ...

    def changes(self, after: int) -> Sequence[tuple[str, str, str]] | None:
        """Return what writes after a revision were about, newest first; None if it is not known any more.

        Each is a resource, a namespace and a name.
        """
        ...


class NewestLister(ChangingLister, Protocol):
    """A lister that also tells of writes that are still on their way to the disk.

    Who decides about a write by it cannot be overtaken by another one: between the decision and its place in the
    queue nothing waits.
    """

    def size(self, resource: str, namespace: str, name: str) -> int:
        """Return the bytes of an object, encoded; 0 if there is none."""
        ...

    def newest(self, resource: str, namespace: str, name: str) -> Mapping[str, Any] | None:
        """Return an object as the next write to it finds it; None if there is none."""
        ...

    def pending(self) -> Collection[tuple[str, str, str]]:
        """Return what writes are about that are not acknowledged yet, as :meth:`changes` does."""
        ...
