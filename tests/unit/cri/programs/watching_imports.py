"""Imports a module, and prints what gRPC's variable for fork support was when gRPC was imported first.

watching_imports.py MODULE
"""

from __future__ import annotations

import importlib
import os
import sys

seen: list[str | None] = []


def watch(event: str, arguments: tuple[object, ...]) -> None:
    if event == "import" and arguments[0] == "grpc":
        seen.append(os.environ.get("GRPC_ENABLE_FORK_SUPPORT"))


sys.addaudithook(watch)
importlib.import_module(sys.argv[1])
print(seen[0])
