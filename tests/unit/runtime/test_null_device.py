"""A null device that is nobody else's."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from podkeep.runtime.oci.null_device import open_null


def test_it_is_a_null_device_and_not_the_machines() -> None:
    one, other = open_null(), open_null()
    try:
        assert stat.S_ISCHR(os.fstat(one).st_mode)
        assert os.fstat(one).st_rdev == Path("/dev/null").stat().st_rdev
        assert os.write(one, b"x" * 100_000) == 100_000
        assert os.read(one, 10) == b""
        assert not os.path.samestat(os.fstat(one), os.fstat(other))
        assert not os.path.samestat(os.fstat(one), os.stat("/dev/null"))
        before = os.stat("/dev/null")
        os.fchmod(one, 0)
        os.fchown(one, 65536, 65536)
        assert os.fstat(other).st_uid == 0
        after = os.stat("/dev/null")
        assert (after.st_dev, after.st_ino) == (before.st_dev, before.st_ino)
        assert after.st_mode == before.st_mode
    finally:
        os.close(one)
        os.close(other)
