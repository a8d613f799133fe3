"""An index over a lister that follows what is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeAlias, TypeVar

from podkeep.apiserver.meta.lister import ChangingLister, Lister

Index = TypeVar("Index")
Changes: TypeAlias = Iterable[tuple[str, str, str]]
"""What was written, as :meth:`ChangingLister.changes` tells it: resource, namespace and name of each object."""


class Following(Generic[Index]):
    """Keeps an index of what a lister has.

    :param build: reads everything.
    :param follow: brings an index up to date with the objects that were written since.
    """

    def __init__(
        self,
        lister: ChangingLister,
        build: Callable[[Lister], Index],
        follow: Callable[[Index, Lister, Changes], None],
    ) -> None:
        self._lister = lister
        self._build = build
        self._follow = follow
        self._index: Index | None = None
        self._seen = 0
        lister.follow(self)

    def catch_up(self) -> None:
        """Look at what was written, if anybody has asked for the index."""
        if self._index is not None:
            self.current()

    def current(self) -> Index:
        """Return the index as of the newest revision; it is built again if it is not known what changed."""
        revision = self._lister.revision
        if self._index is None or revision != self._seen:
            changes = self._lister.changes(self._seen)
            if self._index is None or changes is None:
                self._index = self._build(self._lister)
            else:
                self._follow(self._index, self._lister, changes)
            self._seen = revision
        return self._index
