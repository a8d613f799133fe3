"""Which mount namespace a daemon belongs in: the order of what names one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from podkeep.base.config import MountnsConfig
from podkeep.base.errors import FailedPrecondition, InvalidArgument
from podkeep.mountns.namespace_ref import DEFAULT_PIN, KUBENS_PIN, NamespaceRef, candidates, resolve

OWN = Path("/srv/mountns/mnt")


def decided(
    *pins: Path,
    configured: str = "",
    enabled: bool = True,
    environ: Mapping[str, str] | None = None,
    pin: Path | None = None,
    pid: int | None = None,
) -> NamespaceRef | None:
    """Return the decision where namespaces are pinned at ``pins``."""
    config = MountnsConfig(enabled=enabled, pin=configured)
    return resolve(config, environ=environ or {}, pin=pin, pid=pid, is_pinned=set(pins).__contains__)


def test_nothing_is_said_and_nothing_is_there() -> None:
    assert decided() == NamespaceRef(pin=DEFAULT_PIN, may_make=True, source="default")


def test_what_is_pinned_is_taken() -> None:
    assert decided(DEFAULT_PIN) == NamespaceRef(pin=DEFAULT_PIN, may_make=True, source="default")
    assert decided(KUBENS_PIN) == NamespaceRef(pin=KUBENS_PIN, may_make=False, source="kubens")


def test_two_that_are_pinned_are_ambiguous() -> None:
    with pytest.raises(FailedPrecondition, match="daemons could end up in different ones") as caught:
        decided(KUBENS_PIN, DEFAULT_PIN)
    assert "mountns.pin" in caught.value.hint
    assert str(KUBENS_PIN) in caught.value.message
    assert str(DEFAULT_PIN) in caught.value.message
    for chosen in (KUBENS_PIN, DEFAULT_PIN):
        found = decided(KUBENS_PIN, DEFAULT_PIN, configured=str(chosen))
        assert found is not None
        assert (found.pin, found.may_make) == (chosen, chosen == DEFAULT_PIN)


@pytest.mark.parametrize("pinned", [(), (OWN,), (KUBENS_PIN, DEFAULT_PIN)])
def test_each_source_goes_before_the_next(pinned: tuple[Path, ...]) -> None:
    environ = {"KUBENSMNT": "/run/env/mnt"}
    configured = str(OWN)
    assert decided(*pinned, configured=configured) == NamespaceRef(pin=OWN, may_make=True, source="mountns.pin")
    assert decided(*pinned, configured=configured, environ=environ) == NamespaceRef(
        pin=Path("/run/env/mnt"), may_make=False, source="KUBENSMNT"
    )
    given = Path("/run/given/mnt")
    assert decided(*pinned, configured=configured, environ=environ, pin=given) == NamespaceRef(
        pin=given, may_make=False, source="--mount-namespace"
    )
    assert decided(*pinned, configured=configured, environ=environ, pid=7) == NamespaceRef(
        pid=7, may_make=False, source="--mount-namespace-pid"
    )


def test_an_empty_variable_says_nothing() -> None:
    assert decided(environ={"KUBENSMNT": ""}) == decided()


def test_the_namespace_of_kubens_is_never_made() -> None:
    assert decided(configured=str(KUBENS_PIN)) == NamespaceRef(pin=KUBENS_PIN, may_make=False, source="mountns.pin")


@pytest.mark.requirement("M16")
def test_one_switch_turns_it_off() -> None:
    assert decided(KUBENS_PIN, DEFAULT_PIN, enabled=False) is None
    everything = {"configured": str(OWN), "environ": {"KUBENSMNT": "/run/env/mnt"}}
    assert decided(enabled=False, pin=OWN, **everything) is None  # type: ignore[arg-type]
    assert decided(enabled=False, pid=7, **everything) is None  # type: ignore[arg-type]


def test_what_is_no_place() -> None:
    with pytest.raises(InvalidArgument, match="two namespaces"):
        decided(pin=OWN, pid=7)
    with pytest.raises(InvalidArgument, match="is no process ID"):
        decided(pid=0)
    with pytest.raises(InvalidArgument, match="--mount-namespace: 'mnt' is not an absolute path"):
        decided(pin=Path("mnt"))
    with pytest.raises(InvalidArgument, match="KUBENSMNT: 'mnt' is not an absolute path"):
        decided(environ={"KUBENSMNT": "mnt"})


def test_where_namespaces_may_be() -> None:
    assert candidates(MountnsConfig()) == (KUBENS_PIN, DEFAULT_PIN)
    assert candidates(MountnsConfig(pin=str(OWN))) == (OWN, KUBENS_PIN, DEFAULT_PIN)
    assert candidates(MountnsConfig(pin=str(KUBENS_PIN))) == (KUBENS_PIN, DEFAULT_PIN)
