"""Session keyrings for what is started for somebody else."""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Callable

import pytest

from podkeep.base.errors import KernelCallError
from podkeep.kernel.process import keyring
from support import keys


def test_returns_what_the_function_returns_and_raises_what_it_raises() -> None:
    assert keyring.in_new_session(lambda: 3) == 3
    with pytest.raises(LookupError, match="none"):
        keyring.in_new_session(_fails)


def test_nothing_is_left_in_the_keyring_of_the_caller() -> None:
    def look() -> bool:
        before = keys.in_session(b"podkeep-test")
        keys.session_key(b"podkeep-test", b"secret")
        return before

    def twice() -> list[bool]:
        return [keyring.in_new_session(look), keyring.in_new_session(look), keys.in_session(b"podkeep-test")]

    assert keyring.in_new_session(twice) == [False, False, False]


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
def test_without_keys_the_function_is_called_all_the_same(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(keyring, "_syscall", _refusal(number))
    assert keyring.in_new_session(lambda: 3) == 3


def test_without_room_for_a_keyring_the_function_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[None] = []
    monkeypatch.setattr(keyring, "_syscall", _refusal(errno.EDQUOT))
    with pytest.raises(KernelCallError, match="EDQUOT") as caught:
        keyring.in_new_session(lambda: called.append(None))
    assert "root_maxkeys" in caught.value.hint
    assert called == []


def _fails() -> None:
    raise LookupError("none")


def _refusal(number: int) -> Callable[..., int]:
    def refuse(*_: object) -> int:
        ctypes.set_errno(number)
        return -1

    return refuse
