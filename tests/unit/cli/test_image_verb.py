from __future__ import annotations

import asyncio
import inspect
import io
import json
import time

import click
import pytest
from click.testing import CliRunner
from rich.console import Console

from podkeep.base.errors import InvalidArgument, NotFound
from podkeep.cli.core import output
from podkeep.cli.core.invocation import Invocation
from podkeep.cli.core.output import raise_last
from podkeep.cli.images import command as image
from podkeep.cli.images import described, ls, progress, progressbars, prune, pull, verify
from podkeep.cli.images import inspect as inspecting
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import podkeep_pb2

IDENTITY = "sha256:" + "ab" * 32
DIGEST = "sha256:" + "cd" * 32


def description(**more: object) -> podkeep_pb2.ImageDescription:
    return podkeep_pb2.ImageDescription(**{"id": IDENTITY, "kind": "image", "size": 2048, **more})  # type: ignore[arg-type]


def event(phase: str, done: int = 0, total: int = 2048, *, blob: str = IDENTITY) -> podkeep_pb2.PullProgress:
    return podkeep_pb2.PullProgress(image="b", digest=blob, phase=phase, done=done, total=total)


def test_every_verb_has_examples_and_its_line_in_the_group() -> None:
    runner = CliRunner()
    group = runner.invoke(image.command, ["--help"]).output
    for name, verb in image.VERBS.items():
        assert verb.help in group
        assert "Examples:" in runner.invoke(image.command, [name, "--help"]).output


def test_rows_of_an_image() -> None:
    tagged = description(
        repo_tags=["docker.io/library/busybox:1", "localhost:5000/b:2"], repo_digests=[f"localhost:5000/b@{DIGEST}"]
    )
    rows = [line.split() for line in ls.table([tagged], digests=True, whole=False)]
    assert rows == [
        ["REPOSITORY", "TAG", "DIGEST", "ID", "TYPE", "SIZE", "AGE"],
        ["docker.io/library/busybox", "1", "<none>", "abababababab", "image", "2", "KiB", "unknown"],
        ["localhost:5000/b", "2", DIGEST, "abababababab", "image", "2", "KiB", "unknown"],
    ]
    ten_days_ago = time.time_ns() - 10 * 86400 * 10**9
    by_digest = description(repo_digests=[f"localhost:5000/b@{DIGEST}"], pulled_at=ten_days_ago)
    _, row = ls.table([by_digest], digests=False, whole=True)
    assert row.split() == ["localhost:5000/b", "<none>", IDENTITY, "image", "2", "KiB", "10d"]
    artifact = description(kind="artifact", artifact_type="application/x-model")
    _, row = ls.table([artifact], digests=False, whole=False)
    assert row.split()[:4] == ["<none>", "<none>", "abababababab", "application/x-model"]


@pytest.mark.parametrize(
    ("filters", "fits"),
    [
        ([("reference", "busybox")], True),
        ([("reference", "busybox:1")], True),
        ([("reference", "busybox:2")], False),
        ([("reference", "docker.io/library/busybox:*")], True),
        ([("reference", "library/*")], True),
        ([("reference", "busy")], False),
        ([("reference", f"*@{DIGEST}")], True),
        ([("dangling", "true")], False),
        ([("dangling", "false"), ("kind", "image")], True),
        ([("dangling", "false"), ("kind", "artifact")], False),
    ],
)
def test_filters(filters: list[tuple[str, str]], fits: bool) -> None:
    shown = description(repo_tags=["docker.io/library/busybox:1"], repo_digests=[f"docker.io/library/busybox@{DIGEST}"])
    assert ls.chosen(shown, filters) is fits


@pytest.mark.parametrize("text", ["name=x", "reference=", "dangling=maybe", "kind=x", "kind"])
def test_filters_that_are_none_are_wrong_usage(text: str) -> None:
    done = CliRunner().invoke(image.command, ["ls", "-f", text])
    assert done.exit_code == 2
    assert "is not one of reference=PATTERN" in done.output


@pytest.mark.parametrize(("text", "value"), [("90s", 90), ("1h30m", 5400), ("7d", 604800), ("2w", 1209600)])
def test_durations(text: str, value: int) -> None:
    assert prune.seconds(click.Context(prune.command), prune.command.params[0], text) == value


@pytest.mark.parametrize("text", ["", "7", "h", "1h 2m", "-1h", "1.5h"])
def test_durations_that_are_none(text: str) -> None:
    with pytest.raises(click.BadParameter, match="write it like 12h"):
        prune.seconds(click.Context(prune.command), prune.command.params[0], text)


def test_json_of_an_image() -> None:
    user = podkeep_pb2.ImageUser(
        container_id="c", container_name="main", pod_namespace="ns", pod_name="web", volume=True
    )
    shown = description(
        pulled_at=1_700_000_000 * 10**9,
        users=[user],
        documents=[
            podkeep_pb2.ImageDocument(role="manifest", digest=DIGEST, data=b'{"a":1}'),
            podkeep_pb2.ImageDocument(role="configuration", digest=DIGEST, data=b"\xff"),
        ],
        layers=[podkeep_pb2.ImageLayer(id=DIGEST, kind="file", title="weights", driver="erofs", bytes=1, images=2)],
    )
    values = described.whole_values(shown)
    json.dumps(values, default=list)
    assert values["pulled_at"] == "2023-11-14T22:13:20Z"
    assert [(document["size"], document["content"]) for document in values["documents"]] == [(7, {"a": 1}), (1, None)]
    assert values["users"][0]["pod"] == "web"
    page = inspecting.page(shown)
    assert "Used by:   ns/web/main (volume)" in page
    assert page[-1].split()[-2:] == ["2", "weights"]


@pytest.mark.parametrize(("depth", "is_shown"), [(50, True), (800, False), (100_000, False)])
def test_documents_may_nest_as_deep_as_they_like(depth: int, is_shown: bool) -> None:
    """The configuration of an artifact may be anything."""
    document = podkeep_pb2.ImageDocument(role="configuration", digest=DIGEST, data=b"[" * depth + b"]" * depth)
    values = described.whole_values(description(documents=[document]))
    assert (values["documents"][0]["content"] is not None) == is_shown
    output.echo_json(values)


def test_credentials() -> None:
    assert pull.credentials(None, password_stdin=False) is None
    assert pull.credentials("me:a:b", password_stdin=False) == ("me", "a:b")
    for creds, from_stdin in ((None, True), ("me:pw", True), (":pw", False), ("", False)):
        with pytest.raises(click.UsageError):
            pull.credentials(creds, password_stdin=from_stdin)


def test_a_password_is_for_one_registry() -> None:
    pull.require_one_registry(["busybox", "docker.io/library/busybox:1"])
    with pytest.raises(click.UsageError, match=r"not for docker\.io, registry\.example"):
        pull.require_one_registry(["busybox", "registry.example/busybox"])


def test_a_password_is_asked_for_only_at_a_terminal() -> None:
    invocation = Invocation(config_path=None, debug=False)
    done = CliRunner().invoke(image.command, ["pull", "--creds", "me", "b"], input="secret\n", obj=invocation)
    assert done.exit_code == 2
    assert "--password-stdin" in done.output


def test_all_that_failed_is_told_and_the_last_is_raised(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NotFound, match="no y"):
        raise_last([NotFound("no x", hint="look"), NotFound("no y")])
    assert capsys.readouterr().err == "podkeep: no x\nhint: look\n"
    raise_last([])


def test_the_report_names_what_mends_a_damage() -> None:
    summary = podkeep_pb2.VerifySummary(images=1, layers=2, documents=2, bytes=2048, damages=1)
    damage = podkeep_pb2.VerifyDamage(object=DIGEST, problem="is wrong", images=[IDENTITY], names=["r:1", "r:2"])
    assert verify.report([damage], summary) == [
        f"damaged: {DIGEST}: is wrong",
        "  in r:1",
        "  in r:2",
        "checked 1 image, 2 layers, 2 documents, 2 KiB: 1 damage",
        "to fix it: podkeep image verify --repair r:1 r:2 && podkeep image pull r:1 r:2",
    ]
    damage.kept = "in use by x"
    assert "remove the pods" in verify.report([damage], summary)[-1]
    stray = podkeep_pb2.VerifyDamage(object="x", problem="no image has it")
    assert verify.report([stray], summary)[-1].endswith("to fix it: podkeep image verify --repair")
    damage.kept, damage.repaired = "", True
    assert verify.report([damage], summary)[-1].endswith("to have them again: podkeep image pull r:1 r:2")
    assert verify.report([], podkeep_pb2.VerifySummary())[-1].endswith("0 B: all well")
    older = verify.report([], podkeep_pb2.VerifySummary(unchecked=2))
    assert older[0].endswith("0 B: nothing wrong was found")
    assert older[1].startswith("2 layers of an older podkeep cannot be checked whole")


def test_lines_tell_each_phase_of_a_blob_once() -> None:
    stream = io.StringIO()
    times = iter([0.0, 2.0])
    with progress.Lines(stream, lambda: next(times, 2.0)) as lines:
        for phase, done in [
            ("waiting", 0),
            ("downloading", 1),
            ("downloading", 2048),
            ("unpacking", 2048),
            ("done", 2048),
        ]:
            lines.update(event(phase, done))
        lines.update(event("done", blob=""))
    assert stream.getvalue().splitlines() == [
        "b abababababab: downloading (2 KiB)",
        "b abababababab: unpacking (2 KiB)",
        "b abababababab: done (2 KiB)",
        "b: done (2 KiB in 2.0 s, 1 KiB/s)",
    ]


def drawn(width: int, height: int, events: list[podkeep_pb2.PullProgress], *, over: bool = False) -> list[str]:
    stream = io.StringIO()
    console = Console(file=stream, width=width, height=height, force_terminal=True)
    bars = progressbars.Bars(stream, console)
    for item in events:
        bars.update(item)
    if over:
        bars.__exit__()
    with console.capture() as capture:
        console.print(*bars._progress.get_renderables())
    return [line.rstrip() for line in capture.get().splitlines()]


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_bars_fit_a_terminal_of_any_size(width: int) -> None:
    events = [event("downloading", 1024, blob=f"sha256:{number:064x}") for number in range(50)]
    lines = drawn(width, 10, events)
    assert len(lines) == 8
    plain = [click.unstyle(line) for line in lines]
    assert max(map(len, plain)) <= width
    assert plain[0].startswith("b 0/50 la") or width == 20


def test_bars_show_first_what_something_happens_to() -> None:
    blobs = [f"sha256:{number}{'0' * 63}" for number in range(6)]
    phases = ["done", "waiting", "downloading", "exists", "unpacking", "retrying"]
    lines = drawn(120, 6, [event(phase, 2048, blob=blob) for phase, blob in zip(phases, blobs, strict=True)])
    text = "\n".join(map(click.unstyle, lines))
    assert "2/6 layers" in text
    assert [phase for phase in phases if f"0 {phase}" in text] == ["downloading", "unpacking", "retrying"]
    assert "10.0/10.0 KiB" in text.splitlines()[0]  # without what was here before


def test_at_the_end_only_images_are_left() -> None:
    lines = drawn(120, 20, [event("downloading", 1), event("done", 2048, blob="")], over=True)
    assert [click.unstyle(line).split()[:2] for line in lines] == [["b", "done"]]


EVIL = "a\x1b[2J[bold]b[/nothing]"
PLAIN = r"a\x1b[2J[bold]b[/nothing]"


def test_names_and_titles_give_a_terminal_no_orders(capsys: pytest.CaptureFixture[str]) -> None:
    image = description(repo_tags=[EVIL], artifact_type=EVIL)
    image.layers.add(id=DIGEST, kind="file", driver="erofs", title=EVIL)
    page = "\n".join(inspecting.page(image))
    assert "\x1b" not in page
    assert page.count(PLAIN) == 3
    damage = podkeep_pb2.VerifyDamage(object=EVIL, problem=EVIL, names=[EVIL], kept=EVIL)
    output.show("table", None, verify.report([damage], podkeep_pb2.VerifySummary()))
    assert "\x1b" not in capsys.readouterr().out
    stream = io.StringIO()
    with progress.Lines(stream) as lines:
        lines.update(podkeep_pb2.PullProgress(image=EVIL, digest=EVIL, phase="done"))
    assert stream.getvalue().count("\n") == 1
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("width", [60, 80, 200])
def test_bars_take_names_as_they_are(width: int) -> None:
    """An archive may lie in a directory with brackets in its name, which are markup to the library that draws."""
    events = [podkeep_pb2.PullProgress(image=EVIL, digest=blob, phase="loading") for blob in ("", EVIL)]
    image, layer = (click.unstyle(line) for line in drawn(width, 10, events))
    assert image.startswith(PLAIN)
    assert layer.startswith(f"  {PLAIN[:10]}")
    assert "\x1b[2J" not in image + layer


@pytest.mark.parametrize("image", ["a b", "localhost/busybox@sha256:12"])
@pytest.mark.filterwarnings("error")
def test_pull_of_what_is_no_reference_is_not_begun(image: str) -> None:
    begun: list[str] = []

    async def begin() -> None:
        begun.append(image)

    async def show() -> None:
        async with CriClient("/nonexistent.sock") as client:
            await progress.shown(client, image, operation, io.StringIO())

    operation = begin()
    with pytest.raises(InvalidArgument):
        asyncio.run(show())
    assert inspect.getcoroutinestate(operation) == inspect.CORO_CLOSED
    assert begun == []


def test_progress_is_asked_for_under_the_name_the_runtime_reports() -> None:
    assert progress.reported_name("busybox") == "docker.io/library/busybox:latest"
