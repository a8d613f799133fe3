"""A layout directory whose files change while it is loaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

import pytest

from podkeep.base.errors import InvalidArgument
from podkeep.images.formats import manifest
from podkeep.images.worker.archive import DirectoryFiles, _Loader
from podkeep.images.worker.assembly import Assembly
from podkeep.images.worker.channel import Channel


class GrowingFiles(DirectoryFiles):
    """Files that somebody makes larger once they were looked at."""

    def __init__(self, root: int, bytes_then: int) -> None:
        super().__init__(root)
        self.path = Path(f"/proc/self/fd/{root}")
        self.bytes_then = bytes_then

    def size(self, name: str) -> int | None:
        size = super().size(name)
        os.truncate(self.path / name, self.bytes_then)
        return size


def test_of_a_document_that_grows_no_more_is_read_than_it_may_have(tmp_path: Path) -> None:
    (tmp_path / "index.json").write_bytes(b"{}")
    root = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        files = GrowingFiles(root, manifest.MAX_MANIFEST_BYTES + (8 << 20))
        # Documents are read before an image is put together, and nobody is told of them.
        loader = _Loader(files, tmp_path, "x", cast("Assembly", None), cast("Channel", None))
        with pytest.raises(InvalidArgument, match=rf"index.json has more than {manifest.MAX_MANIFEST_BYTES} bytes"):
            loader.layout()
    finally:
        os.close(root)
