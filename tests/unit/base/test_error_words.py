"""Errors of the system as a user reads them."""

from __future__ import annotations

import errno

import pytest

from podkeep.base.errors import words_of


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOENT, "No such file or directory", "a"), "a: No such file or directory"),
        (OSError(errno.ENOENT, "No such file or directory", b"a\xff"), "a\udcff: No such file or directory"),
        (OSError(errno.ENOTDIR, "Not a directory", 7), "Not a directory"),
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
        (OSError("read of a closed file"), "read of a closed file"),
    ],
)
def test_words_of_an_error_of_the_system(error: OSError, words: str) -> None:
    assert words_of(error) == words
