"""SELinux labels: which a container gets, and which options are refused."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest
from runtime_values import sandbox_config

from podkeep.base.config import NetworkConfig
from podkeep.base.errors import InvalidArgument, ResourceExhausted
from podkeep.base.ids import SandboxID
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.kernel.namespace.namespaces import NamespaceHelper
from podkeep.runtime.lifecycle.sandbox_executor import SandboxExecutor
from podkeep.runtime.model.layout import Layout
from podkeep.runtime.model.records import Sandbox, SandboxState, SandboxStatus, SELinuxOptions
from podkeep.runtime.model.state import State
from podkeep.runtime.network.networks import Networks
from podkeep.runtime.oci import selinux
from podkeep.runtime.oci.confinement import Confinement
from podkeep.runtime.oci.selinux import Labels, SELinux

NOTHING = SELinuxOptions()
ON = SELinux(enabled=True)
POD_LEVEL = "s0:c1,c2"
FILE = "system_u:object_r:container_file_t"


def labels(
    container: SELinuxOptions = NOTHING,
    sandbox: SELinuxOptions = NOTHING,
    *,
    selinux_: SELinux = ON,
    pod_level: str = POD_LEVEL,
    privileged: bool = False,
) -> Labels:
    return selinux.container_labels(
        selinux_, container=container, sandbox=sandbox, pod_level=pod_level, privileged=privileged
    )


@pytest.mark.requirement("V76")
@pytest.mark.parametrize(
    ("container", "sandbox", "process", "mount"),
    [
        (SELinuxOptions(), SELinuxOptions(), "system_u:system_r:container_t:s0:c1,c2", f"{FILE}:s0:c1,c2"),
        (SELinuxOptions(level="s0"), SELinuxOptions(), "system_u:system_r:container_t:s0", f"{FILE}:s0"),
        (
            SELinuxOptions(user="a_u", role="b_r", type="c_t", level="s0:c4,c5"), SELinuxOptions(),
            "a_u:b_r:c_t:s0:c4,c5", "a_u:object_r:container_file_t:s0:c4,c5",
        ),
        (
            SELinuxOptions(type="c_t"), SELinuxOptions(type="pod_t", level="s0:c7,c8"),
            "system_u:system_r:c_t:s0:c7,c8", f"{FILE}:s0:c7,c8",
        ),
        (
            SELinuxOptions(), SELinuxOptions(user="p_u", role="p_r", type="pod_t", level="s0:c7,c8"),
            "p_u:p_r:pod_t:s0:c7,c8", "p_u:object_r:container_file_t:s0:c7,c8",
        ),
    ],
)  # fmt: skip
def test_labels(container: SELinuxOptions, sandbox: SELinuxOptions, process: str, mount: str) -> None:
    assert labels(container, sandbox) == Labels(process=process, mount=mount)


def test_privileged_is_not_confined() -> None:
    assert labels(privileged=True) == Labels(process="system_u:system_r:spc_t:s0", mount=f"{FILE}:s0:c1,c2")
    named = SELinuxOptions(type="mine_t", level="s0:c4,c5")
    assert labels(named, privileged=True).process == "system_u:system_r:mine_t:s0:c4,c5"
    # A type for the whole pod does not confine the container in it that is privileged.
    assert labels(sandbox=SELinuxOptions(type="pod_t"), privileged=True).process == "system_u:system_r:spc_t:s0"


def test_nothing_where_it_is_off() -> None:
    assert labels(SELinuxOptions(type="c_t"), selinux_=SELinux()) == Labels()


def test_contexts_of_the_machines_policy() -> None:
    policy = SELinux.from_policy({"process": "x_u:x_r:x_t:s0", "file": "y_u:y_r:y_t:s0", "sandbox": "z"})
    assert labels(selinux_=policy) == Labels(process="x_u:x_r:x_t:s0:c1,c2", mount="y_u:y_r:y_t:s0:c1,c2")
    assert SELinux.from_policy({}) == ON
    without_levels = SELinux.from_policy({"process": "x_u:x_r:x_t", "file": "y_u:y_r:y_t"})
    assert labels(selinux_=without_levels, pod_level="") == Labels(process="x_u:x_r:x_t:s0", mount="y_u:y_r:y_t:s0")


@pytest.mark.parametrize(
    "options",
    [
        SELinuxOptions(),
        *(SELinuxOptions(level=text) for text in ("s0", "s15:c0", "s0:c1023", "s0-s0:c0.c1023", "s0:c1,c5.c9,c11")),
        SELinuxOptions(user="system_u", role="system_r", type="svirt_lxc_net_t"),
        SELinuxOptions(type="my.own-type_t"),
    ],
)
def test_options_that_are_taken(options: SELinuxOptions) -> None:
    selinux.check("field", options)
    assert labels(options).process.count(":") >= 3


@pytest.mark.parametrize(
    ("part", "text"),
    [
        *(
            ("level", text)
            for text in (
                "s0,c4,c5", "c1", "s", "s0:", "s0:c", "s0:c1,", "s0:c1024", "s0:c01", "s0-", "s0:c1:c2", "s0 ", "s0\n",
                "s100", "s0:c1.c2.c3", "S0", "s0-s1-s2", "s0:c1" + ",c1" * 100, "s\u0660",
            )
        ),
        *(
            (part, text)
            for part in ("user", "role", "type")
            for text in ("a:b", "a b", "\n", "-a", "1a", "a" * 256, "é")
        ),
    ],
)  # fmt: skip
def test_options_that_are_refused(part: str, text: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"options\.{part}") as caught:
        selinux.check("options", SELinuxOptions(**{part: text}))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_every_pod_has_a_level_of_its_own() -> None:
    used: set[str] = set()
    for _ in range(2000):
        level = selinux.allocate(used)
        selinux.check("", SELinuxOptions(level=level))
        low, high = (int(item[1:]) for item in level.removeprefix("s0:").split(","))
        assert 0 <= low < high < selinux.CATEGORIES
        assert level not in used
        used.add(level)


@pytest.mark.slow
def test_the_last_level_is_found() -> None:
    count = selinux.CATEGORIES
    every = {f"s0:c{low},c{high}" for low in range(count) for high in range(low + 1, count)}
    assert selinux.allocate(every - {"s0:c1022,c1023"}) == "s0:c1022,c1023"
    with pytest.raises(ResourceExhausted, match="SELinux"):
        selinux.allocate(every)


def test_files_of_a_pod_have_its_label(tmp_path: Path) -> None:
    """Without SELinux the kernel keeps the attribute, and nobody looks at it."""
    layout = Layout(root=tmp_path / "root", run=tmp_path / "run")
    for directory in layout.shared_directories():
        directory.mkdir(exist_ok=True, parents=True)
    status = SandboxStatus(state=SandboxState.CREATING, created_at=1, selinux_level=POD_LEVEL)
    sandbox = Sandbox(id=SandboxID("a" * 64), config=sandbox_config(hostname="web"), status=status)
    with NamespaceHelper() as helper, closing(State(layout.state)) as state:
        executor = SandboxExecutor(
            layout=layout,
            helper=helper,
            cgroups=Cgroups(),
            networks=Networks(NetworkConfig(), layout, state),
            catatonit="/usr/bin/catatonit",
            confinement=Confinement(selinux=ON),
        )
        executor._write_files(sandbox)
    data = layout.sandbox_data(sandbox.id)
    for name in ("hosts", "hostname", "resolv.conf"):
        assert os.getxattr(data / name, "security.selinux") == f"{FILE}:{POD_LEVEL}\0".encode()
