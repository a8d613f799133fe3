"""CDI devices of tests: how podkeep, which takes no OCI hooks from elsewhere, is given some."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from podkeep.cri.v1 import api_pb2 as api


def hook(name: str, script: str) -> dict[str, Any]:
    """Return an OCI hook that runs a shell script, which must succeed."""
    return {
        "hookName": name,
        "path": "/bin/sh",
        "args": ["sh", "-ec", script],
        "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
    }


class Spec:
    """A spec file in ``directory`` with one device that has ``hooks``, while its context lasts."""

    def __init__(self, directory: Path, *hooks: Mapping[str, Any]) -> None:
        self._name = f"d{os.urandom(4).hex()}"
        self._path = directory / f"{self._name}.json"
        self._hooks = list(hooks)

    def __enter__(self) -> api.CDIDevice:
        kind = "tests.podkeep/hooks"
        device = {"name": self._name, "containerEdits": {"hooks": self._hooks}}
        self._path.write_text(json.dumps({"cdiVersion": "0.7.0", "kind": kind, "devices": [device]}))
        return api.CDIDevice(name=f"{kind}={self._name}")

    def __exit__(self, *_: object) -> None:
        self._path.unlink()
