"""A daemon that starts again: one pod that cannot be cleaned up must not keep it from serving the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from runtime_values import container, sandbox

from podkeep.base.config import HandlerConfig, ImagesConfig, NetworkConfig
from podkeep.images.store import ImageStore
from podkeep.kernel.cgroups import Cgroups
from podkeep.kernel.namespaces import NamespaceHelper
from podkeep.runtime.container_executor import ContainerExecutor
from podkeep.runtime.handlers import HandlerTable
from podkeep.runtime.layout import Layout
from podkeep.runtime.network.bridge import Bridge
from podkeep.runtime.records import ContainerState, SandboxState
from podkeep.runtime.recovery import Recovery
from podkeep.runtime.sandbox_executor import SandboxExecutor
from podkeep.runtime.state import State


@pytest.mark.parametrize("state", [SandboxState.CREATING, SandboxState.REMOVING])
@pytest.mark.parametrize("with_container", [False, True])
def test_pods_of_a_handler_that_is_configured_no_more(
    tmp_path: Path, state: SandboxState, with_container: bool
) -> None:
    layout = Layout(root=tmp_path / "root", run=tmp_path / "run")
    for directory in layout.shared_directories():
        directory.mkdir(parents=True, exist_ok=True)
    records = State(layout.state)
    records.add_sandbox(sandbox(state=state, handler="gone", cgroup_parent="/podkeep-unit"))
    if with_container:
        records.add_container(container())
        status = records.containers()[0].status
        records.set_container(records.containers()[0].id, type(status)(state=ContainerState.REMOVING, created_at=1))
    handlers = HandlerTable.from_config({"crun": HandlerConfig(path="crun")}, "crun", conmon="conmon", layout=layout)
    sandboxes = SandboxExecutor(
        layout=layout,
        helper=NamespaceHelper(),
        cgroups=Cgroups(),
        bridge=Bridge.from_config(NetworkConfig(), layout.run),
        catatonit="catatonit",
    )
    images = ImageStore.open(layout.images, config=ImagesConfig(), registries={})
    containers = ContainerExecutor(layout, images, sandboxes, Path("/dev/null"))
    Recovery(records, layout, handlers, sandboxes, containers).run()
    # Shown again, so that RemovePodSandbox can retry when the handler is back.
    assert [item.status.state for item in records.sandboxes()] == [SandboxState.NOTREADY]
    assert [item.status.state for item in records.containers()] == ([ContainerState.EXITED] if with_container else [])
    images.close()
    records.close()
