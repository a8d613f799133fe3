"""Secrets in texts: what is left out, and what is left as it is."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeep.base import log
from podkeep.base.text import redaction
from podkeep.base.text.redaction import redacted, remember

TOKEN = "dckr_pat_27-Zv.x9Q~longTokenOfManyCharacters"


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process knows from other tests does not count."""
    monkeypatch.setattr(redaction, "_known", redaction._Known())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at https://me:secret@r.example/v2/", "at https://[hidden]@r.example/v2/"),
        ("'ftp://secret@r.example/x'", "'ftp://[hidden]@r.example/x'"),
        ("https://r.example/b?X-Amz-Signature=secret&a=b, again", "https://r.example/b?[hidden] again"),
        ("<https://r.example/b?sig=secret>; rel=next", "<https://r.example/b?[hidden]>; rel=next"),
        ("https://me:secret@r.example/b?sig=x", "https://[hidden]@r.example/b?[hidden]"),
        ("Authorization: Basic bWU6c2VjcmV0", "Authorization: Basic [hidden]"),
        ("bearer abc.def-123 is refused", "bearer [hidden] is refused"),
        ("token eyJhbGciOiJub25l.eyJzdWIiOiJtZSJ9.c2VjcmV0 expired", "token [hidden] expired"),
    ],
)
def test_what_has_the_form_of_a_secret_is_left_out(text: str, shown: str) -> None:
    assert redacted(text) == shown
    assert redacted(shown) == shown


@pytest.mark.parametrize(
    "secret", ["p\\a'b", 'p\\a"b', "p\\'\"b", "p\ta'b", "pä\\ß'", "p\\assword of ' more \" letters"]
)
def test_a_secret_is_left_out_as_others_quote_it(secret: str) -> None:
    data = secret.encode()
    quoted = [repr(secret), repr(f"{secret} 'is'"), repr(f'{secret} "is" it\'s'), json.dumps(secret)]
    quoted += [repr(data), repr(data + b" 'is'"), json.dumps(f"'{secret}'", ensure_ascii=False), data.decode("latin-1")]
    remember(secret)
    for text in quoted:
        assert "a'b" not in redacted(text)
        assert redacted(text).count(redaction.HIDDEN) == 1, redacted(text)


@pytest.mark.parametrize(
    "text",
    [
        "registry.example/app@sha256:" + "0" * 64,
        "registry.example/app:v1?artifactType=application/vnd.example",
        "http://[fd00::1]:5000/v2/ does not answer",
        "basic authentication is not the bearer token scheme",
        "what? no: user@host.example",
        "",
    ],
)
def test_other_texts_stay_as_they_are(text: str) -> None:
    remember("abc", "")
    assert redacted(text) == text


@given(st.text(max_size=30), st.text(max_size=30), st.integers(0, 30), st.integers(8, 44))
@pytest.mark.slow
def test_parts_of_a_long_secret_are_found_anywhere(before: str, after: str, start: int, length: int) -> None:
    remember(TOKEN)
    part = TOKEN[start : start + length]
    shown = redacted(before + part + after)
    assert not any(TOKEN[at : at + 8] in shown for at in range(len(TOKEN) - 7))
    if len(part) >= 8:
        assert redaction.HIDDEN in shown


@pytest.mark.parametrize("secret", ["pass", "secret word", "käse/brot", "a+b c=d/e?f&g%h secret", "😀" * 20])
def test_secrets_are_found_whole_also_as_urls_have_them(secret: str) -> None:
    remember(secret)
    for form in (secret, redaction.quote(secret), redaction.quote(secret, safe="")):
        assert redacted(f"before {form} after") == "before [hidden] after"


@pytest.mark.parametrize("style", ["plain", "json"])
def test_no_log_line_has_a_secret_or_is_lost_to_one_that_is_no_text(style: str) -> None:
    remember(TOKEN)
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict", write_through=True)
    root, levels = logging.getLogger(), logging.getLogger().level
    handlers = root.handlers[:]
    try:
        log.configure("debug", stream, style="json" if style == "json" else "plain")
        logging.getLogger("test").debug("%s and https://me:x@host/?sig=%s \udc80", TOKEN, "opensesame")
        try:
            raise ValueError(TOKEN)
        except ValueError:
            logging.getLogger("test").exception("failed")
    finally:
        root.handlers[:] = handlers
        root.setLevel(levels)
    written = stream.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert TOKEN[:8] not in written
    assert "opensesame" not in written
    assert "me:x" not in written
    assert written.count("[hidden]") >= 4
    assert "udc80" in written
    if style == "json":
        assert [json.loads(line)["level"] for line in written.splitlines()] == ["debug", "error"]


@pytest.mark.slow
def test_what_is_remembered_of_a_registrys_redirects_is_a_small_part_of_a_pull() -> None:
    """Signatures have no character in common, and there may be any number of pulls at a time."""
    known = redaction._Known()
    tracemalloc.start()
    for number in range(20_000):
        known.add(hashlib.sha256(str(number).encode()).hexdigest())
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(known.grams) > 100_000
    assert taken < 40 << 20


@pytest.mark.slow
def test_secrets_without_end_take_bounded_time_and_memory() -> None:
    """A registry that redirects chooses them: each was copied with all those before it, and kept."""
    known = redaction._Known()
    started = time.process_time()
    for number in range(40_000):
        known.add(f"{number:032x}")
    assert time.process_time() - started < 5
    assert sum(map(len, known._seen)) + sum(map(len, known.grams)) < 10 << 20
    # What came first is recognized whatever comes after it.
    assert {f"{0:032x}"[:8], f"{1:032x}"[-8:]} <= set(known.grams)
