"""A podkeep that is older than ``pod.spec.hostUsers``: a copy of this source tree in which nothing has the field.

What is left out is the declarations: that of the agent's decoder, and those of the API's table of types. A process that
is started with the copy first on its path is one that was built before the field.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import podkeep

_DECODED = "    host_users: bool | None = None\n"
_UNKNOWN = '    host_users: bool | None = msgspec.field(default=None, name="aFieldThatNobodySends")\n'
_FIELD = "hostUsers"
_SPEC = "io.k8s.api.core.v1.PodSpec"


def without_host_users(directory: Path) -> dict[str, str]:
    """Write the copy below ``directory``, and return the environment of processes that run it."""
    copy = directory / "older"
    source = Path(podkeep.__file__).parent
    shutil.copytree(source, copy / "podkeep", ignore=shutil.ignore_patterns("__pycache__"))
    pod = copy / "podkeep/api/pod.py"
    text = pod.read_text()
    assert text.count(_DECODED) == 1
    pod.write_text(text.replace(_DECODED, _UNKNOWN))
    schema = copy / "podkeep/apiserver/schema"
    types, numbers = (json.loads((schema / name).read_text()) for name in ("kubernetes.json", "protobuf.json"))
    del types[_SPEC]["fields"][_FIELD]
    numbers[_SPEC] = {number: name for number, name in numbers[_SPEC].items() if name != _FIELD}
    (schema / "kubernetes.json").write_text(json.dumps(types))
    (schema / "protobuf.json").write_text(json.dumps(numbers))
    return {"PYTHONPATH": str(copy)}
