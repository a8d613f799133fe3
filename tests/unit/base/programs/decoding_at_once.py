"""Two threads decode a class that neither has decoded before, the second while the first finds out what it is made of.

Prints what the second one gets.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import msgspec

from podkeep.base.concurrency.threads import SharedThreads

begun, decoded = threading.Event(), threading.Event()


if TYPE_CHECKING:
    Number = list
else:

    class Number:
        """A type that takes a while to be found out, once there are threads."""

        def __class_getitem__(cls, of: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                begun.set()
                decoded.wait()
            return of


class Inner(msgspec.Struct):
    number: Number[int]


class Outer(msgspec.Struct):
    inner: Inner


def decode() -> Outer:
    return msgspec.json.decode(b'{"inner": {"number": 1}}', type=Outer)


def first() -> None:
    decode()
    begun.set()


threads = SharedThreads(1, share=1, name="work")
future = threads.submit(first)
begun.wait()
print(decode())
decoded.set()
future.result()
