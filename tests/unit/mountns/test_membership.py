"""Getting into the container mount namespace, or refusing to go anywhere else, for real, on a scratch machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.mountns import on_a_scratch_machine

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make mount namespaces")

BUILDING = """
def enter(where):
    "Enter in a process of its own; return the inodes of what it joined, where it is, and of the host it came from."
    body = f"joined = membership.enter({where!r}); print(joined.inode, own(), joined.host.inode)"
    return [int(inode) for inode in process(body.replace("PosixPath", "Path")).split()]

def refusal(where, *words, **options):
    "Assert that entering is refused for a reason with a hint, and the process stays where it is."
    here = own()
    error = refused(FailedPrecondition, membership.enter, where, **options)
    for word in words:
        assert word in error.message, (word, error)
    assert error.hint, error
    assert own() == here
"""


def on_a_machine(tmp_path: Path, body: str) -> None:
    """Run a body that may use :data:`BUILDING`."""
    on_a_scratch_machine(tmp_path, BUILDING + body)


@pytest.mark.slow
def test_what_is_missing_is_made_where_it_may_be(tmp_path: Path) -> None:
    on_a_machine(
        tmp_path,
        """
inode, here, host = enter(place)
assert inode == here == pinned(pin)
assert host == own() != here
assert lifecycle.status(pin).on_demand
assert enter(place)[:2] == [inode, inode]
""",
    )


@pytest.mark.slow
@pytest.mark.requirement("M14")
def test_it_is_joined_by_file_and_by_process(tmp_path: Path) -> None:
    on_a_machine(
        tmp_path,
        """
inode = lifecycle.start(pin).inode
assert enter(NamespaceRef(pin=pin, source="--mount-namespace"))[:2] == [inode, inode]
inside = spawn("membership.enter(place); print(flush=True); sys.stdin.read()")
inside.stdout.readline()
by_process = NamespaceRef(pid=inside.pid, source="--mount-namespace-pid")
assert enter(by_process) == [inode, inode, own()]
by_file_of_process = NamespaceRef(pin=Path(f"/proc/{inside.pid}/ns/mnt"), source="--mount-namespace")
assert enter(by_file_of_process) == [inode, inode, own()]
inside.communicate("")
refusal(by_process, "--mount-namespace-pid", f"no process {inside.pid}")
""",
    )


@pytest.mark.slow
@pytest.mark.requirement("M14")
@pytest.mark.parametrize("source", ["--mount-namespace", "KUBENSMNT"])
def test_what_is_named_must_be_there(tmp_path: Path, source: str) -> None:
    on_a_machine(
        tmp_path,
        f"source = {source!r}\n"
        + """
before, files = mountinfo.read(), sorted(Path("/run").rglob("*"))
refusal(NamespaceRef(pin=Path("/run/nowhere/mnt"), source=source), source, "/run/nowhere/mnt: no such file")
refusal(NamespaceRef(pin=spare / "mnt", source=source), source, "mnt: no such file")
plain = spare / "plain"
plain.touch()
refusal(NamespaceRef(pin=plain, source=source), source, f"{plain}: no mount namespace is pinned there")
refusal(NamespaceRef(pin=spare, source=source), source, f"{spare}: no mount namespace is pinned there")
fifo = spare / "fifo"
os.mkfifo(fifo)
refusal(NamespaceRef(pin=fifo, source=source), source, f"{fifo}: no mount namespace is pinned there")
refusal(NamespaceRef(pin=Path("/dev/zero"), source=source), source, "no mount namespace is pinned there")
for kind in ("net", "pid", "user", "uts"):
    refusal(NamespaceRef(pin=Path(f"/proc/1/ns/{kind}"), source=source), source, f"is a {kind} namespace")
assert mountinfo.read() == before
assert sorted(Path("/run").rglob("*")) == files
""",
    )


@pytest.mark.slow
@pytest.mark.requirement("M14")
def test_the_hosts_namespace_hides_nothing(tmp_path: Path) -> None:
    on_a_machine(
        tmp_path,
        """
refusal(NamespaceRef(pid=1, source="--mount-namespace-pid"), "process 1", "nothing would be hidden")
refusal(NamespaceRef(pin=Path("/proc/1/ns/mnt"), source="--mount-namespace"), "nothing would be hidden")
refusal(NamespaceRef(pin=Path("/proc/self/ns/mnt"), source="--mount-namespace"), "nothing would be hidden")
refusal(NamespaceRef(pid=4000000, source="--mount-namespace-pid"), "there is no process 4000000")
""",
    )


SLAVE_ONLY = """
from podkeep.mountns import making

def slave_only():
    "Make the namespace as the unit of OpenShift's enhancement is printed."
    pin.parent.mkdir()
    making.bind_directory(pin.parent)
    pin.touch()
    for cpu in sorted(os.sched_getaffinity(0)):  # Linux 6.18 pins what has a higher number only
        made = ["taskset", "-c", str(cpu), "unshare", f"--mount={pin}", "--propagation", "slave", "true"]
        if subprocess.run(made, capture_output=True).returncode == 0:
            return pinned(pin)
"""


@pytest.mark.requirement("M5")
@pytest.mark.parametrize(
    ("source", "inside"),
    [("default", False), ("default", True), ("--mount-namespace-pid", False), ("KUBENSMNT", False)],
)
@pytest.mark.slow
def test_where_mounts_reach_no_container_no_daemon_goes(tmp_path: Path, source: str, inside: bool) -> None:
    """What the hint says makes it right."""
    on_a_machine(
        tmp_path,
        f"source, inside = {source!r}, {inside}\n"
        + SLAVE_ONLY
        + """
inode = slave_only()
waiting = ["nsenter", f"--mount={pin}", "--", "sh", "-c", "echo up; read go"]
shell = subprocess.Popen(waiting, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
shell.stdout.readline()
where = NamespaceRef(pin=pin, may_make=source == "default", source=source)
if source.endswith("-pid"):
    where = NamespaceRef(pid=shell.pid, source=source)
before = lifecycle.status(pin)
assert (before.propagation, before.is_shared, before.follows_host) == ("private,slave", False, True)
prelude = f"where = {where!r}".replace("PosixPath", "Path") + chr(10)

def fresh(body):
    entered = ["nsenter", f"--mount={pin}", "--"] if inside else []
    command = [*entered, sys.executable, "-c", sys.argv[2] + prelude + body, *sys.argv[1:]]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()

body = '''
here, fds = own(), os.listdir("/proc/self/fd")
error = refused(FailedPrecondition, membership.enter, where)
assert (own(), os.listdir("/proc/self/fd")) == (here, fds)
assert error.message.startswith(f"{where.source}: / is private,slave in the mount namespace at "), error
print(error.hint.split("`")[1])
'''
fix = fresh(body)
# Who wants to look may.
assert fresh("membership.enter(where, to_mount=False); print(own())") == str(inode)
assert lifecycle.status(pin) == before
subprocess.run(fix.split(), check=True)
assert lifecycle.status(pin).propagation == "shared,slave"
assert fresh("membership.enter(where); print(own())") == str(inode)
shell.communicate(b"")
""",
    )


@pytest.mark.slow
@pytest.mark.requirement("M5", "M9")
def test_starting_makes_right_what_is_pinned(tmp_path: Path) -> None:
    """As the unit does; a daemon alone does not change what others made."""
    on_a_machine(
        tmp_path,
        SLAVE_ONLY
        + """
inode = slave_only()
lifecycle.start(pin, on_demand=True)
assert lifecycle.status(pin).propagation == "private,slave"
here = mountinfo.read()
assert lifecycle.start(pin) == lifecycle.Started(inode=inode, made=False)
assert lifecycle.status(pin).propagation == "shared,slave"
assert mountinfo.read() == here
assert enter(place)[0] == inode
lifecycle.stop(pin)
# Never the host's.
mounts.set_propagation("/", mounts.Propagation.PRIVATE, recursive=True)
pin.parent.mkdir()
pin.symlink_to("/proc/1/ns/mnt")
lifecycle.start(pin)
assert contents.own_propagation() == "private"
""",
    )


@pytest.mark.slow
def test_who_is_inside_already_goes_on(tmp_path: Path) -> None:
    """A unit's ``nsenter`` wrapper put it there; what PID 1 sees pinned tells that it is right."""
    on_a_machine(
        tmp_path,
        """
inode = lifecycle.start(pin).inode
inside = spawn("membership.enter(place); print(flush=True); sys.stdin.read()")
inside.stdout.readline()
by_pin = NamespaceRef(pin=pin, source="KUBENSMNT")
by_process = NamespaceRef(pid=inside.pid, source="--mount-namespace-pid")
places = [place, by_pin, by_process]
for where in places:
    body = f'''
assert pinned(pin) is None
joined = membership.enter({where!r})
print(joined.inode, own(), joined.host.inode, pinned(pin, joined.host))
'''.replace("PosixPath", "Path")
    command = ["nsenter", f"--mount={pin}", "--", sys.executable, "-c", sys.argv[2] + body, *sys.argv[1:]]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.split() == [str(item) for item in (inode, inode, own(), inode)], (where, done)
inside.communicate("")
assert len(mounted(pin)) == 1
""",
    )


@pytest.mark.slow
def test_a_service_with_mounts_of_its_own_finds_it(tmp_path: Path) -> None:
    """systemd's PrivateTmp= and the like copy the host's mounts, and what is unbindable is not copied."""
    on_a_machine(
        tmp_path,
        """
inode = lifecycle.start(pin).inode
body = '''
assert pinned(pin) is None
joined = membership.enter(place)
print(joined.inode, own(), pinned(pin, joined.host))
'''
service = 'mount --rbind / /mnt && cd /mnt && pivot_root . . && umount -l . && cd / && exec "$@"'
command = ["unshare", "--mount", "--propagation", "slave", "--", "sh", "-c", service, "sh"]
command += [sys.executable, "-c", sys.argv[2] + body, *sys.argv[1:]]
done = subprocess.run(command, capture_output=True, text=True)
assert done.stdout.split() == [str(inode)] * 3, done
assert len(mounted(pin)) == 1
""",
    )


@pytest.mark.slow
def test_it_is_not_made_where_the_host_would_not_see_it(tmp_path: Path) -> None:
    """A daemon in a copy of the host's namespace would pin there, and the next one somewhere else."""
    on_a_machine(
        tmp_path,
        """
def copied(body, *relation):
    shell = " && ".join([*(f"mount --make-r{kind} /" for kind in relation), 'exec "$@"'])
    command = ["unshare", "--mount", "--propagation", "unchanged", "--", "sh", "-c", shell, "sh"]
    command += [sys.executable, "-c", sys.argv[2] + body, *sys.argv[1:]]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()

before = sorted(Path("/run").rglob("*")), mountinfo.read()
body = '''
for call, what in ((membership.enter, place), (lifecycle.start, pin)):
    here, fds = mountinfo.read(), os.listdir("/proc/self/fd")
    error = refused(FailedPrecondition, call, what)
    assert f"mnt:[{own()}], a copy of the host's mount namespace" in error.message, error
    assert "on the host" in error.hint
    assert (mountinfo.read(), os.listdir("/proc/self/fd")) == (here, fds)
print("refused")
'''
for relation in (["slave"], ["slave", "shared"], []):
    assert copied(body, *relation) == "refused"
assert (sorted(Path("/run").rglob("*")), mountinfo.read()) == before
# As the hint says: made on the host, it is found.
inode = lifecycle.start(pin).inode
assert copied("membership.enter(place); print(own())", "slave", "shared") == str(inode)
lifecycle.stop(pin)
# What does not follow the host is a machine of its own.
body = "joined = membership.enter(place); print(joined.inode == own() == pinned(pin, joined.host))"
assert copied(body, "private", "shared") == "True"
assert pinned(pin) is None
""",
    )


@pytest.mark.slow
@pytest.mark.requirement("M16")
def test_who_shall_not_hide_stays_out(tmp_path: Path) -> None:
    on_a_machine(
        tmp_path,
        """
assert enter(None) == [own()] * 3
lifecycle.start(pin)
assert enter(None) == [own()] * 3
other = Path("/run/other/mnt")
lifecycle.start(other)
body = '''
here = own()
error = refused(FailedPrecondition, membership.enter, None, pins=[other, pin])
assert error.hint
print(error.message)
'''
for path in (pin, other):
    prelude = f"other = Path({str(other)!r})" + chr(10)
    command = ["nsenter", f"--mount={path}", "--", sys.executable, "-c", sys.argv[2] + prelude + body, *sys.argv[1:]]
    done = subprocess.run(command, capture_output=True, text=True)
    assert f"is in the mount namespace pinned at {path}, mnt:[{pinned(path)}]" in done.stdout, done
""",
    )


@pytest.mark.slow
def test_within_itself_it_is_not_made_where_pid_1_tells_nothing(tmp_path: Path) -> None:
    """Without a PID namespace of the machine's own, PID 1 is elsewhere: the record says that this is inside."""
    on_a_machine(
        tmp_path,
        """
body = '''
lifecycle.start(pin)
inside = pin.stat().st_ino
entered = ["nsenter", f"--mount={pin}", "--", sys.executable, "-c", sys.argv[2] + sys.argv[3], *sys.argv[1:]]
done = subprocess.run(entered, capture_output=True, text=True)
assert done.returncode == 0, done.stderr
print(done.stdout)
'''
inner = '''
for where in (place, None):
    print(refused(FailedPrecondition, membership.enter, where).message)
print(refused(FailedPrecondition, lifecycle.stop, pin).message)
'''
machine = ["unshare", "--mount", "--", "sh", "-c", 'mount --make-rshared / && exec "$@"', "sh"]
done = subprocess.run(
    [*machine, sys.executable, "-c", sys.argv[2] + body, *sys.argv[1:], inner], capture_output=True, text=True
)
assert done.returncode == 0, done.stderr
first, second, third = done.stdout.strip().splitlines()
assert "is in the mount namespace that podkeep made" in first
assert "mountns.enabled is false, and this process is in the mount namespace" in second
assert "is in the mount namespace that podkeep made" in third
""",
    )


@pytest.mark.slow
def test_the_working_directory_stays(tmp_path: Path) -> None:
    on_a_machine(
        tmp_path,
        """
os.chdir(spare)
for _ in range(2):
    assert process("membership.enter(place); print(os.getcwd())") == str(spare)
(spare / "late").mkdir()
process("membership.enter(place); mounts.tmpfs(spare / 'late', 'size=1m'); (spare / 'late/there').mkdir()")
(spare / "late/here").mkdir()
body = "os.chdir(spare / 'late/here'); print(refused(FailedPrecondition, membership.enter, place).message)"
assert f"the working directory {spare}/late/here is not there" in process(body)
""",
    )


@pytest.mark.slow
def test_who_makes_it_and_cannot_be_there_takes_it_away(tmp_path: Path) -> None:
    on_a_machine(
        tmp_path,
        """
before, files = mountinfo.read(), sorted(Path("/run").rglob("*"))
gone = spare / "gone"
gone.mkdir()
os.chdir(gone)
gone.rmdir()
refusal(place, "the working directory is gone")
os.chdir("/")
assert mountinfo.read() == before
assert sorted(Path("/run").rglob("*")) == files
""",
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wanted", "there"), [("host", "host"), ("inside", "inside"), ("host", "None"), ("host", "inside")]
)
def test_a_daemon_that_is_somewhere_else_does_not_go_on(tmp_path: Path, wanted: str, there: str) -> None:
    on_a_machine(
        tmp_path,
        f"wanted, there = {wanted!r}, {there!r}\n"
        + """
host, inside = own(), lifecycle.start(pin).inode
inodes = {"host": host, "inside": inside, "None": None}
if wanted == there == "host":
    membership.verify(place, host, host)
else:
    refusal_of = refused(FailedPrecondition, membership.verify, place, inodes[wanted], inodes[there])
    assert f"mnt:[{host}]" in refusal_of.message
    assert refusal_of.hint
""",
    )


@pytest.mark.slow
@pytest.mark.requirement("M14")
def test_a_process_with_threads_stays_out(tmp_path: Path) -> None:
    on_a_machine(
        tmp_path,
        """
go = threading.Event()
thread = threading.Thread(target=go.wait, daemon=True)
thread.start()
state = (len(mountinfo.read()), sorted(os.listdir("/proc/self/fd")), own())
for where in (place, NamespaceRef(pid=1, source="test"), None):
    assert "threads" in refused(FailedPrecondition, membership.enter, where).message
assert (len(mountinfo.read()), sorted(os.listdir("/proc/self/fd")), own()) == state
assert not pin.parent.exists()
go.set()
thread.join()
""",
    )


@pytest.mark.slow
def test_descriptors(tmp_path: Path) -> None:
    """The host's root and its namespace are kept, and closed on exec; leaving closes them."""
    on_a_machine(
        tmp_path,
        """
body = '''
before = set(os.listdir("/proc/self/fd"))
joined = membership.enter(place)
kept = {int(fd) for fd in os.listdir("/proc/self/fd")} - {int(fd) for fd in before}
print(len(kept), any(os.get_inheritable(fd) for fd in kept if os.path.exists(f"/proc/self/fd/{fd}")))
membership.leave(joined)
assert len(os.listdir("/proc/self/fd")) == len(before)
'''
for _ in range(2):
    assert process(body) == "2 False"
left = os.listdir("/proc/self/fd")
refusal(NamespaceRef(pin=spare, source="test"))
assert os.listdir("/proc/self/fd") == left
""",
    )


@pytest.mark.slow
def test_only_one_that_podkeep_may_make_goes_with_it(tmp_path: Path) -> None:
    on_a_machine(
        tmp_path,
        """
lifecycle.start(pin, on_demand=True)
for where in (NamespaceRef(pin=pin, source="--mount-namespace"), NamespaceRef(pin=pin, source="KUBENSMNT")):
    process(f"membership.leave(membership.enter({where!r}))".replace("PosixPath", "Path"))
    assert pinned(pin)
process("membership.leave(membership.enter(place))")
assert pinned(pin) is None
""",
    )


@pytest.mark.slow
def test_leaving_with_threads(tmp_path: Path) -> None:
    on_a_machine(
        tmp_path,
        """
before = mountinfo.read()
process('''
joined = membership.enter(place)
go = threading.Event()
thread = threading.Thread(target=go.wait, daemon=True)
thread.start()
here = own()
membership.leave(joined)
assert own() == here
go.set()
thread.join()
''')
assert mountinfo.read() == before
assert list(Path("/run").iterdir()) == []
""",
    )


@pytest.mark.slow
def test_following_a_runtime(tmp_path: Path) -> None:
    on_a_machine(
        tmp_path,
        """
run = spare / "run"
run.mkdir()
assert membership.published(run) is None
runtime = spawn(f"joined = membership.enter(place); membership.publish(Path({str(run)!r}), joined); print(flush=True); "
                "sys.stdin.read(); membership.leave(joined)")
runtime.stdout.readline()
theirs = membership.published(run)
assert theirs == membership.Publication(inode=pinned(pin), pin=str(pin), hidden=True, pid=runtime.pid)
follow = f"joined = membership.follow(Path({str(run)!r}), place); print(joined.inode, own(), flush=True); "
assert process(follow) == f"{theirs.inode} {theirs.inode}"
# Whoever is last removes what was made on demand.
follower = spawn(follow + "sys.stdin.read(); membership.leave(joined)")
follower.stdout.readline()
runtime.communicate("")
assert pinned(pin) == theirs.inode
follower.communicate("")
assert pinned(pin) is None
# Another namespace is at the pin by now: never one that the runtime is not in.
last = lifecycle.start(pin).inode
lingering = spawn("membership.enter(place); print(flush=True); sys.stdin.read()")
lingering.stdout.readline()
lifecycle.stop(pin, force=True)
assert lifecycle.start(pin).inode != last
theirs = replace(theirs, inode=last)
(run / membership.PUBLICATION).write_text(json.dumps(asdict(theirs)))
with spawn(follow) as lost:
    _, error = lost.communicate()
assert f"the runtime is in mount namespace mnt:[{theirs.inode}], this process in mnt:[{pinned(pin)}]" in error, error
(run / membership.PUBLICATION).write_text("{}")
assert "restart the runtime" in refused(PodkeepError, membership.published, run).hint
""",
    )


@pytest.mark.slow
def test_following_a_runtime_that_hides_nothing(tmp_path: Path) -> None:
    on_a_machine(
        tmp_path,
        """
run = spare / "run"
run.mkdir()
joined = membership.enter(None)
membership.publish(run, joined)
assert membership.published(run).hidden is False
follow = f"joined = membership.follow(Path({str(run)!r}), place); print(joined.inode, own())"
assert process(follow) == f"{own()} {own()}"
lifecycle.start(pin)
command = ["nsenter", f"--mount={pin}", "--", sys.executable, "-c", sys.argv[2] + follow, *sys.argv[1:]]
done = subprocess.run(command, capture_output=True, text=True)
assert f"mnt:[{own()}], this process in mnt:[{pinned(pin)}]" in done.stderr, done
""",
    )


@pytest.mark.slow
def test_following_a_runtime_that_tells_nothing(tmp_path: Path) -> None:
    """Another than podkeep's: the namespace must be there, and is not made for it."""
    on_a_machine(
        tmp_path,
        """
error = refused(FailedPrecondition, membership.follow, spare, place)
assert f"default: {pin}: no such file" in error.message
assert "mountns.enabled=false" in error.hint
inode = lifecycle.start(pin).inode
assert process("print(membership.follow(spare, place).inode, own())") == f"{inode} {inode}"
assert process("print(membership.follow(spare, None).inode)") == str(own())
""",
    )


KUBENS = """
from podkeep.base.config import MountnsConfig
from podkeep.mountns.namespace_ref import resolve

def kubens():
    "Make the namespace as kubens.service does."
    directory = KUBENS_PIN.parent
    for command in (
        ["mkdir", directory], ["mount", "--bind", "--make-unbindable", directory, directory], ["touch", KUBENS_PIN],
    ):
        subprocess.run(command, check=True)
    for cpu in sorted(os.sched_getaffinity(0)):  # Linux 6.18 pins what has a higher number only
        made = ["taskset", "-c", str(cpu), "unshare", f"--mount={KUBENS_PIN}", "--propagation", "slave"]
        if subprocess.run([*made, "mount", "--make-rshared", "/"], capture_output=True).returncode == 0:
            return pinned(KUBENS_PIN)

def decided(**options):
    return resolve(MountnsConfig(**options), environ={}, is_pinned=is_pinned)
"""


@pytest.mark.slow
@pytest.mark.requirement("M4", "M13")
def test_what_kubens_made_is_joined_and_left_alone(tmp_path: Path) -> None:
    on_a_machine(
        tmp_path,
        KUBENS
        + """
inode = kubens()
before = mountinfo.read()
assert decided() == NamespaceRef(pin=KUBENS_PIN, source="kubens")
assert decided(pin=str(KUBENS_PIN)) == NamespaceRef(pin=KUBENS_PIN, source="mountns.pin")
for where in (decided(), decided(pin=str(KUBENS_PIN))):
    body = f"joined = membership.enter({where!r}); print(own()); membership.leave(joined)"
    assert process(body.replace("PosixPath", "Path")) == str(inode)
assert mountinfo.read() == before
assert lifecycle.status(KUBENS_PIN).propagation == "shared,slave"
# From inside it is found as well, by a daemon that a wrapper has put there.
assert process("membership.enter(NamespaceRef(pin=KUBENS_PIN, source='test')); print(is_pinned(KUBENS_PIN))") == "True"
subprocess.run(["umount", "-R", KUBENS_PIN.parent], check=True)
assert decided() == NamespaceRef(pin=pin, may_make=True, source="default")
refusal(decided(pin=str(KUBENS_PIN)), f"mountns.pin: {KUBENS_PIN}: no mount namespace is pinned there")
""",
    )


@pytest.mark.slow
def test_two_to_choose_from_are_one_too_many(tmp_path: Path) -> None:
    on_a_machine(
        tmp_path,
        KUBENS
        + """
lifecycle.start(pin)
assert kubens() not in {None, pinned(pin)}
error = refused(FailedPrecondition, decided)
assert str(pin) in error.message
assert str(KUBENS_PIN) in error.message
assert "mountns.pin" in error.hint
assert decided(pin=str(pin)).pin == pin
assert decided(pin=str(KUBENS_PIN)).pin == KUBENS_PIN
lifecycle.stop(pin)
assert decided() == NamespaceRef(pin=KUBENS_PIN, source="kubens")
""",
    )
