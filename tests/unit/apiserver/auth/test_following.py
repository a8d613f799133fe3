"""An index that follows a lister: it looks at what was written, and reads everything if that is not known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from podkeep.apiserver.auth.following import Changes, Following
from podkeep.apiserver.meta.lister import Follower, Lister, Part


class Written:
    """A lister of names: a revision for each, of which the newest ``kept`` are remembered."""

    def __init__(self, kept: int) -> None:
        self.names: list[str] = []
        self.kept = kept

    def follow(self, follower: Follower) -> None: ...

    @property
    def revision(self) -> int:
        return len(self.names)

    def changes(self, after: int) -> Sequence[tuple[str, str, str]] | None:
        if len(self.names) - after > self.kept:
            return None
        return [("pods", "", name) for name in reversed(self.names[after:])]

    def get(self, resource: str, namespace: str, name: str) -> Mapping[str, Any] | None:
        raise NotImplementedError

    def list(self, resource: str, namespace: str = "") -> Iterable[Mapping[str, Any]]:
        return [{"name": name} for name in self.names]

    def parts(self, resource: str, namespace: str, of: type[Part]) -> Iterable[Part]:
        raise NotImplementedError

    def part(self, resource: str, namespace: str, name: str, of: type[Part]) -> Part | None:
        raise NotImplementedError

    def sizes(self, resource: str, namespace: str) -> Iterable[tuple[str, int]]:
        raise NotImplementedError

    def revision_of(self, resource: str, namespace: str, name: str) -> int:
        raise NotImplementedError


def test_an_index_follows_what_is_written() -> None:
    log: list[str] = []

    def build(lister: Lister) -> set[str]:
        log.append("all")
        return {value["name"] for value in lister.list("pods")}

    def follow(index: set[str], _: Lister, changes: Changes) -> None:
        names = {name for _, _, name in changes}
        log.append(",".join(sorted(names)))
        index |= names

    written = Written(kept=2)
    following = Following(written, build, follow)
    assert following.current() == set()
    written.names += ["a", "b"]
    assert following.current() == following.current() == {"a", "b"}
    written.names += ["c", "d", "e"]
    assert following.current() == {"a", "b", "c", "d", "e"}
    assert log == ["all", "a,b", "all"]
