"""Error classes and gRPC codes: complete, reversible, and within what a trailer may carry."""

from __future__ import annotations

import itertools
import sys
from urllib.parse import quote

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeep.base import errors
from podkeep.base.errors import (
    CommandFailed,
    Internal,
    KernelCallError,
    NotFound,
    PodkeepError,
    RegistryUnavailable,
    Unavailable,
)
from podkeep.base.text.printable import printable
from podkeep.base.text.redaction import redacted
from podkeep.cri import status

CLASSES = [cls for cls in vars(errors).values() if isinstance(cls, type) and cls.__base__ is PodkeepError]


def test_every_error_class_has_a_code_of_its_own() -> None:
    assert len(CLASSES) == 13
    codes = [status.code_of(cls("x")) for cls in CLASSES]
    assert len(set(codes)) == len(CLASSES)
    assert grpc.StatusCode.OK not in codes
    assert status.code_of(RegistryUnavailable("x")) is grpc.StatusCode.UNKNOWN


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_comes_back_with_class_message_and_hint(cls: type[PodkeepError]) -> None:
    sent = cls(f"{cls.__name__}: spec.hostname: 'ä b' is 100% wrong", hint="shorten it; hint: twice")
    received = status.error_of(status.code_of(sent), status.details_of(sent))
    assert type(received) is cls
    assert (received.message, received.hint, str(received)) == (sent.message, sent.hint, str(sent))


@pytest.mark.parametrize("error", [KernelCallError("mount()", 22), CommandFailed("crun list", 1, "no\n")])
def test_a_subclass_travels_as_its_parent(error: PodkeepError) -> None:
    received = status.error_of(status.code_of(error), status.details_of(error))
    assert type(received) is Internal
    assert str(received) == str(error)


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_every_code_of_another_runtime_becomes_an_error(code: grpc.StatusCode) -> None:
    error = status.error_of(code, "sandbox is gone")
    assert isinstance(error, PodkeepError)
    assert str(error) == "sandbox is gone"


def test_a_registry_that_is_down_is_told_from_a_runtime_that_is_down() -> None:
    """By a kubelet, too: it has the bare text from this code only, and looks at how that begins."""
    sent = RegistryUnavailable("RegistryUnavailable: r.example: refused", hint="look")
    received = status.error_of(grpc.StatusCode.UNKNOWN, status.details_of(sent))
    assert type(received) is RegistryUnavailable
    assert not isinstance(received, Unavailable)
    assert type(status.error_of(grpc.StatusCode.UNKNOWN, "failed to pull: RegistryUnavailable")) is Internal


def test_an_answer_without_details_names_its_code() -> None:
    assert str(status.error_of(grpc.StatusCode.UNKNOWN, "")) == "no details, only UNKNOWN"


def test_details_that_are_too_long_lose_their_middle() -> None:
    error = CommandFailed("crun create x", 1, "noise\n" * 5000 + "the last line says why")
    details = status.details_of(error)
    assert details.startswith("`crun create x` exited with 1: noise")
    assert details.endswith("the last line says why")
    assert " [...] " in details


def test_a_file_name_that_is_not_utf8_can_travel() -> None:
    details = status.details_of(Internal(b"/tmp/\xff".decode("utf-8", "surrogateescape")))
    assert details == "/tmp/\\udcff"


@pytest.mark.slow
@given(st.text(max_size=3000))
def test_details_fit_into_a_trailer(text: str) -> None:
    details = status.details_of(Internal(text * 4))
    on_the_wire = quote(details, safe="".join(map(chr, range(0x20, 0x7F))).replace("%", ""))
    assert len(on_the_wire) <= status.MAX_DETAILS_BYTES
    if len(text.encode("utf-8", "backslashreplace")) * 12 <= status.MAX_DETAILS_BYTES:
        assert details == redacted("\n".join(map(printable, (text * 4).split("\n"))))


def test_details_are_printable_and_have_no_secrets() -> None:
    error = Internal(
        "first\n\x1b]0;owned\x07\u202e \ud800", hint="see https://me:opensesame@r.example/x?sig=opensesame"
    )
    details = status.details_of(error)
    assert all(line.isprintable() for line in details.split("\n"))
    assert details.startswith("first\n\\x1b]0;owned")
    assert "opensesame" not in details


def test_of_a_text_of_megabytes_only_the_ends_are_looked_at() -> None:
    counted = itertools.count()
    error = NotFound("container '" + "\x01é" * (1 << 20) + "' not found", hint="look again")
    sys.setprofile(lambda _frame, event, _: next(counted) if event == "call" else None)
    try:
        details = status.details_of(error)
    finally:
        sys.setprofile(None)
    assert next(counted) < 200_000
    assert details.startswith("container")
    assert details.endswith("not found; hint: look again")


@pytest.mark.parametrize("before", [0, 1, 6, 12, 20])
def test_no_credential_is_cut_so_that_it_is_not_known(before: int) -> None:
    secret = "Bearer opensesame.1234"
    for text in (f"{'x' * (32 * 1024 - before)} {secret} {'y ' * 50_000}", f"{'y ' * 50_000}{secret} {'x' * 32_740}"):
        for padded in (text, text + "x" * before):
            details = status.details_of(Internal(padded))
            assert "sesame" not in details
            assert "1234" not in details


@pytest.mark.parametrize("cut", [0, 4, 10, 20])
def test_no_part_of_a_credential_is_shown_because_others_were_hidden(cut: int) -> None:
    """Of the text that is looked at nothing is left but the cut."""
    filler, secret = ("Bearer " + "a1" * 16_000).ljust(32 * 1024 - cut - 1, "1"), "https://me:opensesame@r.example/"
    text = f"{filler} {secret} {'y ' * 50_000} {secret} {filler}"
    details = status.details_of(Internal(text))
    assert len(details) < 100
    assert "opens" not in details
    assert "sesame" not in details
