"""Compares what podkeep finds of the machine's services in their files with what systemd says; prints their number."""

from __future__ import annotations

import subprocess
from pathlib import Path

from podkeep.mountns import unitfiles

KEYS = ("FragmentPath", "DropInPaths", "LoadState")

directories = (Path("/etc/systemd/system"), Path("/usr/lib/systemd/system"))
names = sorted({path.name for directory in directories for path in directory.glob("[!@]*.service")} - {"odd-.service"})
names = [name for name in names if "@" not in name]
command = ["systemctl", "show", "-p", ",".join(KEYS), *names]
shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
for name, block in zip(names, shown.split("\n\n"), strict=True):
    known = dict(line.split("=", 1) for line in block.splitlines() if line)
    parts = unitfiles.parts(Path("/"), name)
    found = [part.path for part in parts or []]
    if known["LoadState"] == "masked":
        assert parts == [], (name, parts)
        continue
    fragment = str(Path(known["FragmentPath"]).resolve())
    paths = [path for path in known["DropInPaths"].split() if Path(path).stat().st_size]  # not masked
    assert found == [fragment, *paths], (name, found, known)
print(len(names))
