"""A podkeep that is older than a field of pods: a copy of this source tree in which nothing has the field.

What is left out is the declarations: that of the agent's decoder, and those of the API's table of types. A process that
is started with the copy first on its path is one that was built before the field.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import podkeep


@dataclass(frozen=True, kw_only=True)
class Declared:
    """Where a field is declared: its line in a module of ``podkeep/api``, its type and name in the API's table."""

    module: str
    attribute: str
    kind: str
    type: str
    name: str


HOST_USERS = Declared(
    module="pod.py", attribute="host_users", kind="bool", type="io.k8s.api.core.v1.PodSpec", name="hostUsers"
)
IMAGE_VOLUME = Declared(
    module="volumes.py", attribute="image", kind="ImageVolumeSource", type="io.k8s.api.core.v1.Volume", name="image"
)


def without(field: Declared, directory: Path) -> dict[str, str]:
    """Write the copy below ``directory``, and return the environment of processes that run it."""
    copy = directory / f"without-{field.name}"
    source = Path(podkeep.__file__).parent
    shutil.copytree(source, copy / "podkeep", ignore=shutil.ignore_patterns("__pycache__"))
    module = copy / "podkeep/api" / field.module
    line = f"    {field.attribute}: {field.kind} | None ="
    text = module.read_text()
    assert text.count(f"{line} None\n") == 1
    module.write_text(
        text.replace(f"{line} None\n", f'{line} msgspec.field(default=None, name="aFieldThatNobodySends")\n')
    )
    schema = copy / "podkeep/apiserver/schema"
    types, numbers = (json.loads((schema / name).read_text()) for name in ("kubernetes.json", "protobuf.json"))
    del types[field.type]["fields"][field.name]
    numbers[field.type] = {number: name for number, name in numbers[field.type].items() if name != field.name}
    (schema / "kubernetes.json").write_text(json.dumps(types))
    (schema / "protobuf.json").write_text(json.dumps(numbers))
    return {"PYTHONPATH": str(copy)}
