"""Prints in JSON whether the installation is the same: at first, with a file of it replaced, and with the file gone."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

import podkeep

with tempfile.TemporaryDirectory() as directory:
    source = shutil.copytree(Path(podkeep.__file__).parent / "base", Path(directory) / "podkeep/base")
    first = source.parent / "__init__.py"
    first.write_text("")
    podkeep.__file__ = str(first)
    from podkeep.base import forks  # which notes at its import what is installed

    found = [forks.is_same_installation()]
    (source.parent / "new").write_text("")
    os.rename(source.parent / "new", first)
    found.append(forks.is_same_installation())
    first.unlink()
    found.append(forks.is_same_installation())
print(json.dumps(found))
