"""One thread for each key, many keys together, or one alone."""

from __future__ import annotations

import threading

from podkeep.runtime.class_resources.guard import Guard

TIMEOUT_S = 30


def test_one_alone_waits_for_the_others_and_keeps_others_waiting() -> None:
    guard, entered, leave, order = Guard(), threading.Event(), threading.Event(), list[str]()
    alone_waits = threading.Event()

    def first() -> None:
        with guard.of("first"):
            entered.set()
            leave.wait(TIMEOUT_S)
            order.append("together")

    def alone() -> None:
        alone_waits.set()
        with guard.alone():
            order.append("alone")

    def last() -> None:
        with guard.of("last"):
            order.append("after")

    threads = [threading.Thread(target=first)]
    threads[0].start()
    assert entered.wait(TIMEOUT_S)
    threads.append(threading.Thread(target=alone))
    threads[1].start()
    assert alone_waits.wait(TIMEOUT_S)
    while not guard.is_awaited:
        assert threads[1].is_alive()
    threads.append(threading.Thread(target=last))
    threads[2].start()
    leave.set()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert order == ["together", "alone", "after"]


def test_keys_do_not_wait_for_each_other() -> None:
    guard, both = Guard(), threading.Barrier(2)

    def work(key: int) -> None:
        with guard.of(key):
            both.wait(TIMEOUT_S)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()
    assert not both.broken


def test_a_key_is_held_by_one_at_a_time() -> None:
    guard, inside, most = Guard(), 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(200):
            with guard.of("one"):
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert most == 1
