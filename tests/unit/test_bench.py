"""The parts of the benchmarks that could quietly make a wrong number or leave something behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
import textwrap
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import pytest
from bench import api, bulk, hosts, images, isolation, memory, mountns, mountwatch, report, steps
from bench.api_client import Latencies
from bench.api_servers import ApiServer
from bench.mounter import Mounter
from bench.report import Cell, Row
from bench.samples import Samples, Summary

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 10.0


@pytest.mark.parametrize(
    ("values", "p50", "p95"),
    [([3.0], 3.0, 3.0), ([1.0, 2.0], 1.5, 2.0), ([float(n) for n in range(1, 21)], 10.5, 19.0)],
)
def test_a_summary_has_median_and_nearest_rank(values: list[float], p50: float, p95: float) -> None:
    assert Summary.of(list(reversed(values))) == Summary(p50=p50, p95=p95, n=len(values))


def test_no_samples_are_no_zero() -> None:
    with pytest.raises(ValueError, match="no samples"):
        Samples().summary("pod up")


def test_a_failed_call_leaves_no_sample() -> None:
    samples = Samples()
    with pytest.raises(RuntimeError), samples.timed("call"):
        raise RuntimeError
    assert samples.summaries() == {}


def test_a_ratio_needs_both_sides() -> None:
    both = Row(title="x", containerd=Cell.rate(10.0), podkeep=Cell.rate(25.0))
    assert both.markdown() == "| x | 10.0 pods/s | 25.0 pods/s | **2.50** |"
    assert Row(title="x", containerd=None, podkeep=Cell.rate(25.0)).markdown() == "| x | – | 25.0 pods/s | – |"


def test_a_table_of_texts_has_a_line_for_its_head() -> None:
    rows = [["100", "624 / 24"], ["200", "1224 / 24"]]
    assert report.table(["Pods", "Lines"], rows).splitlines() == [
        "| Pods | Lines |",
        "|---|---|",
        "| 100 | 624 / 24 |",
        "| 200 | 1224 / 24 |",
    ]


def test_nothing_is_divided_by_nothing() -> None:
    assert report.ratio(Cell.count(0), Cell.count(1)) == "–"
    assert report.ratio(Cell.count(1105), Cell.count(0)) == "**0.00**"
    assert Cell.count(1105).text == "1 105"


@pytest.mark.parametrize("name", ["results", "pulls", "mountns", "nested", "api"])
def test_results_replace_only_what_is_between_the_markers(tmp_path: Path, name: str) -> None:
    document = tmp_path / "benchmarks.md"
    document.write_text(report.DOCUMENT.read_text())
    report.write(name, "| older |", document)
    report.write(name, "| newer |", document)
    begin, end = f"<!-- {name}", f"<!-- end of {name} -->"
    text, original = document.read_text(), report.DOCUMENT.read_text()
    assert "| newer |" in text
    assert "| older |" not in text
    assert text.partition(begin)[0] == original.partition(begin)[0]
    assert text.partition(end)[2] == original.partition(end)[2]


def test_results_need_their_markers(tmp_path: Path) -> None:
    document = tmp_path / "benchmarks.md"
    document.write_text("# Benchmarks\n")
    with pytest.raises(ValueError, match="markers"):
        report.write("results", "first", document)
    assert document.read_text() == "# Benchmarks\n"


@pytest.mark.slow
def test_large_images_are_streamed_and_the_same_each_time() -> None:
    first, again = (b"".join(bulk.many_files(500)) for _ in range(2))
    with tarfile.open(fileobj=BytesIO(first)) as archive:
        names = archive.getnames()

    assert first == again
    assert len(names) == len(set(names)) == 500


def test_a_model_is_one_file_of_its_size() -> None:
    size = (3 << 20) + 17
    with tarfile.open(fileobj=BytesIO(b"".join(bulk.model(size)))) as archive:
        (member,) = archive.getmembers()
        content = archive.extractfile(member)
        assert content is not None
        assert content.read() == b"".join(bulk.noise(size))


@pytest.mark.slow
def test_the_most_memory_of_a_process_and_its_children_is_found() -> None:
    script = "import sys; data = b'.' * (32 << 20); sys.stdout.write('.'); sys.stdout.flush(); input()"
    command = [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {script!r}])"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"."
        with memory.Peak(process.pid) as peak:
            deadline = time.monotonic() + TIMEOUT_S
            while peak.kib <= 32 << 10:
                assert time.monotonic() < deadline, "the child was not seen"
        process.communicate(b"\n")
    assert peak.kib > 32 << 10


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "3600"]) as process:
        wait_for_arguments(process)
        yield process
        process.kill()


def test_memory_counts_new_processes_without_the_workload(sleeper: subprocess.Popen[bytes]) -> None:
    known = {process.pid for process in memory.processes()} - {sleeper.pid}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        wait_for_arguments(process)
        assert sleeper.pid in {found.pid for found in memory.beside(known, ("sleep", "3601"))}
        found = [each for each in memory.beside(known, ("sleep", "3600")) if each.pid in (sleeper.pid, process.pid)]
        assert [each.pid for each in found] == [process.pid]
        assert sum(memory.pss_kib(found).values()) > 0
        process.communicate()


def wait_for_arguments(process: subprocess.Popen[bytes]) -> None:
    """Wait until /proc shows them: Popen returns a moment before the kernel has laid them out."""
    cmdline = Path(f"/proc/{process.pid}/cmdline")
    deadline = time.monotonic() + TIMEOUT_S
    while not cmdline.read_bytes():
        assert process.poll() is None
        assert time.monotonic() < deadline, "no arguments in /proc"


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["-c", "input()"], Path(sys.executable).name),
        (["-S", "-E", "-c", "input()", "script"], Path(sys.executable).name),
        (["-m", "code", "-q"], "code"),
    ],
)
def test_a_process_goes_by_its_script_or_module(arguments: list[str], name: str) -> None:
    with subprocess.Popen([sys.executable, *arguments], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        wait_for_arguments(process)
        assert {each.name for each in memory.processes() if each.pid == process.pid} == {name}
        process.kill()


def test_a_layer_holds_the_program_and_its_links() -> None:
    layer = images.busybox().layer()
    assert layer == images.busybox().layer()
    with tarfile.open(fileobj=BytesIO(layer)) as archive:
        program = archive.extractfile("bin/busybox")
        assert program is not None
        assert program.read() == images.BUSYBOX.read_bytes()
        assert archive.getmember("bin/sleep").linkname == "/bin/busybox"


MODULE = """
    import subprocess, sys
    from pathlib import Path
    from bench import isolation

    work = Path(sys.argv[2])
    isolation.settle()
    cgroup = Path("/sys/fs/cgroup/pids" if Path("/sys/fs/cgroup/pids").exists() else "/sys/fs/cgroup") / work.name
    (cgroup / "pod" / "container").mkdir(parents=True)
    (work / "mount").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(work / "mount")], check=True)
    orphan = subprocess.Popen([work.name, "3600"], executable="/bin/sleep", start_new_session=True)
    (cgroup / "pod" / "container" / "cgroup.procs").write_text(str(orphan.pid))
    print(work, flush=True)
    if sys.argv[3] == "wait":
        orphan.wait()
    raise SystemExit(7)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make mount and PID namespaces")
@pytest.mark.parametrize(("mode", "status"), [("end", 7), ("wait", -signal.SIGINT)])
@pytest.mark.slow
def test_a_run_leaves_nothing_behind(tmp_path: Path, mode: str, status: int) -> None:
    (tmp_path / "tried.py").write_text(textwrap.dedent(MODULE))
    start = "import sys; from pathlib import Path; from bench import isolation\n"
    start += f"raise SystemExit(isolation.run('tried', ['{mode}'], Path('{tmp_path}')))"
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    outer = subprocess.Popen([sys.executable, "-c", start], stdout=subprocess.PIPE, text=True, env=environment)
    with outer:
        assert outer.stdout is not None
        work = Path(outer.stdout.readline().strip())
        assert work.name.startswith("podkeep-bench-")
        if mode == "wait":
            outer.terminate()
        outer.stdout.read()  # every process of the run holds the other end; this returns when the last one is gone
        assert outer.wait(30) == status
    assert not work.exists()
    assert list(isolation.CGROUPS.glob(f"*/{work.name}")) == []
    assert work.name not in Path("/proc/self/mountinfo").read_text()
    assert [process for process in memory.processes() if process.matches(f"~{work.name}")] == []


def test_what_a_watcher_needs_of_a_table() -> None:
    table = (
        b"24 29 0:22 / /proc rw,relatime shared:5 - proc proc rw\n"
        b"30 29 0:26 / /run/with\\040space rw master:1 propagate_from:2 shared:7 - tmpfs tmpfs rw,mode=755\n"
        b"31 29 254:0 / /\xff rw - ext4 /dev/vda rw\n"
    )
    assert mountwatch.parse(table) == {
        24: ("/proc", "proc", "proc"),
        30: ("/run/with\\040space", "tmpfs", "tmpfs"),
        31: ("/\udcff", "ext4", "/dev/vda"),
    }


def test_what_was_seen_since() -> None:
    earlier, later = (mountwatch.Watched(cpu_ms=cpu, events=events) for cpu, events in ((1.5, 2), (4.0, 9)))
    assert later.since(earlier) == mountwatch.Watched(cpu_ms=2.5, events=7)


@pytest.mark.slow
def test_cpu_time_of_a_process_that_counts(sleeper: subprocess.Popen[bytes]) -> None:
    # It was started a moment ago: what that takes belongs to the time, too.
    idle = mountwatch.settle(sleeper.pid)
    assert mountwatch.cpu_ms(sleeper.pid) == idle
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        deadline = time.monotonic() + TIMEOUT_S
        while mountwatch.cpu_ms(busy.pid) < 50 or mountwatch.process_ms(busy.pid) < 50:
            assert time.monotonic() < deadline
        busy.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make mount namespaces")
@pytest.mark.parametrize("watch", [mountwatch.poller, mountwatch.findmnt])
@pytest.mark.slow
def test_a_watcher_of_a_host_counts_what_changes_there(
    tmp_path: Path, watch: Callable[[int], mountwatch.Watcher]
) -> None:
    before = Path("/proc/self/mountinfo").read_bytes()
    with hosts.Host() as host, watch(host.pid) as watcher, Mounter(host.pid) as mounter:
        lines = hosts.lines(host.pid)
        assert watcher.seen().events == 0
        mounter.mount(tmp_path / "one")
        watcher.wait_for(1)
        assert hosts.lines(host.pid) == lines + 1
        with pytest.raises(OSError, match="File exists"):
            mounter.mount(tmp_path / "one")
        mounter.unmount(tmp_path / "one")
        watcher.wait_for(2)
        assert watcher.seen().cpu_ms > 0
        assert hosts.lines(host.pid) == lines
    assert Path("/proc/self/mountinfo").read_bytes() == before


def test_growth_has_both_sides_in_a_cell() -> None:
    def table(lines: int, cost: float) -> mountns.Table:
        times = dict.fromkeys(mountns.WATCHERS, cost)
        return mountns.Table(lines=lines, event_ms=times, pod_ms=dict.fromkeys(times, 10 * cost))

    shown, hidden = {10: table(84, 0.25), 200: table(1224, 4)}, {10: table(24, 0.1), 200: table(24, 0)}
    assert mountns.growth(shown, hidden).splitlines()[2:] == [
        "| 10 | 84 / 24 | 0.25 / 0.10 ms | 0.25 / 0.10 ms | 2.5 / 1.0 ms | 2.5 / 1.0 ms |",
        "| 200 | 1224 / 24 | 4.00 / 0.00 ms | 4.00 / 0.00 ms | 40.0 / 0.0 ms | 40.0 / 0.0 ms |",
    ]


def test_a_row_of_shown_and_hidden() -> None:
    assert mountns.row("Lines", [Cell.count(600), Cell.count(24)]) == ["Lines", "600", "24", "**0.04**"]


def test_steps_are_what_lies_between_two_marks_of_a_call() -> None:
    calls = [("StartContainer", 10_000_000, 20_000_000), ("pod up", 10_000_000, 20_000_000)]
    marks = ("container.started 1000000", "sandbox.files 12000000", "container.started 17000000")
    log = "words\n" + "".join(f"failpoint {mark}\nwords\n" for mark in marks)
    found = steps.of_steps(calls, log)
    assert found.values("StartContainer container.started") == [7.0]
    assert found.values("StartContainer ") == [3.0]
    assert found.values("RunPodSandbox sandbox.files") == []


@pytest.mark.parametrize(
    ("values", "percent", "result"),
    [([3.0], 99, 3.0), ([2.0, 1.0], 50, 1.0), ([float(n) for n in range(1, 201)], 99, 198.0)],
)
def test_a_percentile_is_the_nearest_rank(values: list[float], percent: int, result: float) -> None:
    assert api.percentile(values, percent) == result


def test_no_events_have_no_latency() -> None:
    with pytest.raises(ValueError, match="no samples"):
        api.percentile([], 99)


@pytest.mark.parametrize("size", [1, 7, 30, 1000])
def test_events_of_a_stream_count_once_however_it_is_cut(size: int) -> None:
    event = b'{"type":"ADDED","object":{"data":{"sent":"%d","value":"v"},"managedFields":[{"f:sent":{}}]}}\n'
    stream = b"".join(event % number for number in (1_000_000, 2_500_000, 4_000_000))
    latencies = Latencies()
    found = [late for at in range(0, len(stream), size) for late in latencies.of(stream[at : at + size], 5_000_000)]
    assert found == [4.0, 2.5, 1.0]


class Known(ApiServer):
    """A server that is not started: its samples are given."""

    def __init__(self, name: str) -> None:
        self.name = name


def test_the_table_of_api_servers_has_a_column_for_each_and_the_median_of_the_rounds() -> None:
    plan = api.Plan(rounds=3, objects=10_000, requests=1, connections=1, watchers=1, rate=1, seconds=1)
    sides = [api.Side(server=Known(name), samples=Samples()) for name in ("kube-apiserver", "podkeep")]
    for side, factor in zip(sides, (1, 2), strict=True):
        for metric in api.metrics(plan):
            for value in (30, 1, 20):
                side.samples.add(metric.key, value * factor)
    alone, both = api.table(sides[1:], plan, ["a fact"]).splitlines(), api.table(sides, plan, []).splitlines()
    assert alone[:3] == ["| | podkeep |", "|---|---|", "| Read of a ConfigMap, CPU time | 40 ms |"]
    assert alone[-1] == "- a fact"
    assert both[0] == "| | kube-apiserver | podkeep | podkeep / kube-apiserver |"
    assert both[2] == "| Read of a ConfigMap, CPU time | 20 ms | 40 ms | **2.00** |"
    servers = api.as_json(sides, plan)["servers"]
    assert isinstance(servers, dict)
    assert servers["podkeep"]["list"] == [60, 2, 40]
