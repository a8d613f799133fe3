"""A test that fails while the garbage collector runs finalisers which make syntax trees."""

from __future__ import annotations

import ast
import gc


class Finalised:
    """Garbage that only the collector finds, and that leaves more of its kind."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        ast.parse("1 + 1")
        Finalised()


def test_that_fails() -> None:
    values = [(number, [number, {number: number}]) for number in range(50)]
    for _ in range(50):
        Finalised()
    gc.set_threshold(5, 1, 1)
    assert values == [], (values, [(number, [number, {number: number}]) for number in range(50)], [[[[(1, 2, [3])]]]])
