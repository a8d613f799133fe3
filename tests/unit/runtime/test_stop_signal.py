"""Stop signals: every one that CRI can name, and those of images."""

from __future__ import annotations

import signal

import msgspec
import pytest
from runtime_values import container

from podkeep.base.errors import InvalidArgument
from podkeep.cri.v1 import api_pb2 as api
from podkeep.runtime.model import stop_signal
from podkeep.runtime.rpc.container import status_message


@pytest.mark.parametrize("name", [name for name in api.Signal.keys() if name != "RUNTIME_DEFAULT"])  # noqa: SIM118
def test_every_signal_of_the_interface(name: str) -> None:
    assert stop_signal.parse(name) in signal.valid_signals()


def test_the_interfaces_signals_are_all_different_but_for_synonyms() -> None:
    names = [name for name in api.Signal.keys() if name != "RUNTIME_DEFAULT"]  # noqa: SIM118
    numbers = {stop_signal.parse(name) for name in names}
    assert len(names) - len(numbers) == len([name for name in names if name in {"SIGCLD", "SIGIOT", "SIGPOLL"}])


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("", 15),
        ("SIGTERM", 15),
        ("term", 15),
        ("sigquit", 3),
        ("9", 9),
        ("37", 37),
        ("SIGRTMIN", 34),
        ("SIGRTMIN+3", 37),
        ("RTMIN+3", 37),
        ("SIGRTMINPLUS3", 37),
        ("SIGRTMAX-14", 50),
        ("SIGRTMAXMINUS14", 50),
        ("64", 64),
    ],
)
def test_spellings(text: str, number: int) -> None:
    assert stop_signal.parse(text) == number


@pytest.mark.parametrize(
    ("asked", "image", "shown"),
    [
        ("", "", api.SIGTERM),
        ("", "SIGQUIT", api.SIGQUIT),
        ("", "quit", api.SIGQUIT),
        ("", "3", api.SIGQUIT),
        ("", "SIGCLD", api.SIGCHLD),
        ("", "SIGRTMIN+3", api.SIGRTMINPLUS3),
        ("", "RTMAX-14", api.SIGRTMAXMINUS14),
        ("", "nonsense", api.SIGTERM),
        ("SIGUSR1", "SIGQUIT", api.SIGUSR1),
        ("SIGCLD", "", api.SIGCLD),
    ],
)
def test_the_status_shows_the_signal_that_is_used(asked: str, image: str, shown: api.Signal.ValueType) -> None:
    one = msgspec.structs.replace(container(stop_signal=asked), image_stop_signal=image)
    assert status_message(one, "").stop_signal == shown


def test_the_status_can_show_every_signal() -> None:
    for name, value in api.Signal.items():
        if name != "RUNTIME_DEFAULT":
            one = msgspec.structs.replace(container(), image_stop_signal=name)
            shown = api.Signal.Name(status_message(one, "").stop_signal)
            assert shown == name or stop_signal.parse(shown) == stop_signal.parse(name), value


@pytest.mark.parametrize(
    "text",
    ["0", "65", "-1", "32", "999", "9" * 5000, "SIG", "SIGSTOPPED", "SIGRTMIN+31", "SIGRTMAX-31", "٩", "SIG9", "1.5"],
)
def test_what_is_no_signal(text: str) -> None:
    with pytest.raises(InvalidArgument, match="is not a signal"):
        stop_signal.parse(text)
