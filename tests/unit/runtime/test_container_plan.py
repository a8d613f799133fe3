"""What is decided of a container before anything is mounted or copied for it."""

from __future__ import annotations

import pytest
from runtime_values import NULL_DEVICE, container_config, spec_input

from podkeep.base.errors import InvalidArgument
from podkeep.runtime.lifecycle.container_plan import resolve
from podkeep.runtime.model.records import Mount
from podkeep.runtime.oci import spec
from podkeep.runtime.oci.compose import mounting, setting
from podkeep.runtime.oci.mounts import StagedMount, bind
from podkeep.runtime.oci.selinux import Labels

LABEL = "system_u:object_r:container_file_t:s0:c1,c2"


def test_a_plan_is_the_request_with_what_is_added_in_order() -> None:
    given = spec_input(
        container=container_config(mounts=(Mount(container_path="/data", host_path="/h"),)),
        staged={0: StagedMount(source="/copies/0")},
        volumes={"/cache": "/volumes/0"},
        labels=Labels(mount=LABEL),
    )
    copies = {"/lib": StagedMount(source="/copies/source-0")}
    plan = resolve(given, copies, setting("annotations", a="1", b="1"), setting("annotations", b="2"))
    assert (plan.user, plan.label, plan.volumes) == (given.user, LABEL, given.volumes)
    assert (plan.staged, plan.devices) == (given.staged, copies)
    assert plan.config == {**spec.build(given), "annotations": {"a": "1", "b": "2"}}


def test_what_is_added_must_go_with_the_request() -> None:
    given = spec_input(devices=({**NULL_DEVICE, "path": "/data/null", "access": "rwm", "source": "/dev/null"},))
    with pytest.raises(InvalidArgument, match="/data/null would be made in the volume at /data"):
        resolve(given, {}, mounting(bind("/data", "/h")))


def test_what_a_plan_says_of_itself_has_no_secrets() -> None:
    config = container_config(command=("/bin/app", "--token=secret"), envs=(("PASSWORD", "secret"),))
    text = str(resolve(spec_input(container=config, cgroup="/pods/c"), {}))
    assert text.startswith("user=0:0 cgroup=/pods/c namespaces=mount=new,ipc=/run/ns/ipc,pid=new,network=/run/ns/net ")
    assert "/etc/hosts=/pod/hosts" in text
    assert "secret" not in text
