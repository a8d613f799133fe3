"""`podkeep mountns install`, `uninstall` and `machine-config` as they are typed, for a machine in a directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from support.podkeep import podkeep

DIRECTORY = "/etc/systemd/system"
SERVICE = f"{DIRECTORY}/container-mount-namespace.service"
KUBELET = f"{DIRECTORY}/kubelet.service.d/zz-container-mount-namespace.conf"
HELPER = "/usr/local/bin/nsenterCmns"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The root directory of a machine with systemd and a kubelet."""
    top = tmp_path / "root"
    for name in ("systemctl", "nsenter", "env"):
        program = top / "usr/bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.touch(mode=0o755)
    units = top / "usr/lib/systemd/system"
    units.mkdir(parents=True)
    (units / "kubelet.service").write_text("[Service]\nExecStart=/usr/bin/kubelet --v=2\n")
    return top


@pytest.mark.requirement("M16")
@pytest.mark.slow
def test_what_is_written_is_named_and_taken_back(root: Path) -> None:
    before = sorted(path for path in root.rglob("*") if path.is_file())
    out, _ = podkeep("mountns", "install", "--root", str(root))
    assert out == f"wrote {SERVICE}\nwrote {KUBELET}\nwrote {HELPER}\n"
    again, _ = podkeep("mountns", "install", "--root", str(root), "-o", "json")
    assert json.loads(again)["unchanged"] == [SERVICE, KUBELET, HELPER]
    out, _ = podkeep("mountns", "uninstall", "--root", str(root))
    assert sorted(out.splitlines()) == sorted(f"removed {path}" for path in (SERVICE, KUBELET, HELPER))
    assert sorted(path for path in root.rglob("*") if path.is_file()) == before
    assert podkeep("mountns", "uninstall", "--root", str(root))[0] == "nothing to do\n"


@pytest.mark.slow
def test_pin_of_the_configuration_is_used_and_not_that_of_the_shell(root: Path) -> None:
    setting = ["--set", "mountns.pin=/run/elsewhere/mnt"]
    podkeep(*setting, "mountns", "install", "--root", str(root), environment={"KUBENSMNT": "/run/other/mnt"})
    assert "--mount=/run/elsewhere/mnt" in (root / KUBELET.lstrip("/")).read_text()


@pytest.mark.slow
def test_unit_that_is_not_there_is_named(root: Path) -> None:
    _, said = podkeep("mountns", "install", "--root", str(root), "crio", status=1)
    assert said.startswith("podkeep: crio.service does not exist\nhint: ")
    assert not (root / "etc").exists()


@pytest.mark.slow
@pytest.mark.requirement("M16")
def test_turned_off_nothing_is_installed(root: Path) -> None:
    _, said = podkeep("--set", "mountns.enabled=false", "mountns", "install", "--root", str(root), status=1)
    assert "mountns.enabled is false" in said
    assert not (root / "etc").exists()


@pytest.mark.slow
@pytest.mark.requirement("M17")
def test_machine_config_is_readable_yaml(root: Path, tmp_path: Path) -> None:
    unit = tmp_path / "kubelet.service"
    unit.write_text((root / "usr/lib/systemd/system/kubelet.service").read_text())
    out, _ = podkeep("mountns", "machine-config", str(unit))
    document = yaml.safe_load(out)
    assert document["metadata"]["name"] == "02-worker-container-mount-namespace"
    units = {item["name"]: item for item in document["spec"]["config"]["systemd"]["units"]}
    assert "ExecStart=/usr/bin/nsenter --mount=/run/container-mount-namespace/mnt" in str(units["kubelet.service"])
    assert "\n        contents: |\n" in out, "units are to be read by people"
    as_json, _ = podkeep("mountns", "machine-config", "--role", "worker", "-o", "json", str(unit))
    assert json.loads(as_json) == document


@pytest.mark.slow
def test_machine_config_says_which_file_is_wrong(tmp_path: Path) -> None:
    unit = tmp_path / "kubelet.conf"
    unit.touch()
    _, said = podkeep("mountns", "machine-config", str(unit), status=1)
    assert said == f"podkeep: {unit}: the name is no service's\nhint: name it as the unit: kubelet.service\n"
    _, said = podkeep("mountns", "machine-config", str(tmp_path / "absent.service"), status=1)
    assert said == f"podkeep: {tmp_path}/absent.service: No such file or directory\n"
