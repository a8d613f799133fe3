"""The service's text: systemd takes it, and the commands of the kind without podkeep do what podkeep does."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from podkeep.base.errors import InvalidArgument
from podkeep.mountns import execstart, units
from podkeep.mountns.execstart import Entry, Part
from podkeep.mountns.namespace_ref import DEFAULT_PIN, KUBENS_PIN
from support.processes import write_script

PODKEEP = ["/bin/true", "--config", "/etc/a b.toml"]


def settings(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for _, key, value in execstart.parse(Part(path="unit", text=text)):
        found.setdefault(key, []).append(value)
    return found


@pytest.mark.slow
@pytest.mark.requirement("M1")
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("podkeep", [None, PODKEEP])
def test_systemd_takes_the_service(tmp_path: Path, podkeep: Sequence[str] | None, keep: bool) -> None:
    text = units.service(DEFAULT_PIN, podkeep=podkeep, keep=keep, enabled=keep)
    found = settings(text)
    assert "mount namespace" in found["Description"][0]
    assert all(name in found["Description"][0] for name in ("kubelet", "crio"))
    assert (found["Type"], found["RemainAfterExit"]) == (["oneshot"], ["yes"])
    assert found["RuntimeDirectory"] == ["container-mount-namespace"]
    assert found["Environment"] == [
        "RUNTIME_DIRECTORY=%t/container-mount-namespace",
        "BIND_POINT=%t/container-mount-namespace/mnt",
    ]
    assert found["Before"][0].split() == list(units.DAEMONS)
    assert "PrivateMounts" not in found
    unit = tmp_path / "container-mount-namespace.service"
    unit.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False, timeout=60
    )
    said = [line for line in done.stderr.splitlines() if "container-mount" in line]
    assert (done.returncode, said) == (0, []), done.stderr


@pytest.mark.requirement("M36")
@pytest.mark.parametrize("podkeep", [None, PODKEEP])
def test_a_service_that_keeps_the_namespace_has_nothing_that_stops(podkeep: Sequence[str] | None) -> None:
    torn = settings(units.service(DEFAULT_PIN, podkeep=podkeep))
    kept = settings(units.service(DEFAULT_PIN, podkeep=podkeep, keep=True))
    assert len(torn["ExecStop"]) == 1
    assert "ExecStop" not in kept
    assert kept["RuntimeDirectoryPreserve"] == ["yes"]
    assert kept["ExecStart"] == torn["ExecStart"]


def test_with_podkeep_the_pin_is_said() -> None:
    found = settings(units.service(DEFAULT_PIN, podkeep=PODKEEP))
    command = f'/bin/true --config "/etc/a b.toml" --set mountns.pin={DEFAULT_PIN} mountns'
    assert (found["ExecStart"], found["ExecStop"]) == ([f"{command} start"], [f"{command} stop --if-unused"])
    assert found["RuntimeDirectoryPreserve"] == ["yes"], "what is kept in use is not cleaned up"


def test_a_pin_elsewhere_has_its_own_directory() -> None:
    found = settings(units.service(Path("/srv/a/mnt"), podkeep=None))
    assert "RuntimeDirectory" not in found
    assert found["Environment"] == ["RUNTIME_DIRECTORY=/srv/a", "BIND_POINT=/srv/a/mnt"]
    assert found["ExecStartPre"][0] == "mkdir -p ${RUNTIME_DIRECTORY}"
    assert settings(units.service(Path("/run/a/b/mnt"), podkeep=None))["RuntimeDirectory"] == ["a/b"]


@pytest.mark.parametrize("pin", ["/run/mnt", "/mnt", "/run/a b/mnt", "/run/a/../mnt", "/run/$a/mnt", "/run/a\n/b"])
def test_a_pin_that_cannot_be_in_a_unit_is_refused(pin: str) -> None:
    with pytest.raises(InvalidArgument, match=r"mountns\.pin"):
        units.service(Path(pin), podkeep=None)
    with pytest.raises(InvalidArgument, match=r"mountns\.pin"):
        units.helper(Path(pin))


@pytest.mark.requirement("M10", "M11")
def test_a_drop_in_resets_the_command_and_orders_the_unit() -> None:
    text = units.drop_in(
        execstart.read("crio.service", [Part(path="crio", text="[Service]\nExecStart=/usr/bin/crio $OPTIONS\n")]),
        Entry(pin=DEFAULT_PIN),
    )
    found = settings(text)
    assert found["Requires"] == found["After"] == ["container-mount-namespace.service"]
    assert found["ExecStart"] == ["", f"/usr/bin/nsenter --mount={DEFAULT_PIN} -- /usr/bin/crio $OPTIONS"]
    assert units.original(text) == "/usr/bin/crio $OPTIONS"


def test_after_kubens_where_that_pins_the_namespace() -> None:
    crio = execstart.read("crio.service", [Part(path="crio", text="[Service]\nExecStart=/usr/bin/crio\n")])
    found = settings(units.drop_in(crio, Entry(pin=KUBENS_PIN)))
    assert found["Requires"] == found["After"] == ["kubens.service"]


@pytest.mark.requirement("M12")
def test_a_unit_that_has_it_all_needs_no_drop_in() -> None:
    text = "[Unit]\nRequires=a.service {0}\nAfter={0}\n[Service]\nExecStart=/bin/podkeep runtime {1}\n"
    option = f"--mount-namespace={DEFAULT_PIN}"
    whole = execstart.read("podkeep.service", [Part(path="p", text=text.format(units.service_of(DEFAULT_PIN), option))])
    assert units.drop_in(whole, Entry(pin=DEFAULT_PIN)) == ""
    unordered = execstart.read("podkeep.service", [Part(path="p", text=text.format("b.service", option))])
    found = settings(units.drop_in(unordered, Entry(pin=DEFAULT_PIN)))
    assert set(found) == {"Requires", "After"}, "only what it lacks"


def as_shell(service: str, *keys: str) -> str:
    """Return commands of a service as systemd would run them, one after the other, ending with the first failure."""
    found = settings(service)
    values = dict(value.partition("=")[::2] for value in found["Environment"])
    lines = []
    for key in keys:
        for command in found.get(key, []):
            text = command
            for name, value in values.items():
                text = text.replace(f"${{{name}}}", value)
            lines.append(f"( {text} ) || exit 1".replace("$$", "$").replace("%t", "/run"))
    assert not re.search(r"(?<![$\w])\$\{[A-Z]", "\n".join(lines)), "each variable has a value"
    return "\n".join(lines)


def on_a_host(script: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a script as PID 1 of a machine of its own, whose / is shared and whose /run is empty."""
    setup = (
        "mount --make-rprivate / && mount -t proc proc /proc\n"
        "for point in $(findmnt -rn -o TARGET | grep ^/run/); do umount -l $point; done\n"
        "mount -t tmpfs run /run && mount --make-rshared / && mkdir /run/container-mount-namespace\n"
    )
    unshare = shutil.which("unshare")
    assert unshare is not None
    command = [unshare, "--mount", "--pid", "--fork", "--", "sh", "-c", setup + script, "host", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


PIN = str(DEFAULT_PIN)
START = as_shell(units.service(DEFAULT_PIN, podkeep=None), "ExecStartPre", "ExecStart")
STOP = as_shell(units.service(DEFAULT_PIN, podkeep=None), "ExecStop")
PINNED = f"findmnt -n -o FSROOT --mountpoint {PIN}"


@pytest.mark.slow
@pytest.mark.requirement("M2", "M3", "M4", "M5", "M6", "M7", "M36")
def test_the_steps_without_podkeep() -> None:
    script = f"""
    exec 3>&1 >/dev/null
    start() {{ {START}
    }}
    ( start ) && {PINNED} >&3
    # again: the same, and nothing is mounted twice
    ( start ) && {PINNED} >&3
    grep -c container-mount-namespace /proc/self/mountinfo >&3
    readlink /proc/self/ns/mnt >&3
    grep -l "$({PINNED})" /proc/[0-9]*/ns/mnt 2>/dev/null >&3
    nsenter --mount={PIN} findmnt -n -o PROPAGATION / >&3
    findmnt -n -o PROPAGATION --mountpoint /run/netns >&3
    # what the host mounts is seen below, and not the other way round
    mkdir /run/a /run/b
    mount -t tmpfs up /run/a && nsenter --mount={PIN} findmnt -n -o SOURCE --mountpoint /run/a >&3
    nsenter --mount={PIN} mount -t tmpfs down /run/b
    findmnt --mountpoint /run/b >&3 || echo hidden >&3
    ( {STOP} ) && {PINNED} >&3 || echo unpinned >&3
    grep -c container-mount-namespace /proc/self/mountinfo >&3
    """
    done = on_a_host(script)
    said = done.stdout.splitlines()
    assert len(said) == 10, done
    first, second, mounts, host, root, netns, up, down, end, left = said
    assert first == second != host
    assert re.fullmatch(r"mnt:\[\d+\]", first)
    assert mounts == "2", "the directory and the pin, once"
    assert set(root.split(",")) == {"shared", "slave"}
    assert netns == "shared"
    assert (up, down, end, left) == ("up", "hidden", "unpinned", "0")


def test_propagation_is_finished_where_a_start_was_interrupted() -> None:
    half = f"unshare --mount={PIN} --propagation slave true"
    before, start = START.rsplit("\n", 1)
    script = f"exec 3>&1 >/dev/null; {before.replace('mount --make-rshared /', 'true')}\n{start}\n"
    done = on_a_host(f"{script} nsenter --mount={PIN} findmnt -n -o PROPAGATION / >&3")
    assert half.removesuffix("true") in before
    assert set(done.stdout.strip().split(",")) == {"shared", "slave"}, done


HELPER = units.helper(DEFAULT_PIN)


def helped(tmp_path: Path, script: str) -> subprocess.CompletedProcess[str]:
    program = write_script(tmp_path / "nsenterCmns", HELPER)
    # Not every user may look into the directory of the tests.
    install = f"mkdir /run/bin && cp {program} /run/bin && PATH=/run/bin:$PATH"
    return on_a_host(f"{install}; start() {{ ({START}) >/dev/null 2>&1; }}\n{script}")


@pytest.mark.slow
@pytest.mark.requirement("M33")
def test_the_helper_runs_a_command_inside(tmp_path: Path) -> None:
    done = helped(
        tmp_path,
        f"""start; cd /usr/lib; {PINNED}
        nsenterCmns sh -c 'readlink /proc/self/ns/mnt; pwd; echo "$0|$1"; exit 7' "a  b" "c'd"; echo $?
        nsenterCmns nsenterCmns readlink /proc/self/ns/mnt
        echo 'readlink /proc/self/ns/mnt; exit 3' | SHELL=/bin/sh nsenterCmns; echo $?
        nsenterCmns no-such-program 2>/dev/null; echo $?
        echo in | nsenterCmns cat
        nsenterCmns kill -TERM $$ >/dev/null; nsenterCmns sh -c 'kill -TERM $$'; echo $?""",
    )
    namespace, inside, where, words, status, twice, shell, shell_status, missing, streams, signal = (
        done.stdout.splitlines()
    )
    assert namespace == inside == twice == shell
    assert (where, words, status) == ("/usr/lib", "a  b|c'd", "7")
    assert (shell_status, missing, streams, signal) == ("3", "127", "in", "143")


@pytest.mark.slow
@pytest.mark.requirement("M33")
@pytest.mark.parametrize(
    ("setup", "said"),
    [
        ("", "no mount namespace is pinned at"),
        (f"touch {PIN}", "left-over"),
        (f"start; umount {PIN}", "left-over"),
        (f"touch {PIN}; unshare --net={PIN} true", "is no mount namespace but net:["),
        (f"touch {PIN}; mount --bind /etc/hostname {PIN}", "is no mount namespace but /etc/hostname"),
        ("export KUBENSMNT=/run/other/mnt; start", "no mount namespace is pinned at /run/other/mnt"),
    ],
)
def test_the_helper_runs_nothing_where_there_is_no_namespace(tmp_path: Path, setup: str, said: str) -> None:
    done = helped(tmp_path, f"{setup}\nnsenterCmns echo ran; echo $?")
    assert done.stdout.split() == [str(units.NOT_ENTERED)]
    assert done.stderr.startswith("nsenterCmns: ")
    assert said in done.stderr


@pytest.mark.requirement("M33")
def test_the_helper_names_what_mends_it(tmp_path: Path) -> None:
    fix = f"systemctl start {units.service_of(DEFAULT_PIN)}"
    assert fix in helped(tmp_path, "nsenterCmns true").stderr
    for setup in ("", "mkdir /run/other; touch /run/other/mnt; "):
        elsewhere = helped(tmp_path, f"{setup}KUBENSMNT=/run/other/mnt nsenterCmns true").stderr
        assert "KUBENSMNT" in elsewhere
        assert "systemctl" not in elsewhere, "that pins another one"


def test_the_helper_says_that_it_needs_root(tmp_path: Path) -> None:
    done = helped(tmp_path, "start; setpriv --reuid=65534 --clear-groups --no-new-privs nsenterCmns echo ran; echo $?")
    assert done.stdout.split() == [str(units.NOT_ENTERED)]
    assert "run this as root" in done.stderr
