"""What is said of static pods that are left out, and of those that the API does not show."""

from __future__ import annotations

from podkeep.agent.daemon.static_problems import StaticProblems

BAD = StaticProblems(left_out={"/m/bad.yaml": "no pod"})
BOTH = StaticProblems(
    left_out={"/m/bad.yaml": "no pod"}, not_shown={"default/web-n": "forbidden", "default/a-n": "taken"}
)


def test_what_the_status_says() -> None:
    """The first problem in full, files first; all are counted, in the first line too."""
    assert (StaticProblems().status("ready"), StaticProblems().summary) == ("ready", "")
    assert BAD.status("ready") == "ready; static pod /m/bad.yaml is left out: no pod"
    assert BAD.summary == "1 static pod is left out"
    assert BOTH.status("ready") == "ready; static pod /m/bad.yaml is left out (and 2 more): no pod"
    assert BOTH.summary == "1 static pod is left out, 2 static pods are not shown in the API"


def test_each_problem_is_an_event_once() -> None:
    assert BAD.news(StaticProblems()) == [("InvalidStaticPod", "static pod /m/bad.yaml is left out: no pod")]
    assert BOTH.news(BAD) == [
        ("StaticPodNotShown", "static pod default/a-n is not shown in the API: taken"),
        ("StaticPodNotShown", "static pod default/web-n is not shown in the API: forbidden"),
    ]
    assert BAD.news(BOTH) == []
    worse = StaticProblems(left_out={"/m/bad.yaml": "no YAML"})
    assert worse.news(BAD) == [("InvalidStaticPod", "static pod /m/bad.yaml is left out: no YAML")]
