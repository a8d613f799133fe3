"""Cases of the standing campaign: made of seed and number alone, the same after they were written and read again."""

from __future__ import annotations

from pathlib import Path

import pytest

from attack import archives
from attack.calls import RPCS, Call, WireChange, expanded_text, generator
from attack.campaign import CAMPAIGNS
from attack.report import Report
from podkeep.cri.v1 import api_pb2 as api

NAMES = {"@container": "c1", "@dir": "/way"}


@pytest.mark.slow
@pytest.mark.parametrize("name", CAMPAIGNS)
def test_a_case_is_the_same_with_the_same_seed_and_after_it_was_written(name: str, tmp_path: Path) -> None:
    campaign, file = CAMPAIGNS[name], tmp_path / "case.json"
    texts = set()
    for number in range(30):
        case = campaign.make(generator(7, name, number))
        text = campaign.text(case, "nothing")
        assert campaign.text(campaign.make(generator(7, name, number)), "nothing") == text
        file.write_text(text)
        assert campaign.text(campaign.read(file), "nothing") == text
        texts.add(text)
    assert len(texts) == 30


@pytest.mark.slow
def test_a_changed_document_is_made_of_values_of_its_own() -> None:
    """Two changes of one document took the same value; with this seed it came to be in itself."""
    before = repr(archives._VALUES)
    for number in range(3000):
        archives._document(generator(20261123, "documents", number), {"a": [1], "b": {"c": {}}}, 1.0)
    assert repr(archives._VALUES) == before


@pytest.mark.slow
def test_every_rpc_is_attacked() -> None:
    cases = (CAMPAIGNS["requests"].make(generator(1, "requests", number)) for number in range(3000))
    assert {call.rpc for case in cases for call in case} == set(RPCS)


def test_placeholders_stand_for_what_is_there_now() -> None:
    request = api.ExecSyncRequest(container_id="@container", cmd=["@dir/x", "@repeat:3:ab", "@nothing"])
    sent = api.ExecSyncRequest.FromString(Call(rpc="ExecSync", request=request).data(NAMES))
    assert sent.container_id == "c1"
    assert sent.cmd[:2] == ["/way/x", "ababab"]
    assert expanded_text("@repeat:2:@dir/", NAMES) == "/way//way/"


@pytest.mark.parametrize(
    ("kind", "made"), [("set", b"aXYd"), ("insert", b"aXYbcd"), ("cut", b"a"), ("drop", b"ad"), ("twice", b"abcdbcd")]
)
def test_changes_of_the_wire(kind: str, made: bytes) -> None:
    assert WireChange(kind, 1, b"XY").apply(b"abcd") == made


def test_a_kind_of_finding_is_told_once_with_what_repeats_it() -> None:
    report = Report("requests", 7)
    assert report.find("requests/1", "Exec INTERNAL", "request 1234abcd of '/way/a' failed")
    assert not report.find("requests/2", "Exec INTERNAL", "request 9876fedc of '/way/b' failed")
    lines = "\n".join(report.lines())
    assert "FOUND 2 times: Exec INTERNAL" in lines
    assert "--seed 7 --only requests/1" in lines
