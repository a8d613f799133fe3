"""What holds for all tests: none fails because the machine is busy, and a run that is ended leaves nothing."""

from __future__ import annotations

import ast
import gc
import os
import signal
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Never

import pytest
from hypothesis import HealthCheck, settings

from podkeep.base.errors import FailedPrecondition
from podkeep.kernel.files.removal import remove_tree
from support import container_mounts, erofs, quick, results
from support.container_mounts import ContainerMounts
from support.resctrl import fixture
from support.resctrl.fixture import resctrl as resctrl
from support.resctrl.fixture import shared_resctrl as shared_resctrl

KILL_S = 10.0
"""Within which a server is killed and serves again, also on a busy machine."""
settings.register_profile("podkeep", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("podkeep"), max_examples=quick.EXAMPLES)
settings.load_profile("podkeep")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        container_mounts.OPTION,
        choices=[str(item) for item in ContainerMounts],
        default=str(ContainerMounts.HIDDEN),
        help="whether runtimes under test hide the mounts of containers from the machine, as is the default, or not",
    )
    parser.addoption(
        fixture.OPTION,
        choices=[fixture.STAND_IN, fixture.REAL],
        default=fixture.STAND_IN,
        help="whether tests of RDT for any hardware use a stand-in, or change /sys/fs/resctrl",
    )
    parser.addoption("--kills", type=int, default=20, help="how often the test of the API's writes kills the server")
    parser.addoption(quick.OPTION, action="store_true", help="leave out unit tests that need root or take long")
    parser.addoption(results.OPTION, metavar="FILE", help="write how each test ended, as lines of JSON")


def pytest_configure(config: pytest.Config) -> None:
    """End as for a key that interrupts when the run gets SIGTERM: what tests and fixtures made is removed.

    A shell lets what it starts in the background ignore SIGINT, and nohup lets it ignore SIGHUP; the programs under
    test would inherit that. A run that is spread over workers of pytest-xdist lets each of them do so; they have some
    seconds for it.
    """
    if config.getoption(quick.OPTION):
        settings.load_profile("quick")
    container_mounts.decide(config.getoption(container_mounts.OPTION))
    is_worker = hasattr(config, "workerinput")
    is_spread = not is_worker and bool(config.getoption("numprocesses", None))
    record = config.getoption(results.OPTION)
    if record is not None:
        config.pluginmanager.register(results.Collector() if is_worker else results.Recorder(Path(record)))

    def end(number: int, _frame: object) -> Never:
        if is_worker:  # it is told more than once, and must not be kept from putting things away
            for told in (signal.SIGTERM, signal.SIGINT):
                signal.signal(told, lambda *_: None)
        if is_spread:  # its children are the workers
            for task in Path("/proc/self/task").iterdir():
                for pid in (task / "children").read_text().split():
                    os.kill(int(pid), signal.SIGTERM)
        pytest.exit(f"ended by {signal.Signals(number).name}", returncode=128 + number)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, end if is_worker else signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what is not quick, if that is asked for."""
    if config.getoption(quick.OPTION) and quick.is_left_out(collection_path, config.rootpath / "tests/unit"):
        return True
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put what takes longest first, and let many kills take longer than a test may."""
    items.sort(key=lambda item: item.get_closest_marker("first") is None)
    seconds = max(KILL_S * int(config.getoption("--kills")), float(config.getini("timeout")))
    for item in items:
        if item.get_closest_marker("kills") is not None:
            item.add_marker(pytest.mark.timeout(seconds))


def pytest_collection_finish() -> None:
    """Have searches for cycles look at what tests make, and not at the run itself each time."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what is tried with layers as EROFS images where the kernel cannot mount them."""
    callspec = getattr(item, "callspec", None)
    if callspec is not None and "erofs" in callspec.params.values():
        erofs.needed()


@contextmanager
def _no_finalisers() -> Iterator[None]:
    """Keep the garbage collector out while pytest makes syntax trees.

    Until CPython 3.11.8 (Debian 12 has 3.11.2) a finaliser that runs while one is made may spoil it:
    "SystemError: AST constructor recursion depth mismatch" (gh-106905).
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _parse(*args: Any, **options: Any) -> ast.AST:
    """:func:`ast.parse`, for the tests and tools that read sources."""
    with _no_finalisers():
        return _PARSE(*args, **options)


_PARSE, ast.parse = ast.parse, _parse  # type: ignore[assignment]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, object, object]:
    """The report of a failure quotes its source; a run must not end with it."""
    with _no_finalisers():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector out of what pytest has collected.

    Modules and items live as long as the run. With those of all unit tests a full collection would take a quarter of a
    second, and tests that look for leaks ask for one each.
    """
    with _no_finalisers():
        collected = yield
        gc.freeze()
    return collected


@pytest.fixture
def mounts_of_containers(request: pytest.FixtureRequest) -> ContainerMounts:
    """Whether mounts of containers are hidden or shown in this test."""
    return container_mounts.of_test(request.node)


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """pytest's own, emptied at once: images take gibibytes, and pytest cannot remove the deepest of their trees."""
    yield tmp_path
    with suppress(FailedPrecondition):  # something is mounted there, for longer than this test
        for entry in tmp_path.iterdir():
            remove_tree(entry)
