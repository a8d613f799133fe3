"""What the OCI configurations of containers, infra processes and probes are put together of."""

from __future__ import annotations

import copy

from runtime_values import IDMAP

from podkeep.runtime.oci.compose import (
    OCI_VERSION,
    base,
    compose,
    joining,
    labelled,
    mapped,
    mounting,
    only_program,
    setting,
)
from podkeep.runtime.oci.selinux import Labels

EMPTY = {"allow": False, "access": "rwm"}


def test_an_edit_sees_those_before_it_and_changes_nothing_that_it_was_given() -> None:
    start = base("/bin/app", "-x", rootfs="/r", cgroup="/pods/c")
    before = copy.deepcopy(start)
    made = compose(
        start,
        setting("process", cwd="/old", terminal=False),
        setting("process", cwd="/new", apparmorProfile=None),
        setting("annotations"),
        mounting({"destination": "/a"}),
        mounting({"destination": "/b"}),
        mapped(None),
        labelled(Labels()),
    )
    assert start == before
    assert made == {
        "ociVersion": OCI_VERSION,
        "process": {**start["process"], "cwd": "/new", "terminal": False},
        "root": {"path": "/r"},
        "mounts": [{"destination": "/a"}, {"destination": "/b"}],
        "linux": {"cgroupsPath": "/pods/c", "resources": {"devices": [EMPTY]}},
    }


def test_a_program_alone_in_namespaces_of_a_pod() -> None:
    made = compose(
        only_program("/usr/bin/catatonit", "/catatonit", "-P", rootfs="/r", cgroup="pods:podkeep:c"),
        joining({"pid": "", "user": "/pins/user"}),
        mapped(IDMAP),
        labelled(Labels(process="u:r:p:s0", mount="u:r:m:s0")),
    )
    assert made["process"]["args"] == ["/catatonit", "-P"]
    assert made["process"]["selinuxLabel"] == "u:r:p:s0"
    program = made["mounts"][-1]
    assert (program["destination"], program["source"]) == ("/catatonit", "/usr/bin/catatonit")
    (mapping,) = made["linux"].pop("uidMappings")
    assert [mapping] == made["linux"].pop("gidMappings")
    (expected,) = IDMAP.uids
    assert mapping == {"containerID": 0, "hostID": expected.host_id, "size": expected.length}
    assert made["linux"] == {
        "cgroupsPath": "pods:podkeep:c",
        "resources": {"devices": [EMPTY]},
        "namespaces": [{"type": "pid"}, {"type": "user", "path": "/pins/user"}],
        "mountLabel": "u:r:m:s0",
    }
