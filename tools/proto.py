"""Regenerate the gRPC stubs in ``src/podkeep/cri/v1`` from the ``.proto`` files beside them.

Called by ``make proto`` and by the contract test that compares the checked-in stubs with fresh ones.
Needs grpcio-tools and mypy-protobuf (the ``dev`` extra).

    python tools/proto.py [--out DIRECTORY]

The sources are handed to protoc under their package path (``podkeep/cri/v1/api.proto``), so that the generated
modules import each other as ``from podkeep.cri.v1 import api_pb2`` and need no patching afterwards.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

SOURCE_ROOT = Path(__file__).resolve().parent.parent / "src"
PACKAGE = Path("podkeep/cri/v1")


def generate(out: Path) -> list[Path]:
    """Write the stubs of every ``.proto`` of the package under ``out`` and return them, sorted.

    :raises subprocess.CalledProcessError: if protoc refuses a file; it has said why on stderr.
    """
    out.mkdir(parents=True, exist_ok=True)
    sources = sorted(path.relative_to(SOURCE_ROOT) for path in (SOURCE_ROOT / PACKAGE).glob("*.proto"))
    command = [
        sys.executable,
        *("-m", "grpc_tools.protoc"),
        f"--proto_path={SOURCE_ROOT}",
        f"--python_out={out}",
        f"--grpc_python_out={out}",
        f"--mypy_out=quiet:{out}",
        f"--mypy_grpc_out=quiet:{out}",
        *map(str, sources),
    ]
    # protoc finds protoc-gen-mypy beside the interpreter, whether or not the environment is activated.
    search_path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    subprocess.run(command, check=True, env={**os.environ, "PATH": search_path})
    return sorted(path for path in (out / PACKAGE).iterdir() if "_pb2" in path.name and path.is_file())


def main() -> int:
    """Generate into the source tree, or where ``--out`` says."""
    parser = argparse.ArgumentParser(description="Regenerate the CRI stubs.")
    parser.add_argument("--out", type=Path, default=SOURCE_ROOT, help="root of the package tree to write to")
    for path in generate(parser.parse_args().out):
        print(path)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
