"""CDI: names, spec files, which file wins, and what edits do to a configuration."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime_values import container_config, in_own_userns, spec_input

from podkeep.base.errors import FailedPrecondition, InvalidArgument, NotFound
from podkeep.runtime.model.records import Mount as RequestMount
from podkeep.runtime.oci import spec
from podkeep.runtime.oci.cdi import edits as cdi_edits
from podkeep.runtime.oci.cdi import spec as cdi
from podkeep.runtime.oci.cdi.edits import Prepared
from podkeep.runtime.oci.cdi.nodes import is_bind, prepare
from podkeep.runtime.oci.cdi.registry import MAX_SPEC_BYTES, Registry
from podkeep.runtime.oci.cdi.spec import (
    DeviceNode,
    Edits,
    Hook,
    IntelRdt,
    Mount,
    NetDevice,
    Spec,
)
from podkeep.runtime.oci.mounts import StagedMount
from support.beside import exchanging

WHOLE = """
cdiVersion: "1.1.0"
kind: vendor.com/class.sub
annotations: {any: thing}
containerEdits:
  env: [A=1, "B=with = and, comma"]
devices:
- name: 0-first:part
  annotations: {more: things}
  containerEdits:
    deviceNodes:
    - {path: /dev/one, hostPath: /dev/null, type: c, major: 1, minor: 3, fileMode: 0640, permissions: rw, uid: 1,
       gid: 2}
    - {path: /dev/two, permissions: none}
    mounts:
    - {hostPath: /lib, containerPath: /vendor, options: [ro, nosuid], type: bind}
    hooks:
    - {hookName: startContainer, path: /hook, args: [hook, x], env: [C=2], timeout: 3}
    intelRdt: {closID: gold, l3CacheSchema: "L3:0=f", memBwSchema: "MB:0=50", enableMonitoring: true, schemata: [x]}
    additionalGids: [5, 6]
    netDevices:
    - {hostInterfaceName: eth9, name: eth1}
"""


def document(**fields: Any) -> dict[str, Any]:
    device = {"name": "one", "containerEdits": {"env": ["A=1"]}}
    return {"cdiVersion": "0.3.0", "kind": "vendor.com/class", "devices": [device], **fields}


def parse(**fields: Any) -> Spec:
    return cdi.parse(json.dumps(document(**fields)).encode(), "/etc/cdi/file.json")


def with_edits(version: str = "0.3.0", **edits: Any) -> Spec:
    return parse(cdiVersion=version, devices=[{"name": "one", "containerEdits": edits}])


def test_every_field() -> None:
    found = cdi.parse(WHOLE.encode(), "/etc/cdi/file.yaml")
    assert (found.kind, found.path) == ("vendor.com/class.sub", "/etc/cdi/file.yaml")
    assert found.edits == Edits(env=("A=1", "B=with = and, comma"))
    assert found.devices == {
        "0-first:part": Edits(
            device_nodes=(
                DeviceNode(
                    path="/dev/one", host_path="/dev/null", type="c", major=1, minor=3, file_mode=0o640,
                    permissions="rw", uid=1, gid=2,
                ),
                DeviceNode(path="/dev/two", permissions="none"),
            ),
            mounts=(Mount(host_path="/lib", container_path="/vendor", options=("ro", "nosuid"), type="bind"),),
            hooks=(Hook(hook_name="startContainer", path="/hook", args=("hook", "x"), env=("C=2",), timeout=3),),
            intel_rdt=IntelRdt(
                clos_id="gold", l3_cache_schema="L3:0=f", mem_bw_schema="MB:0=50", enable_monitoring=True,
                schemata=("x",),
            ),
            additional_gids=(5, 6),
            net_devices=(NetDevice(host_interface_name="eth9", name="eth1"),),
        )
    }  # fmt: skip
    as_json = json.dumps(document(devices=[{"name": "one", "containerEdits": {"env": ["A=1"]}}])).encode()
    assert cdi.parse(as_json, "x.json") == cdi.parse(as_json, "x.json")
    assert cdi.parse(as_json, "x.json").devices == cdi.parse(as_json, "x.yaml").devices


BAD: dict[str, tuple[Mapping[str, Any], str]] = {
    "unknown field": ({"more": 1}, "unknown field `more`"),
    "no devices": ({"devices": []}, "devices: there are none"),
    "version of the future": ({"cdiVersion": "9.0.0"}, "cdiVersion: '9.0.0'"),
    "version that is a number": ({"cdiVersion": 1.0}, "cdiVersion"),
    "kind without class": ({"kind": "vendor.com"}, "kind: 'vendor.com'"),
    "kind with two slashes": ({"kind": "vendor.com/a/b"}, "kind"),
    "kind that begins with a digit": ({"kind": "1vendor/a"}, "kind"),
    "kind that ends with a dot": ({"kind": "vendor/a."}, "kind"),
    "device name": ({"devices": [{"name": "-x", "containerEdits": {"env": ["A=1"]}}]}, "'-x'"),
    "device without edits": ({"devices": [{"name": "x", "containerEdits": {}}]}, "'x' has no containerEdits"),
    "the same device twice": ({"devices": document()["devices"] * 2}, "'one' is there more than once"),
    "global edits": ({"containerEdits": {"env": ["=1"]}}, "env: '=1'"),
}


@pytest.mark.parametrize("case", BAD)
def test_files_that_are_refused(case: str) -> None:
    fields, told = BAD[case]
    with pytest.raises(InvalidArgument, match=r"^CDI spec /etc/cdi/file\.json: ") as caught:
        parse(**fields)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("edits", "told"),
    [
        ({"env": ["NAME"]}, "env: 'NAME'"),
        ({"env": ["A=\0"]}, "env"),
        ({"deviceNodes": [{"path": "dev/x"}]}, "deviceNodes: 'dev/x'"),
        ({"deviceNodes": [{"path": "/dev/x", "hostPath": "x"}]}, "deviceNodes: '/dev/x'"),
        ({"deviceNodes": [{"path": "/dev/x", "type": "d"}]}, "type 'd'"),
        ({"deviceNodes": [{"path": "/dev/x", "permissions": "rwx"}]}, "permissions 'rwx'"),
        ({"deviceNodes": [{"hostPath": "/dev/x"}]}, "path"),
        ({"mounts": [{"hostPath": "/x", "containerPath": "x"}]}, "containerPath 'x'"),
        ({"mounts": [{"hostPath": "", "containerPath": "/x"}]}, "hostPath is required"),
        ({"hooks": [{"hookName": "onStart", "path": "/x"}]}, "hookName 'onStart'"),
        ({"hooks": [{"hookName": "prestart", "path": "x"}]}, "path 'x'"),
        ({"hooks": [{"hookName": "prestart", "path": "/x", "timeout": 0}]}, "timeout 0"),
        ({"hooks": [{"hookName": "prestart", "path": "/x", "env": ["A"]}]}, "hooks: prestart: env: 'A'"),
        ({"intelRdt": {"closID": "a/b"}}, "closID 'a/b'"),
        ({"intelRdt": {"closID": ".."}}, "closID"),
        ({"additionalGids": [-1]}, "additionalGids: -1"),
        ({"additionalGids": [2**32 - 1]}, "additionalGids"),
    ],
)
def test_edits_that_are_refused(edits: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidArgument, match="CDI spec") as caught:
        with_edits("0.7.0", **edits)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("version", "fields"),
    [
        ("0.4.0", {"mounts": [{"hostPath": "/x", "containerPath": "/x", "type": "bind"}]}),
        ("0.5.0", {"deviceNodes": [{"path": "/dev/x", "hostPath": "/dev/y"}]}),
        ("0.7.0", {"intelRdt": {"closID": "a"}}),
        ("0.7.0", {"additionalGids": [1]}),
        ("1.1.0", {"netDevices": [{"hostInterfaceName": "a", "name": "b"}]}),
        ("1.1.0", {"intelRdt": {"enableMonitoring": True}}),
    ],
)
def test_what_came_with_a_version_needs_it(version: str, fields: dict[str, Any]) -> None:
    versions = ["0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"]
    for number, item in enumerate(versions):
        if number >= versions.index(version):
            assert with_edits(item, **fields).devices["one"] != Edits()
        else:
            with pytest.raises(InvalidArgument, match=f"came with (0.7.0|{version})"):
                with_edits(item, **fields)


def test_names_that_came_with_a_version() -> None:
    with pytest.raises(InvalidArgument, match=r"begins with a digit came with 0\.5\.0"):
        parse(devices=[{"name": "0", "containerEdits": {"env": ["A=1"]}}])
    with pytest.raises(InvalidArgument, match=r"a class with a dot came with 0\.6\.0"):
        parse(kind="vendor/a.b")
    with pytest.raises(InvalidArgument, match=r"annotations came with 0\.6\.0"):
        parse(annotations={"a": "b"})


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"- a",
        b"{",
        b"\xff",
        b"a: &a [*a]",
        b"!!python/object:os.system x",
        b"[" * 5000,
        b"a: 2024-99-99",
        b"a: " + b"9" * 5000,
    ],
    ids=lambda text: text[:12].hex(),
)
@pytest.mark.parametrize("name", ["/etc/cdi/x.json", "/etc/cdi/x.yaml"])
def test_text_that_is_no_spec(text: bytes, name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"CDI spec {name}: "):
        cdi.parse(text, name)


@given(data=st.binary(max_size=200), name=st.sampled_from(["x.json", "x.yaml"]))
def test_no_text_makes_anything_but_an_error(data: bytes, name: str) -> None:
    with pytest.raises(InvalidArgument, match="CDI spec"):
        cdi.parse(data, name)


# names


@pytest.mark.parametrize("name", ["vendor.com/class=name", "v/c=0", "nvidia.com/gpu=GPU-1:2", "a-b_c.d/e.f=g.h_i-j"])
def test_names_of_devices(name: str) -> None:
    assert cdi.check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "x", "/dev/x", "v/c", "v/c=", "=x", "v=x", "/c=x", "1v/c=x", "v/c=x/y", "v/c= x", "v/c=x=y", "v/c/d=x"]
)
def test_what_is_no_name_of_a_device(name: str) -> None:
    with pytest.raises(InvalidArgument, match="not the name of a CDI device"):
        cdi.check_name(name)


def test_devices_of_field_and_annotations() -> None:
    annotations = {"cdi.k8s.io/b": "v/c=3,v/c=1", "cdi.k8s.io/a": "v/c=2", "cdi.k8s.ioX": "nonsense", "x": "v/c=9"}
    assert cdi.requested(["v/c=1", "v/c=0", "v/c=1"], annotations) == ("v/c=1", "v/c=0", "v/c=2", "v/c=3")
    for wrong in ("", "v/c=1,", "v/c=1, v/c=2"):
        with pytest.raises(InvalidArgument, match="not the name of a CDI device"):
            cdi.requested([], {"cdi.k8s.io/a": wrong})


# resolution


def of(path: str, kind: str = "v/c", **devices: str) -> Spec:
    return Spec(
        path=path,
        kind=kind,
        edits=Edits(env=(f"FILE={path}",)),
        devices={name: Edits(env=(value,)) for name, value in devices.items()},
    )


def test_global_edits_come_once_and_before_the_devices() -> None:
    found, unknown = cdi.resolve([[of("a", x="X=1", y="Y=1"), of("b", "v/d", z="Z=1")]], ["v/c=y", "v/d=z", "v/c=x"])
    assert unknown == ()
    assert found.env == ("FILE=a", "Y=1", "FILE=b", "Z=1", "X=1")


def test_later_directories_go_before_earlier_ones() -> None:
    found, unknown = cdi.resolve([[of("a", x="X=1", y="Y=1")], [of("b", x="X=2")]], ["v/c=x", "v/c=y", "v/c=z"])
    assert unknown == ("v/c=z",)
    assert found.env == ("FILE=b", "X=2", "FILE=a", "Y=1")


def test_a_device_in_two_files_of_one_directory() -> None:
    specs = [[of("a", x="X=1", y="Y=1"), of("b", x="X=2")]]
    assert cdi.resolve(specs, ["v/c=y"])[0].env == ("FILE=a", "Y=1")
    with pytest.raises(FailedPrecondition, match="CDI device v/c=x is in a and b"):
        cdi.resolve(specs, ["v/c=x"])
    assert cdi.resolve([*specs, [of("c", x="X=3")]], ["v/c=x"])[0].env == ("FILE=c", "X=3")


# files


def write(path: Path, value: str, kind: str = "v/c") -> None:
    path.write_text(json.dumps(document(kind=kind, devices=[{"name": "x", "containerEdits": {"env": [f"A={value}"]}}])))


def test_only_files_right_in_the_directories_are_read(tmp_path: Path) -> None:
    write(tmp_path / "a.json", "1")
    for name in ("b.txt", ".json.swp", "c.yml"):
        (tmp_path / name).write_text("nonsense")
    (tmp_path / "directory.json").mkdir()
    (tmp_path / "dangling.json").symlink_to("nowhere")
    registry = Registry((str(tmp_path / "missing"), str(tmp_path), str(tmp_path / "a.json")))
    assert registry.edits(["v/c=x"]).env == ("A=1",)
    with pytest.raises(NotFound, match=f"v/c=y; hint: its vendor's software writes a file below .*{tmp_path}"):
        registry.edits(["v/c=y"])


def test_without_devices_nothing_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("nonsense")
    assert Registry((str(tmp_path),)).edits([]) == Edits()


def test_a_file_is_parsed_once_until_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write(path, "1")
    registry = Registry((str(tmp_path),))
    registry.edits(["v/c=x"])
    before = registry._read[str(path)][1]
    registry.edits(["v/c=x"])
    assert registry._read[str(path)][1] is before
    status = path.stat()
    write(path, "2")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert registry.edits(["v/c=x"]).env == ("A=2",)
    path.write_text("{")
    with pytest.raises(NotFound, match=f"CDI spec {path}: Input data was truncated"):
        registry.edits(["v/c=x"])
    path.unlink()
    with pytest.raises(NotFound, match="its vendor's software"):
        registry.edits(["v/c=x"])
    assert registry._read == {}


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "a.json").open("wb") as file:
        file.truncate(MAX_SPEC_BYTES + 1)
    with pytest.raises(NotFound, match="bytes are more than"):
        Registry((str(tmp_path),)).edits(["v/c=x"])


@pytest.mark.parametrize(("owner", "mode"), [(0, 0o666), (1000, 0o644)])
def test_a_file_that_others_than_root_can_write(tmp_path: Path, owner: int, mode: int) -> None:
    """Its hooks run as root on the machine."""
    path = tmp_path / "vendor.json"
    path.write_text(
        '{"cdiVersion": "0.6.0", "kind": "v/c", "devices": [{"name": "x", "containerEdits": {"env": ["A=1"]}}]}'
    )
    assert Registry((str(tmp_path),)).edits(["v/c=x"]).env == ("A=1",)
    os.chown(path, owner, 0)
    path.chmod(mode)
    with pytest.raises(NotFound, match="others than root can write it"):
        Registry((str(tmp_path),)).edits(["v/c=x"])


@pytest.mark.slow
def test_what_is_judged_is_what_is_read(tmp_path: Path) -> None:
    """A user who may write to the directory exchanges a file of root's for one of their own while it is looked at."""
    specs, other = tmp_path / "specs", tmp_path / "other.json"
    specs.mkdir()
    write(specs / "a.json", "1")
    write(other, "2")
    os.chown(other, 1000, 1000)
    with exchanging(specs / "a.json", other):
        for _ in range(3000):
            with suppress(NotFound):
                assert Registry((str(specs),)).edits(["v/c=x"]).env == ("A=1",)


# what edits do


def apply(edits: Edits = Edits(), **fields: Any) -> dict[str, Any]:  # noqa: B008
    prepared = Prepared(edits=edits, **{key: fields.pop(key) for key in ("devices", "mounts") if key in fields})
    return cdi_edits.apply(prepared, spec.build(spec_input(**fields)))


def test_no_edits_change_nothing() -> None:
    assert apply() == spec.build(spec_input())
    assert apply(sandbox=in_own_userns()) == spec.build(spec_input(sandbox=in_own_userns()))


def test_environment_and_groups() -> None:
    process = apply(Edits(env=("PATH=/vendor", "NEW=1", "NEW=2"), additional_gids=(0, 7, 7, 8)))["process"]
    assert process["env"] == ["PATH=/vendor", "HOME=/root", "NEW=2"]
    assert process["user"]["additionalGids"] == [0, 7, 8]


def test_hooks_are_in_order() -> None:
    hooks = (
        Hook(hook_name="createRuntime", path="/a"),
        Hook(hook_name="poststop", path="/b", args=("b", "x"), env=("C=1",), timeout=9),
        Hook(hook_name="createRuntime", path="/c"),
    )
    assert apply(Edits(hooks=hooks))["hooks"] == {
        "createRuntime": [{"path": "/a"}, {"path": "/c"}],
        "poststop": [{"path": "/b", "args": ["b", "x"], "env": ["C=1"], "timeout": 9}],
    }


def test_class_of_cache() -> None:
    edits = Edits(intel_rdt=IntelRdt(clos_id="a")) + Edits(intel_rdt=IntelRdt(clos_id="b", l3_cache_schema="L3:0=f"))
    assert apply(edits)["linux"]["intelRdt"] == {"closID": "b", "l3CacheSchema": "L3:0=f"}


def test_network_devices_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="network interface eth9"):
        apply(Edits(net_devices=(NetDevice(host_interface_name="eth9", name="eth0"),)))


NODE = {"path": "/dev/v", "type": "c", "major": 1, "minor": 3, "fileMode": 0o600, "source": "/dev/null", "access": "rw"}


def test_device_nodes() -> None:
    linux = apply(devices=(NODE,))["linux"]
    assert linux["devices"] == [{"path": "/dev/v", "type": "c", "major": 1, "minor": 3, "fileMode": 0o600}]
    assert linux["resources"]["devices"][-1] == {"allow": True, "type": "c", "major": 1, "minor": 3, "access": "rw"}
    silent = apply(devices=({**NODE, "access": ""},))["linux"]
    assert [rule for rule in silent["resources"]["devices"] if rule.get("minor") == 3] == []


def test_a_device_node_belongs_to_the_user_unless_the_vendor_says_otherwise() -> None:
    given = spec_input()
    user = type(given.user)(uid=1000, gid=50, groups=(50,), home="/")
    (node,) = apply(devices=(NODE,), user=user)["linux"]["devices"]
    assert (node["uid"], node["gid"]) == (1000, 50)
    (node,) = apply(devices=({**NODE, "uid": 0, "gid": 7},), user=user)["linux"]["devices"]
    assert (node["uid"], node["gid"]) == (0, 7)


def test_device_nodes_in_a_user_namespace_are_mounted() -> None:
    namespaces = {"mount": "", "user": "/ns/user"}
    config = apply(devices=(NODE,), sandbox=in_own_userns(), namespaces=namespaces)
    assert "devices" not in config["linux"]
    (mount,) = [item for item in config["mounts"] if item["destination"] == "/dev/v"]
    assert mount["source"] == "/dev/null"
    with pytest.raises(InvalidArgument, match="/dev/v is not on the machine"):
        apply(devices=({**NODE, "source": ""},), sandbox=in_own_userns(), namespaces=namespaces)


def bind(target: str) -> dict[str, Any]:
    return {"destination": target, "type": "bind", "source": "/vendor", "options": ["rbind", "ro"]}


def test_mounts_replace_those_at_the_same_path_and_precede_those_below() -> None:
    asked = tuple(RequestMount(container_path=path, host_path="/h") for path in ("/usr", "/usr/lib/x/y", "/same"))
    given = container_config(mounts=asked)
    config = apply(mounts=(bind("/usr/lib/"), bind("/same"), bind("/dev/shm"), bind("/new")), container=given)
    targets = [item["destination"] for item in config["mounts"]]
    assert targets.index("/dev") < targets.index("/dev/shm")
    assert targets.index("/usr") < targets.index("/usr/lib") < targets.index("/usr/lib/x/y")
    sources = {item["destination"]: item["source"] for item in config["mounts"]}
    assert len(sources) == len(targets)
    assert (sources["/same"], sources["/dev/shm"], sources["/usr"]) == ("/vendor", "/vendor", "/h")


# what the machine has


def test_nodes_are_looked_up() -> None:
    prepared = prepare(
        Edits(
            device_nodes=(
                DeviceNode(path="/dev/v", host_path="/dev/null"),
                DeviceNode(path="/dev/zero", type="u", permissions="r", file_mode=0o600, uid=3, gid=4),
                DeviceNode(path="/dev/not-there", type="b", major=8, minor=1, permissions="none"),
            )
        ),
        {},
    )
    null, zero, described = prepared.devices
    assert null == {**NODE, "fileMode": 0o666, "access": "rwm"}
    assert zero == {
        "path": "/dev/zero", "type": "c", "major": 1, "minor": 5, "fileMode": 0o600, "uid": 3, "gid": 4, "access": "r",
        "source": "/dev/zero",
    }  # fmt: skip
    assert described == {"path": "/dev/not-there", "type": "b", "major": 8, "minor": 1, "access": "", "source": ""}


def test_links_to_nodes_are_none(tmp_path: Path) -> None:
    """A link could lead elsewhere by the time the OCI runtime looks."""
    (tmp_path / "link").symlink_to("/dev/null")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FailedPrecondition, match="link is none"):
        prepare(Edits(device_nodes=(DeviceNode(path=str(tmp_path / "link")),)), {})
    (pipe,) = prepare(Edits(device_nodes=(DeviceNode(path=str(tmp_path / "pipe")),)), {}).devices
    assert pipe["type"] == "p"
    assert apply(devices=(pipe,))["linux"]["resources"] == apply()["linux"]["resources"]


@pytest.mark.parametrize(
    ("mount", "bound"),
    [
        (Mount(host_path="/x", container_path="/y"), True),
        (Mount(host_path="/x", container_path="/y", type="bind"), True),
        (Mount(host_path="/x", container_path="/y", type="none", options=("rbind",)), True),
        (Mount(host_path="tmpfs", container_path="/y", type="tmpfs"), False),
    ],
)
def test_which_mounts_are_of_host_paths(mount: Mount, bound: bool) -> None:
    assert is_bind(mount) is bound
    copies = {"/x": StagedMount(source="/copy")}
    made = [(item["destination"], item["source"]) for item in prepare(Edits(mounts=(mount,)), copies).mounts]
    assert made == ([("/y", "/copy")] if bound else [("/y", "tmpfs")])
