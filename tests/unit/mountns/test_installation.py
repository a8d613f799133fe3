"""Installing below a directory that holds a machine's root, and taking it back."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path, PurePath

import pytest
from msgspec import structs

from podkeep.base.errors import FailedPrecondition, InvalidArgument, NotFound
from podkeep.mountns import installation, units
from podkeep.mountns.installation import Origin, Report, Request
from podkeep.mountns.namespace_ref import DEFAULT_PIN, KUBENS_PIN

SERVICE = PurePath("/etc/systemd/system/container-mount-namespace.service")
KUBELET = PurePath("/etc/systemd/system/kubelet.service.d/zz-container-mount-namespace.conf")
CONTAINERD = PurePath("/etc/systemd/system/containerd.service.d/zz-container-mount-namespace.conf")
VENDOR = "/usr/lib/systemd/system"


def write(root: Path, path: str, text: str = "", mode: int = 0o644) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(mode)


def read(root: Path, path: PurePath) -> str:
    return (root / path.relative_to("/")).read_text()


def tree(root: Path) -> dict[str, tuple[int, str]]:
    files = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path.relative_to(root)): (path.stat().st_mode, path.read_text()) for path in files}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with a kubelet that kubeadm installed, and containerd."""
    for program in ("/usr/bin/systemctl", "/usr/bin/nsenter", "/usr/bin/env"):
        write(tmp_path, program, mode=0o755)
    (tmp_path / "bin").symlink_to("usr/bin")
    write(tmp_path, f"{VENDOR}/kubelet.service", "[Service]\nExecStart=/usr/bin/kubelet\n")
    write(
        tmp_path,
        f"{VENDOR}/kubelet.service.d/10-kubeadm.conf",
        "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet $KUBELET_KUBEADM_ARGS\n",
    )
    write(tmp_path, f"{VENDOR}/containerd.service", "[Service]\nExecStart=/usr/bin/containerd\n")
    return tmp_path


def written(root: Path) -> dict[Path, tuple[int, int, int]]:
    """Inode, mode and time of the last change of every path; the walk itself changes times of access."""
    found = {path: path.stat() for path in root.rglob("*")}
    return {path: (info.st_ino, info.st_mode, info.st_ctime_ns) for path, info in found.items()}


def request(root: Path) -> Request:
    return Request(pin=DEFAULT_PIN, podkeep=None, root=root)


@pytest.mark.requirement("M10", "M11", "M33")
def test_what_is_installed(root: Path) -> None:
    report = installation.install(request(root))
    assert report == Report(written=(SERVICE, KUBELET, CONTAINERD, units.HELPER))
    kubelet = read(root, KUBELET)
    assert kubelet.startswith("# Written by `podkeep mountns install`")
    wrapper = "nsenter --mount=/run/container-mount-namespace/mnt --"
    assert f"ExecStart=\nExecStart=/usr/bin/{wrapper} /usr/bin/kubelet $KUBELET_KUBEADM_ARGS\n" in kubelet
    assert "Requires=container-mount-namespace.service\nAfter=container-mount-namespace.service\n" in kubelet
    helper = root / "usr/local/bin/nsenterCmns"
    assert helper.stat().st_mode & 0o7777 == 0o755
    assert helper.read_text().startswith("#!/bin/sh\n# Written by ")


def test_again_changes_nothing(root: Path) -> None:
    first = installation.install(request(root))
    before = written(root)
    second = installation.install(request(root))
    assert second == Report(unchanged=first.written)
    assert written(root) == before


@pytest.mark.requirement("M16")
def test_uninstalled_nothing_is_left(root: Path) -> None:
    before = tree(root)
    installed = installation.install(request(root))
    removed = installation.uninstall(root)
    assert set(removed.removed) == set(installed.written)
    assert tree(root) == before
    assert not (root / "etc/systemd/system/kubelet.service.d").exists()
    assert installation.uninstall(root) == Report()


def test_what_was_changed_or_is_not_ours_is_left(root: Path) -> None:
    installation.install(request(root))
    edited = root / KUBELET.relative_to("/")
    edited.write_text(edited.read_text() + "# an administrator's\n")
    write(root, f"{CONTAINERD.parent}/override.conf", "[Service]\nNice=1\n")
    report = installation.uninstall(root)
    assert set(report.removed) == {CONTAINERD, units.HELPER}
    changed, needed = report.notes
    assert changed.startswith(f"{KUBELET} was changed")
    assert needed.startswith(f"{SERVICE} is left: kubelet.service does not start without it ({KUBELET})")
    assert edited.exists()
    assert (root / CONTAINERD.parent.relative_to("/") / "override.conf").exists()


def test_a_changed_drop_in_is_not_written_over(root: Path) -> None:
    installation.install(request(root))
    edited = root / KUBELET.relative_to("/")
    edited.write_text(edited.read_text() + "# an administrator's\n")
    before = tree(root)
    write(root, f"{VENDOR}/containerd.service", "[Service]\nExecStart=/usr/bin/containerd --new\n")
    with pytest.raises(FailedPrecondition, match="changed since; nothing was written"):
        installation.install(request(root))
    before[f"{VENDOR[1:]}/containerd.service"] = tree(root)[f"{VENDOR[1:]}/containerd.service"]
    assert tree(root) == before


def test_an_administrators_own_service_and_helper_are_used(root: Path) -> None:
    write(root, str(SERVICE), "[Service]\nExecStart=/bin/true\n")
    write(root, str(units.HELPER), "#!/bin/sh\n")
    report = installation.install(request(root))
    assert set(report.written) == {KUBELET, CONTAINERD}
    assert len(report.notes) == 2
    assert all("somebody else's" in note for note in report.notes)


def test_a_unit_that_cannot_be_wrapped_stops_all_of_it(root: Path) -> None:
    write(root, f"{VENDOR}/containerd.service", "[Service]\nExecStart=/usr/bin/containerd\nProtectHome=yes\n")
    before = tree(root)
    with pytest.raises(FailedPrecondition, match=r"containerd\.service has ProtectHome=yes"):
        installation.install(request(root))
    assert tree(root) == before
    only = installation.install(structs.replace(request(root), units=("kubelet",)))
    assert CONTAINERD not in only.written


@pytest.mark.requirement("M18")
def test_any_unit_can_be_named(root: Path) -> None:
    write(root, "/etc/systemd/system/k3s.service", "[Service]\nExecStart=/usr/local/bin/k3s server\n")
    report = installation.install(structs.replace(request(root), units=("k3s",)))
    drop_in = PurePath("/etc/systemd/system/k3s.service.d") / units.DROP_IN
    assert report.written == (SERVICE, drop_in, units.HELPER)
    write(root, "/etc/systemd/system/k3s.service", "[Service]\nExecStart=/usr/local/bin/k3s agent\n")
    assert drop_in in installation.install(request(root)).written, "one that has a drop-in is kept up to date"
    with pytest.raises(NotFound, match=r"nosuch\.service does not exist"):
        installation.install(structs.replace(request(root), units=("nosuch.service",)))


def test_masked_units_are_left_alone(root: Path) -> None:
    (root / "etc/systemd/system").mkdir(parents=True)
    (root / "etc/systemd/system/kubelet.service").symlink_to("/dev/null")
    report = installation.install(request(root))
    assert KUBELET not in report.written
    assert report.notes == ("kubelet.service is masked and left alone",)
    with pytest.raises(NotFound, match="is masked"):
        installation.install(structs.replace(request(root), units=("kubelet",)))


@pytest.mark.requirement("M16")
def test_a_masked_drop_in_stays_masked(root: Path) -> None:
    drop_in = root / KUBELET.relative_to("/")
    drop_in.parent.mkdir(parents=True)
    drop_in.symlink_to("/dev/null")
    report = installation.install(request(root))
    assert report.written == (SERVICE, CONTAINERD, units.HELPER)
    assert report.notes == (f"{KUBELET} is masked and left alone",)
    assert drop_in not in installation.uninstall(root).removed
    assert drop_in.is_symlink()


def test_what_a_unit_needs_by_itself_is_left(root: Path) -> None:
    unit = f"[Unit]\nRequires={SERVICE.name}\nAfter={SERVICE.name}\n[Service]\n"
    command = f"ExecStart=/usr/bin/podkeep runtime --mount-namespace={DEFAULT_PIN}\n"
    write(root, f"{VENDOR}/podkeep.service", unit + command)
    installation.install(request(root))
    report = installation.uninstall(root)
    assert set(report.removed) == {KUBELET, CONTAINERD, units.HELPER}
    (note,) = report.notes
    assert note.startswith(f"{SERVICE} is left: podkeep.service does not start without it ({VENDOR}/podkeep.service)")
    assert "mountns.enabled=false runtime unit" in note
    (root / VENDOR[1:] / "podkeep.service").unlink()
    assert installation.uninstall(root) == Report(removed=(SERVICE,))


def test_what_a_changed_drop_in_needs_is_left(root: Path) -> None:
    write(root, "/etc/systemd/system/k3s.service", "[Service]\nExecStart=/usr/local/bin/k3s server\n")
    installation.install(structs.replace(request(root), units=("kubelet", "k3s")))
    drop_in = PurePath("/etc/systemd/system/k3s.service.d") / units.DROP_IN
    edited = root / drop_in.relative_to("/")
    edited.write_text(edited.read_text() + "# an administrator's\n")
    report = installation.uninstall(root)
    assert set(report.removed) == {KUBELET, units.HELPER}
    assert read(root, SERVICE), "k3s.service would not start without it"
    assert [note for note in report.notes if note.startswith(f"{SERVICE} is left: k3s.service")]
    assert not [note for note in report.notes if "runtime unit" in note], "that is another unit"
    edited.unlink()
    assert set(installation.uninstall(root).removed) == {SERVICE}


def test_containerd_without_a_kubelet_is_dockers(root: Path) -> None:
    shutil.rmtree(root / VENDOR[1:] / "kubelet.service.d")
    (root / VENDOR[1:] / "kubelet.service").unlink()
    report = installation.install(request(root))
    assert report.written == (SERVICE, units.HELPER)
    (note,) = report.notes
    assert "containerd.service is left alone" in note
    assert "`podkeep mountns install containerd.service`" in note
    assert CONTAINERD in installation.install(structs.replace(request(root), units=("containerd",))).written
    assert CONTAINERD in installation.install(request(root)).unchanged, "who asked for it once has it kept up to date"


def test_an_instance_of_a_template_is_wrapped_alone(root: Path) -> None:
    write(root, "/etc/systemd/system/tm@.service", "[Service]\nExecStart=/usr/bin/tm %i\n")
    report = installation.install(structs.replace(request(root), units=("tm@foo.service",)))
    drop_in = PurePath("/etc/systemd/system/tm@foo.service.d") / units.DROP_IN
    assert drop_in in report.written
    assert "-- /usr/bin/tm %i\n" in read(root, drop_in)
    assert installation.findings(root) == []
    assert drop_in in installation.uninstall(root).removed


def test_instances_of_a_template_are_restarted() -> None:
    report = Report(restart=installation.restarted(["tm@.service", "kubelet.service"]))
    assert report.restart_command() == "systemctl restart 'tm@*.service' kubelet.service"


def test_a_drop_in_of_an_old_command_is_stale(root: Path) -> None:
    installation.install(request(root))
    assert installation.findings(root) == []
    write(
        root, "/etc/systemd/system/kubelet.service.d/override.conf", "[Service]\nExecStart=\nExecStart=/opt/kubelet\n"
    )
    (finding,) = installation.findings(root)
    assert finding.unit == "kubelet.service"
    assert "starts with the old one" in finding.message
    assert finding.hint == "podkeep mountns install, then: systemctl restart kubelet.service"
    assert installation.install(request(root)).written == (KUBELET,)
    assert installation.findings(root) == []
    assert "-- /opt/kubelet\n" in read(root, KUBELET)


def test_a_drop_in_that_is_set_aside_by_a_later_one_is_found(root: Path) -> None:
    installation.install(request(root))
    write(root, f"{KUBELET.parent}/zzz.conf", "[Service]\nExecStart=\nExecStart=/opt/kubelet\n")
    messages = [finding.message for finding in installation.findings(root)]
    assert any("outside of the container mount namespace" in message and "zzz.conf" in message for message in messages)


def test_a_drop_in_that_is_not_needed_any_more_goes(root: Path) -> None:
    write(root, f"{VENDOR}/podkeep.service", "[Service]\nExecStart=/usr/bin/podkeep runtime\n")
    path = PurePath("/etc/systemd/system/podkeep.service.d") / units.DROP_IN
    assert path in installation.install(request(root)).written
    assert f"ExecStart=/usr/bin/podkeep runtime --mount-namespace={DEFAULT_PIN}\n" in read(root, path)
    unit = "container-mount-namespace.service"
    whole = f"[Unit]\nRequires={unit}\nAfter={unit}\n[Service]\n"
    write(root, f"{VENDOR}/podkeep.service", f"{whole}ExecStart=podkeep runtime --mount-namespace={DEFAULT_PIN}\n")
    report = installation.install(request(root))
    assert report.removed == (path,)
    assert not (root / path.relative_to("/")).exists()


def test_podkeep_and_keep_are_in_the_service(root: Path) -> None:
    installation.install(structs.replace(request(root), podkeep=("/opt/podkeep", "--set", "log.level=debug")))
    assert "ExecStop=/opt/podkeep --set log.level=debug --set mountns.pin=" in read(root, SERVICE)
    report = installation.install(structs.replace(request(root), podkeep=("/opt/podkeep",), keep=True))
    assert report.written == (SERVICE,)
    assert "ExecStop" not in read(root, SERVICE)


def test_kubens_is_not_made_by_us(root: Path) -> None:
    kubens = structs.replace(request(root), pin=KUBENS_PIN)
    with pytest.raises(NotFound, match=r"kubens\.service does not exist"):
        installation.install(kubens)
    write(root, f"{VENDOR}/kubens.service", "[Service]\nExecStart=/bin/true\n")
    report = installation.install(kubens)
    assert SERVICE not in report.written
    assert "Requires=kubens.service\n" in read(root, KUBELET)


@pytest.mark.parametrize(("program", "said"), [("systemctl", "no systemd"), ("nsenter", "no program nsenter")])
def test_what_is_missing_is_said(root: Path, program: str, said: str) -> None:
    (root / "usr/bin" / program).unlink()
    before = tree(root)
    with pytest.raises(NotFound, match=said) as missing:
        installation.install(request(root))
    assert missing.value.hint
    assert tree(root) == before


def test_a_pin_that_no_unit_can_have_is_refused(root: Path) -> None:
    with pytest.raises(InvalidArgument):
        installation.install(structs.replace(request(root), pin=Path("/run/mnt")))


def test_a_link_in_an_image_does_not_lead_out_of_it(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (root / "etc").symlink_to(outside)
    installation.install(request(root))
    assert list(outside.iterdir()) == []
    assert (root / str(outside)[1:] / "systemd/system/kubelet.service.d").is_dir()


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        (installation.signed("[Unit]\n"), Origin.OURS),
        (installation.signed("#!/bin/sh\nexit 0\n"), Origin.OURS),
        (installation.signed("[Unit]\n") + "x", Origin.CHANGED),
        ("#!/bin/sh -e\n" + installation.signed("#!/bin/sh\n").split("\n", 1)[1], Origin.CHANGED),
        ("\n" + installation.signed("[Unit]\n"), Origin.CHANGED),
        ("[Unit]\n", Origin.FOREIGN),
        ("", Origin.FOREIGN),
    ],
)
def test_whose_a_file_is(text: str, origin: Origin) -> None:
    assert installation.origin_of(text) is origin


@pytest.mark.requirement("M18")
def test_systemd_takes_wrapped_units(tmp_path: Path) -> None:
    """Every unit of Debian's containerd, with our drop-in, as systemd loads them."""
    systemd = Path("/usr/lib/systemd/system")
    if not (systemd / "containerd.service").exists():
        pytest.skip("containerd is not installed: tools/setup reference")
    root = tmp_path / "root"
    for program in ("systemctl", "nsenter", "env"):
        write(root, f"/usr/bin/{program}", mode=0o755)
    (root / VENDOR[1:]).mkdir(parents=True)
    shutil.copy(systemd / "containerd.service", root / VENDOR[1:])
    installation.install(request(root))
    load = tmp_path / "units"
    shutil.copytree(root / "etc/systemd/system", load)
    shutil.copy(systemd / "containerd.service", load)
    done = subprocess.run(
        ["systemd-analyze", "verify", "containerd.service"],
        env={"SYSTEMD_UNIT_PATH": f"{load}:", "PATH": "/usr/sbin:/usr/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    said = [line for line in done.stderr.splitlines() if "container" in line]
    assert (done.returncode, said) == (0, []), done.stderr
