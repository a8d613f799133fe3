"""What the exit status of a command becomes that an OCI runtime could not run."""

from __future__ import annotations

import pytest

from podkeep.base.errors import Internal
from podkeep.cli.pods.exec import _status_of, status_of_failure
from podkeep.cri.v1 import api_pb2

NOT_FOUND = b"executable file `x` not found in $PATH: No such file or directory\n"


@pytest.mark.parametrize(
    ("code", "stdout", "stderr", "status"),
    [
        (255, b"", NOT_FOUND, 127),
        (255, b"", b"open executable: Permission denied\n", 126),
        (255, b"", b"executable `" + b"x" * 4096 + b"` not found: No such file or directory\n", 127),
        (255, b"", b"a\n" + NOT_FOUND, 255),
        (255, b"said", NOT_FOUND, 255),
        (1, b"", NOT_FOUND, 1),
    ],
)
def test_a_runtime_that_could_not_run_a_program_says_so_in_one_line(
    code: int, stdout: bytes, stderr: bytes, status: int
) -> None:
    assert _status_of(api_pb2.ExecSyncResponse(exit_code=code, stdout=stdout, stderr=stderr)) == status


def test_long_texts_are_not_searched_for_what_runtimes_say() -> None:
    """192 KB of a command's errors took 10 seconds: ``executable file`` again and again in one line."""
    said = b"executable file " * 12_000 + b"\n"
    assert _status_of(api_pb2.ExecSyncResponse(exit_code=255, stderr=b"x" * 10_000 + NOT_FOUND)) == 255
    assert _status_of(api_pb2.ExecSyncResponse(exit_code=255, stderr=said)) == 255
    assert status_of_failure(Internal("x" * 10_000 + NOT_FOUND.decode())) is None
