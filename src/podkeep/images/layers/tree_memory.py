"""How much memory the trees of layers may take, which are unpacked side by side in processes of their own. Pure.

A pull stays below :data:`WHOLE` with all its processes. What they take by themselves is measured; the rest is for
trees, and a large layer gets more of it than a small one. What needs more than its share is kept as a directory.
"""

from __future__ import annotations

from collections.abc import Sequence

WHOLE = 150_000_000
_WORKER = 32_000_000
_PROCESS = 32_000_000
"""Of an unpack process without a tree: the interpreter, and pieces on their way."""
_LEAST = 16_000_000


def shares(sizes: Sequence[int], parallel: int) -> list[int]:
    """Return the bytes that each tree may take, of layers whose blobs are of these sizes.

    Of any ``parallel`` of them the sum is within the whole (with more than three processes, which take as much by
    themselves, it is at least ``_LEAST``).
    """
    beside = min(parallel, len(sizes))
    free = max(WHOLE - _WORKER - beside * _PROCESS, _LEAST)
    largest = sum(sorted(sizes, reverse=True)[:beside])
    return [free * size // largest if largest else free // max(beside, 1) for size in sizes]
