"""The MachineConfig object: valid as its operator reads it, and decoded it is exactly the source."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from podkeep.base.errors import FailedPrecondition, InvalidArgument
from podkeep.mountns import execstart, machine_config, units
from podkeep.mountns.execstart import Entry
from podkeep.mountns.namespace_ref import DEFAULT_PIN, KUBENS_PIN, UNIT

PAGE = Path(__file__).parents[3] / "docs" / "mount-namespace.md"
ENTRY = Entry(pin=DEFAULT_PIN)
KUBELET = """\
# /etc/systemd/system/kubelet.service
[Unit]
Requires=crio.service

[Service]
Type=notify
ExecStart=/usr/local/bin/kubenswrapper \\
    /usr/bin/kubelet \\
      --config=/etc/kubernetes/kubelet.conf \\
      --node-labels=node-role.kubernetes.io/worker,node.openshift.io/os_id=${ID},${CUSTOM_KUBELET_LABELS} \\
      --v=${KUBELET_LOG_LEVEL}

# /etc/systemd/system/kubelet.service.d/01-kubens.conf
[Service]
EnvironmentFile=-/run/kubens/env
"""
CRIO = """\
# /usr/lib/systemd/system/crio.service
[Service]
Type=notify
ExecStart=/usr/bin/crio \\
          $CRIO_CONFIG_OPTIONS

# /etc/systemd/system/crio.service.d/01-kubens.conf
[Service]
EnvironmentFile=-/run/kubens/env
"""
DAEMONS = {"kubelet.service": KUBELET, "crio.service": CRIO}

SCHEMA: dict[str, Any] = {
    "apiVersion": r"machineconfiguration\.openshift\.io/v1",
    "kind": "MachineConfig",
    "metadata": {"name": r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", "labels": {machine_config.ROLE_LABEL: r"[-a-z0-9]+"}},
    "spec": {
        "config": {
            "ignition": {"version": r"3\.2\.0"},
            "storage": {
                "files": [
                    {
                        "path": r"/\S+",
                        "mode": 0o7777,
                        "overwrite": True,
                        "contents": {"source": r"data:text/plain;charset=utf-8;base64,[A-Za-z0-9+/]+={0,2}"},
                    }
                ]
            },
            "systemd": {
                "units": [
                    {
                        "name": r"[-a-z]+\.service",
                        "enabled?": True,
                        "contents?": r"(?s)\[Unit\]\n.+",
                        "dropins?": [{"name": r"[-a-z]+\.conf", "contents": r"(?s)\[Unit\]\n.+"}],
                    }
                ]
            },
        }
    },
}
"""Which keys a MachineConfig and Ignition 3.2 have, of those we use, with patterns of values; `?`: may be absent."""


def check(value: object, schema: object, where: str = "") -> None:
    if isinstance(schema, dict):
        assert isinstance(value, dict), where
        known = {str(key).rstrip("?"): inner for key, inner in schema.items()}
        assert {key for key in schema if not key.endswith("?")} <= set(value) <= set(known), where
        for key, inner in value.items():
            check(inner, known[key], f"{where}.{key}")
    elif isinstance(schema, list):
        assert isinstance(value, list), where
        assert value, where
        for index, inner in enumerate(value):
            check(inner, schema[0], f"{where}[{index}]")
    elif isinstance(schema, bool):
        assert value is schema, where
    elif isinstance(schema, int):
        assert isinstance(value, int), where
        assert 0 <= value <= schema, where
    else:
        assert isinstance(value, str), where
        assert re.fullmatch(str(schema), value), where


def rendered(**options: Any) -> dict[str, Any]:
    made = machine_config.render("worker", options.pop("entry", ENTRY), options.pop("daemons", DAEMONS), **options)
    read: dict[str, Any] = yaml.safe_load(yaml.safe_dump(made, sort_keys=False))
    assert read == made, "as YAML it is the same"
    return read


def found_units(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {unit["name"]: unit for unit in document["spec"]["config"]["systemd"]["units"]}


@pytest.mark.requirement("M17")
def test_it_decodes_to_the_unit_the_drop_ins_and_the_helper() -> None:
    document = rendered()
    check(document, SCHEMA)
    assert document["metadata"]["name"] == "02-worker-container-mount-namespace"
    assert "a separate object, `02-worker-container-mount-namespace`, and no part of\n`00-worker`:" in PAGE.read_text()
    (file,) = document["spec"]["config"]["storage"]["files"]
    assert (file["path"], file["mode"]) == ("/usr/local/bin/nsenterCmns", 0o755)
    assert base64.b64decode(file["contents"]["source"].partition(",")[2]).decode() == units.helper(DEFAULT_PIN)
    found = found_units(document)
    assert set(found) == {UNIT, "kubelet.service", "crio.service"}
    assert found[UNIT]["contents"] == units.service(DEFAULT_PIN, podkeep=None, enabled=True)
    for name, text in DAEMONS.items():
        (drop_in,) = found[name]["dropins"]
        unit = execstart.read(name, execstart.split(text, name))
        assert drop_in == {"name": units.DROP_IN, "contents": units.drop_in(unit, ENTRY)}
    wrapped = found["kubelet.service"]["dropins"][0]["contents"]
    assert f"\nExecStart=\nExecStart=/usr/bin/nsenter --mount={DEFAULT_PIN} -- /usr/local/bin/kubenswrapper" in wrapped
    assert "os_id=${ID},${CUSTOM_KUBELET_LABELS}" in wrapped


def test_units_that_have_our_drop_in_already_give_the_same() -> None:
    (drop_in,) = found_units(rendered())["crio.service"]["dropins"]
    with_it = f"{CRIO}\n# /etc/systemd/system/crio.service.d/{units.DROP_IN}\n{drop_in['contents']}"
    assert rendered(daemons={"crio.service": with_it}) == rendered(daemons={"crio.service": CRIO})


def test_where_kubens_is_there_it_is_switched_on() -> None:
    document = rendered(entry=Entry(pin=KUBENS_PIN))
    check(document, SCHEMA)
    found = found_units(document)
    assert found["kubens.service"] == {"name": "kubens.service", "enabled": True}
    assert UNIT not in found
    contents = [unit["dropins"][0]["contents"] for unit in found.values() if "dropins" in unit]
    assert all("nsenter" not in text and "Requires=kubens.service" in text for text in contents)


def test_kept() -> None:
    assert "ExecStop" not in found_units(rendered(keep=True))[UNIT]["contents"]


@pytest.mark.parametrize("role", ["", "Worker", "a/b", "-a", "a" * 41, "a\n"])
def test_a_role_that_is_none_is_refused(role: str) -> None:
    with pytest.raises(InvalidArgument, match="role"):
        machine_config.render(role, ENTRY, DAEMONS)


def test_without_a_daemon_there_is_nothing_to_render() -> None:
    with pytest.raises(FailedPrecondition, match="units as the nodes have them"):
        machine_config.render("worker", ENTRY, {})
