"""The first cases of a campaign against the API; ``make attack`` goes on."""

from __future__ import annotations

from pathlib import Path

from attack import api as attack
from support.api_daemon import ApiDaemon


def test_the_first_requests_of_a_campaign_find_nothing(tmp_path: Path, scratch_machine: None) -> None:
    with ApiDaemon(tmp_path) as api:
        report = attack.run(api, 12, range(300), None, print)
    assert report.lines()[-1] == "  0 kinds of findings", report.lines()
