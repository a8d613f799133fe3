"""Which files a unit consists of, below a directory that holds a machine's root."""

from __future__ import annotations

from pathlib import Path, PurePath

import pytest

from podkeep.base.errors import DataLoss
from podkeep.mountns import unitfiles


def write(root: Path, path: str, text: str = "[Unit]\n") -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def link(root: Path, path: str, target: str) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.symlink_to(target)


def paths(root: Path, name: str = "a-b.service") -> list[str] | None:
    found = unitfiles.parts(root, name)
    return found if found is None else [part.path for part in found]


def test_drop_ins_are_ordered_by_name_wherever_they_are(tmp_path: Path) -> None:
    unit = "/usr/lib/systemd/system/a-b.service"
    write(tmp_path, unit)
    write(tmp_path, "/usr/lib/systemd/system/a-b.service.d/30.conf")
    write(tmp_path, "/etc/systemd/system/a-.service.d/20.conf")
    write(tmp_path, "/run/systemd/system/service.d/10.conf")
    write(tmp_path, "/etc/systemd/system/a-b.service.d/Z.conf")
    write(tmp_path, "/etc/systemd/system/a-b.service.d/not-one")
    assert paths(tmp_path) == [
        unit,
        "/run/systemd/system/service.d/10.conf",
        "/etc/systemd/system/a-.service.d/20.conf",
        "/usr/lib/systemd/system/a-b.service.d/30.conf",
        "/etc/systemd/system/a-b.service.d/Z.conf",
    ]


def test_the_administrators_file_hides_one_of_the_same_name(tmp_path: Path) -> None:
    write(tmp_path, "/usr/lib/systemd/system/a-b.service", "vendor\n")
    write(tmp_path, "/etc/systemd/system/a-b.service", "own\n")
    write(tmp_path, "/usr/lib/systemd/system/a-b.service.d/1.conf")
    write(tmp_path, "/usr/lib/systemd/system/a-b.service.d/2.conf")
    link(tmp_path, "/etc/systemd/system/a-b.service.d/1.conf", "/dev/null")
    write(tmp_path, "/run/systemd/system/a-b.service.d/2.conf", "")
    found = unitfiles.parts(tmp_path, "a-b.service")
    assert found is not None
    assert [(part.path, part.text) for part in found] == [("/etc/systemd/system/a-b.service", "own\n")]


def test_masked_and_missing_units_are_told_apart(tmp_path: Path) -> None:
    assert paths(tmp_path) is None
    write(tmp_path, "/usr/lib/systemd/system/a-b.service")
    link(tmp_path, "/etc/systemd/system/a-b.service", "/dev/null")
    assert paths(tmp_path) == []


def test_an_alias_has_the_drop_ins_of_both_names(tmp_path: Path) -> None:
    write(tmp_path, "/usr/lib/systemd/system/real.service")
    link(tmp_path, "/etc/systemd/system/a-b.service", "/usr/lib/systemd/system/real.service")
    write(tmp_path, "/etc/systemd/system/real.service.d/1.conf")
    write(tmp_path, "/etc/systemd/system/a-b.service.d/2.conf")
    assert paths(tmp_path) == [
        "/usr/lib/systemd/system/real.service",
        "/etc/systemd/system/real.service.d/1.conf",
        "/etc/systemd/system/a-b.service.d/2.conf",
    ]


def test_an_instance_is_made_from_its_template(tmp_path: Path) -> None:
    template = "/usr/lib/systemd/system/a@.service"
    write(tmp_path, template)
    write(tmp_path, "/usr/lib/systemd/system/a@x.service.d/1.conf")
    write(tmp_path, "/etc/systemd/system/a@.service.d/1.conf")
    write(tmp_path, "/etc/systemd/system/a@.service.d/2.conf")
    own, common = "/usr/lib/systemd/system/a@x.service.d/1.conf", "/etc/systemd/system/a@.service.d/2.conf"
    assert paths(tmp_path, "a@x.service") == [template, own, common]
    assert paths(tmp_path, "b@x.service") is None
    write(tmp_path, "/etc/systemd/system/a@x.service")
    assert paths(tmp_path, "a@x.service") == ["/etc/systemd/system/a@x.service", own, common]
    link(tmp_path, "/etc/systemd/system/a@y.service", "/dev/null")
    assert paths(tmp_path, "a@y.service") == []


def test_links_stay_inside_of_the_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    link(root, "/lib", "/usr/lib")
    link(root, "/etc/systemd/system", "../../../../../srv/units")
    link(root, "/srv", "var")
    assert unitfiles.inside(root, PurePath("/lib/x")) == root / "usr/lib/x"
    assert unitfiles.inside(root, PurePath("/etc/systemd/system/a")) == root / "var/units/a"
    link(root, "/loop", "loop")
    with pytest.raises(DataLoss, match="too many levels"):
        unitfiles.inside(root, PurePath("/loop/x"))


def test_a_unit_that_is_no_text_is_said_to_be_none(tmp_path: Path) -> None:
    write(tmp_path, "/usr/lib/systemd/system/a-b.service")
    (tmp_path / "usr/lib/systemd/system/a-b.service").write_bytes(b"\xff\xfe")
    with pytest.raises(DataLoss, match="UTF-8"):
        unitfiles.parts(tmp_path, "a-b.service")
