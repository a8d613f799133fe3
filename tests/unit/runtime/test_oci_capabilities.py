"""Capabilities: what is added, dropped and never given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeep.base.errors import InvalidArgument
from podkeep.kernel.process import procfs
from podkeep.runtime.model.records import Security
from podkeep.runtime.oci.capabilities import DEFAULT, KNOWN, container_set, parse

names = st.sampled_from(sorted(KNOWN))
requests = st.lists(names | st.sampled_from(["ALL", "CAP_ALL", "all"]) | names.map(lambda name: name[4:].lower()))


def test_the_kernels_names_are_known() -> None:
    assert frozenset(procfs.CAPABILITIES) == KNOWN
    assert DEFAULT < KNOWN


@pytest.mark.parametrize("name", ["NET_ADMIN", "CAP_NET_ADMIN", "net_admin", "cap_net_admin"])
def test_a_name_in_any_spelling(name: str) -> None:
    assert parse([name]) == {"CAP_NET_ADMIN"}


@pytest.mark.parametrize("name", ["", "CAP_", "NET-ADMIN", "CAP_CAP_KILL", "EVERYTHING", "KILL\n"])
def test_what_is_no_capability(name: str) -> None:
    with pytest.raises(InvalidArgument, match="unknown capability"):
        parse([name])


@pytest.mark.parametrize(
    ("add", "drop", "expected"),
    [
        ((), (), DEFAULT),
        (("NET_ADMIN",), (), DEFAULT | {"CAP_NET_ADMIN"}),
        ((), ("KILL",), DEFAULT - {"CAP_KILL"}),
        ((), ("ALL",), frozenset()),
        (("KILL",), ("ALL",), {"CAP_KILL"}),
        (("ALL",), (), KNOWN),
        (("ALL",), ("KILL",), KNOWN - {"CAP_KILL"}),
        (("ALL",), ("ALL",), KNOWN),
        (("KILL",), ("KILL",), DEFAULT - {"CAP_KILL"}),
        ((), ("SYS_ADMIN",), DEFAULT),
    ],
)
def test_adding_and_dropping(add: tuple[str, ...], drop: tuple[str, ...], expected: frozenset[str]) -> None:
    assert container_set(Security(add_capabilities=add, drop_capabilities=drop), KNOWN) == expected


def test_a_privileged_container_gets_what_there_is() -> None:
    held = KNOWN - {"CAP_SYS_RESOURCE"}
    assert container_set(Security(privileged=True, drop_capabilities=("ALL",)), held) == held


def test_an_addition_that_the_runtime_does_not_hold_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgument, match="CAP_SYS_RESOURCE"):
        container_set(Security(add_capabilities=("SYS_RESOURCE", "KILL")), KNOWN - {"CAP_SYS_RESOURCE"})


@given(add=requests, drop=requests, held=st.frozensets(names))
@pytest.mark.slow
def test_nothing_that_is_not_held_and_nothing_that_was_dropped(
    add: list[str], drop: list[str], held: frozenset[str]
) -> None:
    security = Security(add_capabilities=tuple(add), drop_capabilities=tuple(drop))
    added, dropped = parse(add) - {"ALL"}, parse(drop) - {"ALL"}
    try:
        result = container_set(security, held)
    except InvalidArgument:
        assert not added <= held
        return
    assert result <= held
    assert not result & dropped
    assert added - dropped <= result
    if "ALL" not in parse(add):
        assert result <= DEFAULT | added
