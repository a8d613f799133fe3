"""What getsubids says of user kubelet: the range of pods, the default range, or an error that stops the agent."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from podkeep.agent.user_namespaces import getsubids, subordinate_ids
from podkeep.agent.user_namespaces.blocks import UNIT, Block, Blocks, IdRange
from podkeep.base.config import AgentConfig, UserNamespacesConfig
from podkeep.base.errors import FailedPrecondition, ResourceExhausted
from podkeep.kernel.mount import mounts
from support.waiting import wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts files over /etc/passwd and /etc/subuid")

CENTRAL = Path(__file__).with_name("programs") / "subid_central.c"
UID = 64990
RANGE = "kubelet:3276800:7208960\n"
DEFAULT = [65536, 131072, 196608]
REFUSED = "the ID range could not be retrieved: "


@pytest.fixture
def etc(tmp_path: Path) -> Iterator[Callable[[str, str], None]]:
    """Puts another text over a file in /etc, until the end."""
    mounted = []

    def put(name: str, text: str) -> None:
        file = tmp_path / name
        file.write_text(text)
        if file not in mounted:
            mounts.bind(file, Path("/etc") / name)
            mounted.append(file)

    for name in ("subuid", "subgid"):
        put(name, "")
    yield put
    for file in mounted:
        mounts.unmount(Path("/etc") / file.name)


@pytest.fixture
def kubelet(etc: Callable[[str, str], None]) -> Callable[[str, str], None]:
    """A machine with a user of this name; gives what puts its ranges into a file."""
    etc("passwd", Path("/etc/passwd").read_text() + f"kubelet:x:{UID}:{UID}::/:/usr/sbin/nologin\n")
    return etc


def agent(pods: int = 3, length: int = UNIT) -> AgentConfig:
    return AgentConfig(max_pods=pods, user_namespaces=UserNamespacesConfig(ids_per_pod=length))


def starts(found: IdRange, count: int = 3) -> list[int]:
    return list(found.starts())[:count]


def program(directory: Path, text: str) -> dict[str, str]:
    """Return an environment in which getsubids is a script."""
    directory.mkdir(exist_ok=True)
    file = directory / "getsubids"
    file.write_text(text)
    file.chmod(0o755)
    return {"PATH": f"{directory}:/usr/bin:/bin"}


@pytest.mark.requirement("U38")
def test_the_range_of_the_user(kubelet: Callable[[str, str], None], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    kubelet("subuid", f"alice:100000:65536\n{RANGE}")
    kubelet("subgid", RANGE)
    found = getsubids.id_range(agent())
    assert starts(found) == [3276800, 3342336, 3407872]
    assert len(list(found.starts())) == 110
    assert "pods get IDs 3276800-10485759" in caplog.text


@pytest.mark.requirement("U38")
def test_users_and_groups_are_asked_for_apart(kubelet: object, tmp_path: Path) -> None:
    said = tmp_path / "said"
    path = program(tmp_path / "bin", f'#!/bin/sh\necho "$*" >>{said}\necho "0: kubelet 65536 196608"\n')
    assert starts(getsubids.id_range(agent(), path)) == DEFAULT
    assert said.read_text().splitlines() == ["kubelet", "-g kubelet"]


def test_lines_by_the_number_of_the_user_are_its_own(kubelet: Callable[[str, str], None]) -> None:
    kubelet("subuid", f"{UID}:3276800:7208960\n")
    kubelet("subgid", RANGE)
    found = getsubids.id_range(agent(110))
    assert starts(found.without(subordinate_ids.read()), 1) == [3276800]


@pytest.mark.slow
@pytest.mark.requirement("U38", "U41")
def test_the_range_of_a_central_directory(etc: Callable[[str, str], None], kubelet: object, tmp_path: Path) -> None:
    """Where nsswitch.conf(5) names one it counts, and the files do not; no pod leaves what it gives."""
    compiled = ["cc", "-shared", "-fPIC", "-o", str(tmp_path / "libsubid_central.so"), str(CENTRAL)]
    subprocess.run(compiled, check=True, timeout=60)
    etc("nsswitch.conf", "passwd: files\ngroup: files\nsubid: central\n")
    etc("subuid", "kubelet:65536:7208960\n")
    script = f'#!/bin/sh\nLD_LIBRARY_PATH={tmp_path} exec /usr/bin/getsubids "$@"\n'
    found = getsubids.id_range(agent(), program(tmp_path / "bin", script)).without(subordinate_ids.read())
    blocks = Blocks(found)
    given = [blocks.allocate(str(number)) for number in range(110)]
    assert [block.first for block in given] == list(range(3276800, 3276800 + 7208960, 65536))
    with pytest.raises(ResourceExhausted):
        blocks.allocate("one more")


@pytest.mark.requirement("U39")
def test_without_the_user_there_is_the_default_range(
    etc: Callable[[str, str], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the program would say; it is not asked."""
    caplog.set_level(logging.INFO)
    lines = Path("/etc/passwd").read_text().splitlines(keepends=True)
    etc("passwd", "".join(line for line in lines if not line.startswith("kubelet:")))
    etc("subuid", RANGE)
    assert starts(getsubids.id_range(agent(), program(tmp_path / "bin", "#!/bin/sh\nexit 1\n"))) == DEFAULT
    assert "there is no user kubelet: the default range of IDs is used" in caplog.text


@pytest.mark.requirement("U39")
def test_without_the_program_there_is_the_default_range(
    kubelet: Callable[[str, str], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    kubelet("subuid", RANGE)
    assert starts(getsubids.id_range(agent(), {"PATH": str(tmp_path)})) == DEFAULT
    assert "getsubids is not installed: the default range of IDs is used" in caplog.text


@pytest.mark.requirement("U40")
@pytest.mark.parametrize(
    ("uids", "gids", "why"),
    [
        ("", "", "`getsubids kubelet` failed with status 1: Error fetching ranges"),
        (RANGE, "", "`getsubids -g kubelet` failed with status 1: Error fetching ranges"),
        (RANGE, "kubelet:3276800:3604480\n", "user kubelet has other subordinate user IDs (kubelet:3276800:7208960)"),
        (RANGE * 2, RANGE * 2, "`getsubids kubelet` printed 2 lines: user kubelet may have one range only"),
        (RANGE, RANGE * 2, "`getsubids -g kubelet` printed 2 lines"),
        ("kubelet:65537:7208960\n",) * 2 + ("kubelet:65537:7208960 of user kubelet does not begin at a multiple of",),
        ("kubelet:0:7208960\n",) * 2 + ("begins below 65536, with IDs of the machine itself",),
        ("kubelet:65536:65535\n",) * 2 + ("has 65535 IDs, which is not a multiple of 65536",),
        ("kubelet:65536:131072\n",) * 2 + ("has 2 blocks of 65536 IDs, and agent.max_pods is 3",),
        ("kubelet:4294770688:196608\n",) * 2 + ("has 2 blocks of 65536 IDs, and agent.max_pods is 3",),
        ("kubelet:4294770688:262144\n",) * 2 + ("ends beyond the last ID, 4294967295",),
        ("kubelet:65536:18446744073709551615\n",) * 2 + ("ends beyond the last ID, 4294967295",),
        (
            "kubelet:65536:262144\nalice:131071:2\n",
            "kubelet:65536:262144\nbob:200000:1\n",
            "has not 3 blocks (agent.max_pods) of its own: 3 blocks are left out, as /etc/subuid and /etc/subgid give"
            " IDs to alice, bob",
        ),
    ],
)
def test_what_is_no_range_for_pods(kubelet: Callable[[str, str], None], uids: str, gids: str, why: str) -> None:
    """The message names the user and the cause, and the hint says what to do."""
    kubelet("subuid", uids)
    kubelet("subgid", gids)
    with pytest.raises(FailedPrecondition) as caught:
        getsubids.id_range(agent())
    assert caught.value.message.startswith(REFUSED)
    assert why in caught.value.message
    assert "kubelet" in caught.value.message
    assert "/etc/subuid" in caught.value.hint or "those users' ranges" in caught.value.hint


@pytest.mark.requirement("U40")
@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("#!/bin/sh\nexit 1\n", "`getsubids kubelet` failed with status 1: it said nothing"),
        ("#!/bin/sh\nprintf '\\033[2J\\nno' >&2; exit 3\n", "failed with status 3: ?[2J no"),
        ("#!/bin/sh\nkill -KILL $$\n", "failed with status -9"),
        ("#!/bin/sh\nexit 0\n", "printed '', which is not a range of user kubelet"),
        (
            "#!/bin/sh\necho '0: alice 65536 7208960'\n",
            "'0: alice 65536 7208960', which is not a range of user kubelet",
        ),
        ("#!/bin/sh\necho '0: kubelet -65536 7208960'\n", "which is not a range of user kubelet"),
        ("#!/bin/sh\necho '0: kubelet 65536 7208960 1'\n", "which is not a range of user kubelet"),
        ("#!/bin/sh\necho '0: kubelet 65536'\n", "which is not a range of user kubelet"),
        ("#!/bin/sh\nprintf '0: kubelet 65536 \\331\\243'\n", "which is not a range of user kubelet"),
        ("#!/bin/sh\nprintf '0: kubelet \\033[2J 1'\n", "printed '0: kubelet \\\\x1b[2J 1'"),
        ("#!/bin/sh\nprintf '0: kubelet 65536 196608\\0'\n", "which is not a range of user kubelet"),
        ("#!/bin/sh\nexec cat /dev/zero\n", "printed more than 64 KiB and was killed"),
        ("#!/bin/sh\nexec cat /dev/zero >&2\n", "printed more than 64 KiB and was killed"),
        ("#!/nowhere\n", "cannot be run"),
        ("nothing to run", "cannot be run: Exec format error"),
    ],
)
def test_a_program_that_does_anything(kubelet: object, tmp_path: Path, script: str, why: str) -> None:
    with pytest.raises(FailedPrecondition) as caught:
        getsubids.id_range(agent(), program(tmp_path / "bin", script))
    assert caught.value.message.startswith(REFUSED)
    assert why in caught.value.message
    assert caught.value.message.isprintable()
    assert caught.value.hint


def _has_ended(stat: Path) -> bool:
    try:
        return stat.read_text().rpartition(")")[2].split()[0] in {"Z", "X"}
    except OSError:
        return True


@pytest.mark.slow
@pytest.mark.requirement("U40")
def test_a_program_that_hangs_is_killed_with_what_it_started(
    kubelet: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(getsubids, "TIMEOUT_S", 0.5)
    pid = tmp_path / "pid"
    script = f"#!/bin/sh\nsetsid sh -c 'echo $$ >{pid}; exec sleep 1000' &\nwait\n"
    with pytest.raises(FailedPrecondition, match=r"`getsubids kubelet` did not end within 0\.5 s and was killed"):
        getsubids.id_range(agent(), program(tmp_path / "bin", script))
    if pid.exists() and pid.read_text():
        stat = Path(f"/proc/{pid.read_text().strip()}/stat")
        wait_for(lambda: _has_ended(stat), "what it started to be dead")


@pytest.mark.requirement("U40")
def test_a_user_that_cannot_be_looked_up_is_not_taken_for_missing(
    kubelet: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the directory that has the users does not answer."""

    def fails(name: str) -> int | None:
        raise OSError(5, "Input/output error", name)

    monkeypatch.setattr(getsubids.users, "user_id", fails)
    with pytest.raises(FailedPrecondition, match="whether there is a user kubelet cannot be told: Input/output error"):
        getsubids.id_range(agent())


def test_an_installed_program_is_not_looked_for_in_the_working_directory(
    kubelet: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "bin", "#!/bin/sh\nexit 1\n")
    monkeypatch.chdir(tmp_path / "bin")
    assert starts(getsubids.id_range(agent(), {"PATH": ":."})) == DEFAULT


@pytest.mark.parametrize(("length", "count"), [(131072, 262144), (196608, 393216)])
def test_a_range_of_longer_blocks(kubelet: Callable[[str, str], None], length: int, count: int) -> None:
    for name in ("subuid", "subgid"):
        kubelet(name, f"kubelet:393216:{count}\n")
    found = getsubids.id_range(agent(2, length))
    assert starts(found) == [393216, 393216 + length]
    with pytest.raises(FailedPrecondition, match="does not begin at a multiple of 262144"):
        getsubids.id_range(agent(1, 262144))


@pytest.mark.slow
@pytest.mark.requirement("U32", "U41")
@given(
    st.integers(1, 60000),
    st.integers(1, 40),
    st.sampled_from([1, 2, 3, 8]),
    st.lists(st.tuples(st.integers(0, 1 << 32), st.integers(1, 1 << 18)), max_size=4),
    st.lists(st.tuples(st.booleans(), st.integers(0, 45)), max_size=60),
)
def test_pods_never_leave_the_range(
    first: int, blocks: int, units: int, others: list[tuple[int, int]], steps: list[tuple[bool, int]]
) -> None:
    """Whatever it is, and whatever of it other users have: blocks are inside, apart, and nobody else's."""
    length = units * UNIT
    start, count = first // units * length or length, blocks * length
    granted = [subordinate_ids.Granted(file="f", user="alice", first=one, count=many) for one, many in others]
    assume(start + max(count - 1, length) < (1 << 32) - 1)
    found = getsubids.checked(start, count, pods=1, length=length)
    mine = Blocks(found.without(granted))
    inside = [Block(first=one, length=length) for one in range(length, start + count + 2 * length, length)][-60:]
    handed_out = set(found.without(granted).starts())
    assert {block.first for block in inside if block in found.without(granted)} == handed_out & {
        block.first for block in inside
    }
    whole = Block(first=start, length=count)
    for allocate, pod in steps:
        if not allocate:
            mine.release(str(pod))
            continue
        try:
            block = mine.allocate(str(pod))
        except ResourceExhausted:
            continue
        assert block.length == length
        assert block.first % length == 0
        assert start <= block.first
        assert block.first + block.length <= min(start + count, (1 << 32) - 1)
        assert whole.overlaps(block)
        assert not any(item.overlaps(block.first, block.length) for item in granted)
        assert not any(block.overlaps(held) for uid, held in mine.held().items() if uid != str(pod))
