"""AppArmor: which profile a container gets, which are refused, and the default profile itself."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from podkeep.base.errors import FailedPrecondition, InvalidArgument
from podkeep.kernel.process import lsm
from podkeep.runtime.model.records import AppArmor, ProfileKind
from podkeep.runtime.oci import apparmor
from podkeep.runtime.oci.apparmor import AppArmorSupport
from podkeep.runtime.profiles import apparmor_loader
from support.processes import write_script

DEFAULT, UNCONFINED = AppArmor(kind=ProfileKind.RUNTIME_DEFAULT), AppArmor(kind=ProfileKind.UNCONFINED)
WEB = AppArmor(kind=ProfileKind.LOCALHOST, profile="web")
OFF = "this kernel has none"


def profile(asked: AppArmor | None, *, privileged: bool = False, why_not: str = "", why_no_default: str = "") -> str:
    support = AppArmorSupport(why_not=why_not, why_no_default=why_no_default)
    return apparmor.profile(asked, support, privileged=privileged, loaded=lambda: {"web", "podkeep-default"})


@pytest.mark.parametrize(
    ("asked", "privileged", "expected"),
    [
        (None, False, "podkeep-default"),
        (None, True, "unconfined"),
        (DEFAULT, False, "podkeep-default"),
        (DEFAULT, True, "unconfined"),
        (UNCONFINED, False, "unconfined"),
        (UNCONFINED, True, "unconfined"),
        (WEB, False, "web"),
        (WEB, True, "web"),
    ],
)
def test_where_it_is_on(asked: AppArmor | None, privileged: bool, expected: str) -> None:
    assert profile(asked, privileged=privileged) == expected


@pytest.mark.parametrize("asked", [None, DEFAULT, UNCONFINED])
@pytest.mark.parametrize("privileged", [False, True])
def test_where_it_is_off_nothing_is_written(asked: AppArmor | None, privileged: bool) -> None:
    assert profile(asked, privileged=privileged, why_not=OFF) == ""


def test_without_the_default_profile_only_who_asks_for_it_is_refused() -> None:
    assert profile(None, why_no_default="no parser") == ""
    assert profile(UNCONFINED, why_no_default="no parser") == "unconfined"
    assert profile(WEB, why_no_default="no parser") == "web"
    assert profile(DEFAULT, privileged=True, why_no_default="no parser") == "unconfined"
    with pytest.raises(FailedPrecondition, match="'podkeep-default' is not loaded: no parser"):
        profile(DEFAULT, why_no_default="no parser")


def test_a_named_profile_that_cannot_be_enforced_is_an_error() -> None:
    with pytest.raises(FailedPrecondition, match=OFF):
        profile(WEB, why_not=OFF)
    with pytest.raises(FailedPrecondition, match="'other' is not loaded"):
        profile(AppArmor(kind=ProfileKind.LOCALHOST, profile="other"))
    # The name that stands for none is no profile that somebody loaded.
    with pytest.raises(FailedPrecondition, match="'unconfined' is not loaded"):
        profile(AppArmor(kind=ProfileKind.LOCALHOST, profile="unconfined"))


@pytest.mark.parametrize("name", ["web", "/usr/bin/foo", "a//b", "name with (parentheses)"])
def test_names(name: str) -> None:
    assert apparmor.check_name("field", name) == name


@pytest.mark.parametrize("name", ["", "a\nb", "a\0", " a", ":ns:a", "x" * 5000])
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="field"):
        apparmor.check_name("field", name)


def test_the_kernels_table(tmp_path: Path) -> None:
    table = tmp_path / "profiles"
    table.write_text("docker-default (enforce)\n/usr/bin/man (complain)\nodd (name) here (unconfined)\n")
    assert lsm.apparmor_profiles(table) == {"docker-default", "/usr/bin/man", "odd (name) here"}
    assert lsm.apparmor_profiles(tmp_path / "missing") == frozenset()


@pytest.mark.parametrize(("content", "expected"), [("Y\n", True), ("N\n", False), (None, False)])
def test_the_kernels_switch(tmp_path: Path, content: str | None, expected: bool) -> None:
    switch = tmp_path / "enabled"
    if content is not None:
        switch.write_text(content)
    assert lsm.apparmor_enabled(switch) is expected


def test_the_default_profile_is_in_the_package() -> None:
    text = apparmor_loader.default_profile().decode()
    assert f"\nprofile {apparmor.DEFAULT_PROFILE} " in text
    assert text.count("{") == text.count("}")
    assert "#include" not in text


@pytest.mark.skipif(shutil.which("apparmor_parser") is None, reason="apparmor_parser is not installed")
def test_the_default_profile_compiles() -> None:
    done = subprocess.run(
        ["apparmor_parser", "--skip-kernel-load", "--skip-cache", "--stdout"],
        input=apparmor_loader.default_profile(), capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_parser_gets_the_profile(tmp_path: Path) -> None:
    parser, got = tmp_path / "parser", tmp_path / "got"
    write_script(parser, f'#!/bin/sh\necho "$@" > {got}\ncat >> {got}\n')
    apparmor_loader.load_default(str(parser))
    arguments, _, text = got.read_bytes().partition(b"\n")
    assert arguments == b"--replace --skip-cache"
    assert text == apparmor_loader.default_profile()


def test_a_parser_that_refuses_or_is_missing(tmp_path: Path) -> None:
    parser = tmp_path / "parser"
    write_script(parser, "#!/bin/sh\necho 'syntax error' >&2\nexit 1\n")
    with pytest.raises(FailedPrecondition, match="syntax error"):
        apparmor_loader.load_default(str(parser))
    with pytest.raises(FailedPrecondition, match="parser"):
        apparmor_loader.load_default(os.path.join(tmp_path, "none"))
