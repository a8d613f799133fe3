"""Types of the configuration, with the machine's cgroups and hooks that are real programs."""

from __future__ import annotations

import json
import os
import select
import stat
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from podkeep.base.config import ClassResourcesConfig, CustomClass, CustomType
from podkeep.base.errors import DeadlineExceeded, FailedPrecondition, InvalidArgument, KernelCallError
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.kernel.process import procfs
from podkeep.runtime.class_resources.custom import cgroup_values
from podkeep.runtime.class_resources.custom import plugin as custom
from podkeep.runtime.class_resources.model import ClassResource, Level, Target
from podkeep.runtime.class_resources.registry import ClassResources
from support.descriptors import open_descriptors
from support.processes import write_script

CPU = "cpu.shares" if Cgroups().version == 1 else "cpu.weight"
DEMO = "vendor.example/demo"


@pytest.fixture
def cgroup() -> Iterator[str]:
    """A cgroup of the test's own."""
    groups, path = Cgroups(), f"/podkeep-test-{uuid.uuid4().hex[:8]}"
    groups.create(path)
    yield path
    groups.remove(path)
    assert not groups.exists(path)


@pytest.fixture
def target(cgroup: str) -> Target:
    return Target(
        level=Level.CONTAINER,
        id="c1",
        name="default/web/main",
        cgroup=cgroup,
        process=procfs.identify(os.getpid()),
    )


Script = Callable[[str], str]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Write a hook of shell commands."""

    def write(text: str) -> str:
        path = tmp_path / f"hook-{uuid.uuid4().hex[:6]}"
        write_script(path, f"#!/bin/sh\n{text}\n")
        return str(path)

    return write


def one_type(definition: CustomType, name: str = DEMO) -> ClassResource:
    [found] = custom.load(ClassResourcesConfig(types={name: definition}), Cgroups())
    return found


def files(**classes: dict[str, str]) -> CustomType:
    return CustomType(classes={name: CustomClass(cgroup=meaning) for name, meaning in classes.items()})


def read(cgroup: str, name: str) -> str:
    return (Cgroups().read(cgroup, name) or "").strip()


def attributes(cgroup: str) -> list[str]:
    return [name for path in Cgroups().directories(cgroup) for name in os.listxattr(path)]


class TestFiles:
    @pytest.mark.requirement("Q2")
    def test_are_written_and_have_their_old_content_after_release(self, target: Target) -> None:
        kind = one_type(files(gold={CPU: "2000", "pids.max": "70"}))
        before = read(target.cgroup, CPU)
        kind.apply(target, "gold")
        assert (read(target.cgroup, CPU), read(target.cgroup, "pids.max")) == ("2000", "70")
        kind.verify(target, "gold")
        for _ in range(2):  # safe to repeat
            kind.release(target, "gold")
            assert (read(target.cgroup, CPU), read(target.cgroup, "pids.max")) == (before, "max")
        assert attributes(target.cgroup) == []

    def test_a_change_puts_back_what_the_new_class_does_not_set(self, target: Target) -> None:
        kind = one_type(files(gold={CPU: "2000", "pids.max": "70"}, bronze={CPU: "20"}))
        before = read(target.cgroup, CPU)
        kind.apply(target, "gold")
        kind.apply(target, "bronze", previous="gold")
        assert (read(target.cgroup, CPU), read(target.cgroup, "pids.max")) == ("20", "max")
        kind.verify(target, "bronze")
        kind.release(target, "bronze")
        assert read(target.cgroup, CPU) == before

    def test_files_whose_order_matters_are_written_and_put_back_in_any(self, target: Target) -> None:
        """Of version 1: memory with swap is never less than memory, not even in between."""
        limits = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
        if not all(Cgroups().has(target.cgroup, name) for name in limits):
            pytest.skip("no memory.memsw.limit_in_bytes: cgroups of version 2, or swapaccount=0")

        def sizes(*mib: int) -> dict[str, str]:
            return {name: str(amount << 20) for name, amount in zip(limits, mib, strict=True)}

        classes = {"small": sizes(100, 200), "large": sizes(300, 400), "bad": sizes(300, 400) | {"pids.max": "x"}}
        kind = one_type(files(**classes, backwards=dict(reversed(classes["small"].items()))))
        before = [read(target.cgroup, name) for name in limits]
        previous = None
        for name in ("small", "large", "backwards", "large", "small"):
            kind.apply(target, name, previous=previous)
            kind.verify(target, name)
            previous = name
        with pytest.raises(KernelCallError, match=r"pids\.max"):
            kind.apply(target, "bad", previous="small")
        kind.verify(target, "small")
        kind.release(target, "small")
        assert [read(target.cgroup, name) for name in limits] == before

    def test_old_content_is_known_to_the_next_daemon_and_after_a_reload_without_the_class(self, target: Target) -> None:
        before = read(target.cgroup, CPU)
        one_type(files(gold={CPU: "2000"})).apply(target, "gold")
        later = one_type(files(silver={"pids.max": "9"}))
        later.release(target, "gold")
        assert read(target.cgroup, CPU) == before

    def test_what_somebody_changed_is_found_and_mended(self, target: Target) -> None:
        kind = one_type(files(gold={"pids.max": "70"}))
        kind.apply(target, "gold")
        Cgroups().write(target.cgroup, "pids.max", "5")
        with pytest.raises(FailedPrecondition, match=r"demo: default/web/main .* pids.max reads '5' instead of '70'"):
            kind.verify(target, "gold")
        kind.apply(target, "gold", previous="gold")
        kind.verify(target, "gold")
        kind.release(target, "gold")
        assert read(target.cgroup, "pids.max") == "max"

    def test_what_was_never_applied_is_not_in_force(self, target: Target) -> None:
        with pytest.raises(FailedPrecondition, match=r"pids.max was not set"):
            one_type(files(gold={"pids.max": "70"})).verify(target, "gold")

    @pytest.mark.parametrize(
        ("broken", "error", "text"),
        [
            ({"pids.max": "many"}, KernelCallError, "EINVAL"),
            ({"memory.nosuch": "1"}, FailedPrecondition, "has no file memory.nosuch"),
            ({CPU: "0" if CPU == "cpu.weight" else "1"}, (FailedPrecondition, KernelCallError), CPU),
        ],
    )
    def test_an_error_leaves_the_previous_class(
        self, target: Target, broken: dict[str, str], error: type[Exception], text: str
    ) -> None:
        kind = one_type(files(gold={CPU: "2000", "pids.max": "70"}, broken=broken))
        kind.apply(target, "gold")
        with pytest.raises(error, match=text) as caught:
            kind.apply(target, "broken", previous="gold")
        assert str(caught.value).startswith(f"class resource {DEMO}: ")
        kind.verify(target, "gold")
        assert (read(target.cgroup, CPU), read(target.cgroup, "pids.max")) == ("2000", "70")
        kind.release(target, "gold")

    def test_two_types_do_not_disturb_each_other(self, target: Target) -> None:
        one, other = one_type(files(a={"pids.max": "7"}), "one"), one_type(files(b={CPU: "77"}), "other")
        one.apply(target, "a")
        other.apply(target, "b")
        one.release(target, "a")
        other.verify(target, "b")
        assert (read(target.cgroup, "pids.max"), read(target.cgroup, CPU)) == ("max", "77")
        other.release(target, "b")
        assert attributes(target.cgroup) == []

    def test_release_of_what_is_gone_is_no_error(self) -> None:
        gone = Target(level=Level.POD, id="p", name="default/web", cgroup="/podkeep-test-gone")
        one_type(files(a={"pids.max": "7"})).release(gone, "a")
        with pytest.raises(FailedPrecondition, match=r"no file pids.max"):
            one_type(files(a={"pids.max": "7"})).apply(gone, "a")


class TestResetting:
    @pytest.mark.parametrize(
        ("name", "before", "now", "lines"),
        [
            ("cpu.shares", "1024\n", "50\n", ["1024"]),
            ("cpu.max", "max 100000\n", "5000 100000\n", ["max 100000"]),
            ("io.max", "", "8:0 rbps=1 wbps=max\n", ["8:0 rbps=max wbps=max"]),
            ("io.max", "8:0 rbps=9\n", "8:0 rbps=1\n9:0 wbps=2\n", ["9:0 wbps=max", "8:0 rbps=9"]),
            ("io.weight", "default 100\n", "default 100\n8:0 50\n", ["8:0 default", "default 100"]),
            ("blkio.throttle.read_bps_device", "", "8:0 4096\n", ["8:0 0"]),
            ("blkio.bfq.weight_device", "", "8:0 40\n", ["8:0 default"]),
            ("cpuset.cpus", "", "0-1\n", ["\n"]),
        ],
    )
    def test_lines(self, name: str, before: str, now: str, lines: list[str]) -> None:
        assert cgroup_values.resetting(name, before, now) == lines

    @pytest.mark.parametrize(
        ("written", "read", "differs"),
        [
            ("isolated", "isolated invalid (Cpu list in cpuset.cpus not exclusive)\n", True),
            ("isolated", "isolated\n", False),
            ("50", "50\n", False),
            ("1", "2\n", True),
            ("1G", "1073741824\n", False),
            ("1000000", "999424\n", False),
            ("10000", "50\n", True),
            ("max", "max\n", False),
            ("0,1", "0-1\n", False),
            ("50000", "50000 100000\n", False),
        ],
    )
    def test_numbers_that_the_kernel_changed(self, written: str, read: str, differs: bool) -> None:
        assert cgroup_values.differs(written, read) is differs


class TestHook:
    @staticmethod
    def definition(hook: str, *, timeout: float = 10.0) -> CustomType:
        return CustomType(
            hook=hook,
            hook_timeout=timeout,
            classes={"gold": CustomClass(parameters={"share": "9"}), "silver": CustomClass(parameters={"share": "5"})},
        )

    @pytest.mark.requirement("Q2")
    def test_is_told_everything(self, target: Target, script: Script, tmp_path: Path) -> None:
        kind = one_type(self.definition(script(f'cat >{tmp_path}/"$1"; env >{tmp_path}/env')))
        kind.apply(target, "gold", previous="silver")
        told = json.loads((tmp_path / "apply").read_text())
        paths = told.pop("cgroupPaths")
        assert told == {
            "type": DEMO,
            "class": "gold",
            "previousClass": "silver",
            "parameters": {"share": "9"},
            "level": "container",
            "id": "c1",
            "name": "default/web/main",
            "pid": os.getpid(),
        }
        assert {Path(path) for path in paths.values()} == set(Cgroups().directories(target.cgroup))
        assert paths["pids" if Cgroups().version == 1 else "unified"].endswith(target.cgroup)
        inherited = set(os.environ) - {"PATH", "PWD", "LC_ALL", "SHLVL", "_", "OLDPWD"}
        given = {line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
        assert not given & inherited
        kind.verify(target, "gold")
        kind.release(target, "gold")
        assert json.loads((tmp_path / "verify").read_text())["class"] == "gold"
        assert json.loads((tmp_path / "release").read_text())["previousClass"] is None

    def test_its_first_line_of_error_is_the_error(self, target: Target, script: Script) -> None:
        kind = one_type(self.definition(script("echo no such share >&2; echo more >&2; exit 3")))
        for step in (kind.apply, kind.verify, kind.release):
            with pytest.raises(FailedPrecondition, match=r"failed: no such share$") as caught:
                step(target, "gold")
            assert caught.value.message.startswith(f"class resource {DEMO}: the hook ")

    def test_a_silent_failure_tells_its_status(self, target: Target, script: Script) -> None:
        with pytest.raises(FailedPrecondition, match="status 4, and it said nothing"):
            one_type(self.definition(script("exit 4"))).apply(target, "gold")

    @pytest.mark.slow
    def test_is_killed_with_what_it_started_when_it_takes_too_long(
        self, target: Target, script: Script, tmp_path: Path
    ) -> None:
        hook = script(f"[ $1 = release ] && exit; sleep 600 & echo $! $$ >{tmp_path}/pids; wait")
        kind = one_type(self.definition(hook, timeout=1.0))
        started = time.monotonic()
        with pytest.raises(DeadlineExceeded, match=r"took longer than 1 s and was killed"):
            kind.apply(target, "gold")
        assert time.monotonic() - started < 60
        for pid in (tmp_path / "pids").read_text().split():
            assert _ends(int(pid))

    def test_what_left_its_process_group_and_session_is_killed_too(
        self, target: Target, script: Script, tmp_path: Path
    ) -> None:
        below = f"sleep 600 & echo $! $$ >>{tmp_path}/pids; wait"
        ready = f"until [ $(wc -w <{tmp_path}/pids) = 4 ]; do :; done; exec yes"
        hook = script(f"[ $1 = release ] && exit; touch {tmp_path}/pids; setsid sh -c '{below}' & ({below}) & {ready}")
        kind = one_type(self.definition(hook, timeout=60))
        with pytest.raises(FailedPrecondition, match="printed more than 64 KiB"):
            kind.apply(target, "gold")
        for pid in (tmp_path / "pids").read_text().split():
            assert _ends(int(pid))

    def test_a_signal_that_ended_it_is_named(self, target: Target, script: Script) -> None:
        with pytest.raises(FailedPrecondition, match=r"failed: signal 9 \(SIGKILL\) ended it, and it said nothing"):
            one_type(self.definition(script("kill -9 $$"))).apply(target, "gold")

    def test_output_without_end_is_an_error(self, target: Target, script: Script) -> None:
        with pytest.raises(FailedPrecondition, match="printed more than 64 KiB"):
            one_type(self.definition(script("[ $1 = release ] && exit; exec yes"))).apply(target, "gold")

    def test_a_failed_change_tells_it_the_class_in_force_again(
        self, target: Target, script: Script, tmp_path: Path
    ) -> None:
        hook = script(f'read -r told; echo "$1 $told" >>{tmp_path}/calls; case $told in *gold\\",*) exit 1;; esac')
        kind = one_type(self.definition(hook))
        with pytest.raises(FailedPrecondition):
            kind.apply(target, "gold", previous="silver")
        first, second = (tmp_path / "calls").read_text().splitlines()
        assert json.loads(first.removeprefix("apply "))["class"] == "gold"
        again = json.loads(second.removeprefix("apply "))
        assert (again["class"], again["previousClass"]) == ("silver", "gold")

    def test_a_failed_assignment_takes_back_files_and_tells_it_to_release(
        self, target: Target, script: Script, tmp_path: Path
    ) -> None:
        hook = script(f"echo $1 >>{tmp_path}/calls; [ $1 = release ]")
        meaning = CustomClass(cgroup={"pids.max": "70"})
        kind = one_type(CustomType(hook=hook, classes={"gold": meaning}))
        with pytest.raises(FailedPrecondition):
            kind.apply(target, "gold")
        assert (tmp_path / "calls").read_text().split() == ["apply", "release"]
        assert read(target.cgroup, "pids.max") == "max"
        assert attributes(target.cgroup) == []

    def test_release_puts_back_files_also_if_it_fails(self, target: Target, script: Script) -> None:
        meaning = CustomClass(cgroup={"pids.max": "70"})
        kind = one_type(CustomType(hook=script("[ $1 = apply ]"), classes={"gold": meaning}))
        kind.apply(target, "gold")
        with pytest.raises(FailedPrecondition, match="release"):
            kind.release(target, "gold")
        assert read(target.cgroup, "pids.max") == "max"

    def test_leaves_no_descriptor(self, target: Target, script: Script) -> None:
        kind = one_type(self.definition(script("exit 0")))
        kind.apply(target, "gold")
        count = len(open_descriptors())
        kind.apply(target, "gold", previous="gold")
        assert len(open_descriptors()) == count

    @pytest.mark.requirement("Q2")
    def test_a_type_whose_hook_is_not_there_is_not_offered(self, target: Target, script: Script) -> None:
        hook = script("exit 0")
        kind = one_type(self.definition(hook))
        assert kind.offers()[Level.CONTAINER].classes == ("gold", "silver")
        for content, why in (
            ("exit 0", f"its hook {hook} is neither a program nor begins with #!"),
            ("#! /nowhere/sh -e\n", f"its hook {hook} is to be run by /nowhere/sh, which is not there"),
            ("#!\n", f"its hook {hook} names nothing after #!"),
            ("", f"its hook {hook} is neither a program nor begins with #!"),
        ):
            Path(hook).write_text(content)
            assert kind.why_not(Level.CONTAINER) == why
            assert kind.offers() == {}
        Path(hook).chmod(stat.S_IRUSR)
        assert kind.why_not(Level.CONTAINER) == f"its hook {hook} is not executable: chmod +x {hook}"
        Path(hook).unlink()
        Path(hook).mkdir()
        assert kind.why_not(Level.CONTAINER) == f"its hook {hook} is not a file"
        Path(hook).rmdir()
        assert kind.offers() == {}
        assert kind.why_not(Level.CONTAINER) == f"its hook {hook} is not there"
        for step in (lambda: kind.check(Level.CONTAINER, "gold"), lambda: kind.apply(target, "gold")):
            with pytest.raises(FailedPrecondition, match=f"class resource {DEMO}: "):
                step()

    def test_a_hook_that_is_gone_when_the_runtime_starts_is_said_to_be(
        self, target: Target, script: Script, caplog: pytest.LogCaptureFixture
    ) -> None:
        hook = script("exit 0")
        kind = one_type(self.definition(hook))
        kind.apply(target, "gold")
        Path(hook).unlink()
        ClassResources([kind]).restore(target, {DEMO: "gold"}, {})
        assert f"default/web/main keeps class gold of {DEMO}, which is not offered: its hook {hook} is not there" in (
            caplog.text
        )


def _ends(pid: int) -> bool:
    """Wait for a process to end: the kernel takes its time with one that was killed."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with os.fdopen(fd):
        return bool(select.select([fd], [], [], 30)[0])


class TestDefinitions:
    @pytest.mark.requirement("Q13")
    def test_levels_and_immutable_are_what_is_offered(self) -> None:
        kind = one_type(CustomType(levels=("container", "pod"), immutable=True, classes=files(b={CPU: "9"}).classes))
        assert {level: (offer.classes, offer.immutable) for level, offer in kind.offers().items()} == {
            Level.CONTAINER: (("b",), True),
            Level.POD: (("b",), True),
        }
        pods = one_type(CustomType(levels=("pod",), classes=files(b={CPU: "9"}).classes))
        assert list(pods.offers()) == [Level.POD]
        assert pods.why_not(Level.CONTAINER) == "it is for pods only"

    def test_a_type_without_classes_is_not_offered(self) -> None:
        kind = one_type(CustomType())
        assert kind.offers() == {}
        assert kind.why_not(Level.CONTAINER) == "the configuration gives it no class"

    def test_describes_itself_for_json(self) -> None:
        kind = one_type(files(gold={CPU: "9"}))
        described = json.loads(json.dumps(kind.describe()))
        assert described["classes"]["gold"] == {"cgroup": {CPU: "9"}, "parameters": {}}
        assert kind.edit("gold", {"a": 1}) == {"a": 1}

    @pytest.mark.requirement("Q80")
    @pytest.mark.parametrize(
        ("name", "definition", "text"),
        [
            ("rdt", CustomType(), "podkeep's own"),
            ("oom", CustomType(), "podkeep's own"),
            ("-a", CustomType(), "no name of a type"),
            ("a" * 64, CustomType(), "no name of a type"),
            ("Vendor.example/a", CustomType(), "no name of a type"),
            ("/a", CustomType(), "no name of a type"),
            ("a/b/c", CustomType(), "no name of a type"),
            ("x", CustomType(levels=()), "levels: it is empty"),
            ("x", CustomType(hook="bin/hook"), "not an absolute path"),
            ("x", CustomType(hook="/h", hook_timeout=0), "hook_timeout: 0 is not"),
            ("x", CustomType(hook="/h", classes={"default": CustomClass()}), "no class may be called 'default'"),
            ("x", CustomType(hook="/h", classes={"a b": CustomClass()}), "no name of a class"),
            ("x", CustomType(hook="/h", classes={"": CustomClass()}), "no name of a class"),
            ("x", CustomType(classes={"a": CustomClass()}), "nothing would enforce it"),
            ("x", CustomType(classes={"a": CustomClass(parameters={"a": "b"})}), "no hook that could be told"),
            ("x", files(a={"../cpu.shares": "1"}), "no file of a controller"),
            ("x", files(a={"cgroup.procs": "1"}), "cgroup.procs is not for classes"),
            ("x", files(a={"tasks": "1"}), "no file of a controller"),
            ("x", files(a={"release_agent": "/x"}), "no file of a controller"),
            ("x", files(a={"freezer.state": "FROZEN"}), "freezer.state.*not for classes"),
            ("x", files(a={"devices.allow": "a"}), "devices.allow.*not for classes"),
            ("x", files(a={"memory.oom_control": "1"}), "memory.oom_control.*not for classes"),
            ("x", files(a={"cpu.shares": " "}), "nothing is to be written"),
        ],
    )
    def test_what_cannot_be_meant_is_refused_by_its_key(self, name: str, definition: CustomType, text: str) -> None:
        config = ClassResourcesConfig(types={name: definition})
        for step in (lambda: custom.check(config), lambda: custom.load(config, Cgroups())):
            with pytest.raises(InvalidArgument, match=text) as caught:
                step()
            assert caught.value.message.startswith(f'class_resources.types."{name}"')
            assert caught.value.hint

    def test_two_types_that_set_one_file_are_refused(self) -> None:
        both = {"a": files(x={CPU: "9"}), "b": files(y={CPU: "8"})}
        with pytest.raises(InvalidArgument, match=rf'"b": its classes set {CPU}, and so do those of "a"'):
            custom.load(ClassResourcesConfig(types=both), Cgroups())

    @pytest.mark.parametrize("name", ["a", "A.b_c-d", "vendor.example/thing", "a" * 63])
    def test_names_that_are_taken(self, name: str) -> None:
        assert one_type(CustomType(), name).name == name
