"""Python without its search for cycles: what stays then refers to itself."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Free nothing that refers to itself."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
