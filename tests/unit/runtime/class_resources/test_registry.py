"""The registry with types of the test's own: who is put where, what is undone, what a reload does."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from podkeep.base.errors import FailedPrecondition, InvalidArgument, KernelCallError
from podkeep.kernel.process import procfs
from podkeep.runtime.class_resources.model import ClassResource, Level, Offer, Target, problem
from podkeep.runtime.class_resources.registry import ClassResources


@dataclass
class Noted(ClassResource):
    """A type that only notes who is where; ``refused`` are classes that it does not give to anybody.

    ``log`` is what was done, in order; shelves may share one.
    """

    name: str = "shelf"
    levels: Mapping[Level, tuple[str, ...]] = field(default_factory=lambda: {Level.CONTAINER: ("bronze", "gold")})
    immutable: bool = False
    refused: set[str] = field(default_factory=set)
    active: bool = False
    where: dict[str, str] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    cannot: str = ""
    """Why it cannot be activated."""
    version: int = 1

    def offers(self) -> Mapping[Level, Offer]:
        return {level: Offer(classes=names, immutable=self.immutable) for level, names in self.levels.items()}

    def why_not(self, level: Level) -> str:
        return "" if level in self.levels else "the shelf is not that high"

    def check(self, _level: Level, class_name: str) -> None:
        if class_name == "closed":
            raise FailedPrecondition(problem(self.name, "closed today"))

    def edit(self, class_name: str, config: dict[str, Any]) -> dict[str, Any]:
        return {**config, self.name: class_name}

    def put(self, target: Target, class_name: str, previous: str | None) -> None:
        if class_name in self.refused:
            raise KernelCallError("write(shelf)", 22)
        self.log.append(f"{self.name}{self.version} apply {target.id} {previous}->{class_name}")
        self.where[target.id] = class_name

    def verify(self, target: Target, class_name: str) -> None:
        if self.where.get(target.id) != class_name:
            raise FailedPrecondition(problem(self.name, f"{target.id} is in {self.where.get(target.id)}"))

    def release(self, target: Target, class_name: str) -> None:
        if class_name in self.refused:
            raise KernelCallError("write(shelf)", 22)
        self.log.append(f"{self.name}{self.version} release {target.id} {class_name}")
        self.where.pop(target.id, None)

    def activate(self, in_use: Collection[str], *, previous: ClassResource | None) -> None:
        if self.cannot:
            raise FailedPrecondition(problem(self.name, self.cannot))
        self.log.append(f"{self.name}{self.version} activate {sorted(in_use)}")
        self.active = True
        if isinstance(previous, Noted):
            self.where, previous.active = previous.where, False

    def deactivate(self) -> None:
        self.log.append(f"{self.name}{self.version} deactivate")
        self.active = False

    def describe(self) -> dict[str, Any]:
        return {"version": self.version}


CONTAINER = Target(level=Level.CONTAINER, id="c1", name="ns/web/main", cgroup="/none")
POD = Target(level=Level.POD, id="p1", name="ns/web", cgroup="/none")
BOTH = {Level.CONTAINER: ("bronze", "gold"), Level.POD: ("wide",)}


@pytest.mark.requirement("Q5")
def test_a_request_for_what_is_not_there_names_type_and_class_and_what_is() -> None:
    classes = ClassResources([Noted()], disabled={"rdt": "RDT is disabled: no rdt_config"})
    cases: list[tuple[Level, dict[str, str], type[Exception], str]] = [
        (
            Level.CONTAINER,
            {"foo": "bar"},
            InvalidArgument,
            "resource foo: this node has no such type.*it has: shelf",
        ),
        (
            Level.CONTAINER,
            {"shelf": "nosuch"},
            InvalidArgument,
            "resource shelf: no class 'nosuch'.*bronze, gold",
        ),
        (Level.CONTAINER, {"shelf": ""}, InvalidArgument, "class resource shelf: no class ''"),
        (Level.POD, {"shelf": "gold"}, InvalidArgument, "class resource shelf: the shelf is not that high.*containers"),
        (Level.CONTAINER, {"rdt": "gold"}, FailedPrecondition, "class resource rdt: RDT is disabled: no rdt_config"),
    ]
    for level, asked, kind, text in cases:
        with pytest.raises(kind, match=text):
            classes.catalog.resolve(level, asked)


def test_a_type_that_offers_nothing_now_says_why() -> None:
    classes = ClassResources([Noted(levels={})])
    with pytest.raises(FailedPrecondition, match="class resource shelf: the shelf is not that high"):
        classes.catalog.resolve(Level.CONTAINER, {"shelf": "gold"})
    assert classes.catalog.offers(Level.CONTAINER) == ()
    assert classes.catalog.describe()["shelf"]["notOffered"] == dict.fromkeys(
        ("pod", "container"), "the shelf is not that high"
    )


def test_a_class_that_cannot_be_given_now() -> None:
    classes = ClassResources([Noted(levels={Level.CONTAINER: ("closed", "gold")})])
    with pytest.raises(FailedPrecondition, match="closed today"):
        classes.catalog.resolve(Level.CONTAINER, {"shelf": "closed"})


@pytest.mark.requirement("Q79", "Q80")
def test_the_default_is_what_the_node_says_and_to_ask_for_nothing_is_something_else() -> None:
    classes = ClassResources([Noted(levels=BOTH), Noted("other")], {"shelf": "gold"})
    assert classes.catalog.resolve(Level.CONTAINER, {"shelf": "default"}) == {"shelf": "gold"}
    assert classes.catalog.resolve(Level.CONTAINER, {}) == {}
    for level, name in ((Level.CONTAINER, "other"), (Level.POD, "shelf")):
        with pytest.raises(InvalidArgument, match=f"resource {name}: this node has no default class for {level}s"):
            classes.catalog.resolve(level, {name: "default"})
    offered = {item.name: item.default for item in classes.catalog.offers(Level.CONTAINER)}
    assert offered == {"other": "", "shelf": "gold"}


@pytest.mark.requirement("Q3")
def test_the_levels_are_independent_sets() -> None:
    shelf = Noted(levels=BOTH)
    classes = ClassResources([shelf])
    assert [(item.name, item.offer.classes) for item in classes.catalog.offers(Level.POD)] == [("shelf", ("wide",))]
    classes.apply(POD, classes.catalog.resolve(Level.POD, {"shelf": "wide"}))
    assert shelf.where == {"p1": "wide"}
    with pytest.raises(InvalidArgument):
        classes.catalog.resolve(Level.CONTAINER, {"shelf": "wide"})


@pytest.mark.requirement("Q1")
def test_any_number_may_be_in_one_class() -> None:
    shelf = Noted()
    classes = ClassResources([shelf])
    for number in range(50):
        target = Target(level=Level.CONTAINER, id=f"c{number}", name="x", cgroup="/none")
        classes.apply(target, classes.catalog.resolve(Level.CONTAINER, {"shelf": "gold"}))
    assert set(shelf.where.values()) == {"gold"}
    assert len(classes.users()) == 50


def test_all_types_or_none() -> None:
    log: list[str] = []
    first, second = Noted("a", log=log), Noted("b", log=log, refused={"gold"})
    classes = ClassResources([second, first])
    with pytest.raises(KernelCallError):
        classes.apply(CONTAINER, {"a": "gold", "b": "gold"})
    assert (first.where, second.where, classes.assignments()) == ({}, {}, ())
    assert log == ["a1 apply c1 None->gold", "a1 release c1 gold"]


@pytest.mark.requirement("Q9")
def test_a_change_is_all_or_nothing_and_leaves_other_types_alone() -> None:
    log: list[str] = []
    shelves = [Noted(name, log=log) for name in ("a", "b", "c")]
    classes = ClassResources(shelves)
    held = {"a": "bronze", "c": "bronze"}
    classes.apply(CONTAINER, held)
    shelves[1].refused = {"gold"}
    log.clear()
    with pytest.raises(KernelCallError):
        classes.change(CONTAINER, held, {"a": "gold", "b": "gold"})
    assert [shelf.where.get("c1") for shelf in shelves] == ["bronze", None, "bronze"]
    assert log == ["a1 apply c1 bronze->gold", "a1 apply c1 gold->bronze"]
    assert classes.assignments()[0].classes == held
    shelves[1].refused = set()
    classes.change(CONTAINER, held, {"a": "gold", "b": "gold"})
    assert classes.assignments()[0].classes == {"a": "gold", "b": "gold", "c": "bronze"}
    shelves[0].refused = {"bronze"}
    shelves[2].refused = {"gold"}
    with pytest.raises(KernelCallError):
        classes.change(CONTAINER, classes.assignments()[0].classes, {"b": "bronze", "c": "gold"})
    assert shelves[1].where["c1"] == "gold"


class Half(Noted):
    """A type that puts what it is given into a class that it refuses before it says so."""

    def put(self, target: Target, class_name: str, previous: str | None) -> None:
        refused, self.refused = self.refused, set()
        super().put(target, class_name, previous)
        self.refused = refused
        super().put(target, class_name, previous)


@pytest.mark.requirement("Q9")
def test_half_of_what_a_type_did_is_taken_back(caplog: pytest.LogCaptureFixture) -> None:
    shelf = Half(refused={"gold"})
    classes = ClassResources([shelf])
    classes.apply(CONTAINER, {"shelf": "bronze"})
    with pytest.raises(KernelCallError, match=r"^class resource shelf: write"):
        classes.change(CONTAINER, {"shelf": "bronze"}, {"shelf": "gold"})
    assert shelf.where == {"c1": "bronze"}
    assert classes.assignments()[0].classes == {"shelf": "bronze"}
    shelf.refused = {"bronze", "gold"}
    with pytest.raises(KernelCallError):
        shelf.apply(CONTAINER, "gold", previous="bronze")
    assert "could not put ns/web/main back into class bronze of shelf: " in caplog.text


def test_what_a_failed_change_gave_for_the_first_time_is_released() -> None:
    first, second = Noted("a"), Noted("b", refused={"gold"})
    classes = ClassResources([first, second])
    with pytest.raises(KernelCallError):
        classes.change(CONTAINER, {}, {"a": "gold", "b": "gold"})
    assert first.where == {}


@pytest.mark.requirement("Q13")
def test_an_immutable_type_keeps_its_class() -> None:
    shelf = Noted(immutable=True)
    classes = ClassResources([shelf, Noted("other")])
    classes.apply(CONTAINER, {"shelf": "gold"})
    with pytest.raises(InvalidArgument, match="shelf: the class of a container is immutable, it has 'gold'"):
        classes.change(CONTAINER, {"shelf": "gold"}, {"other": "gold", "shelf": "bronze"})
    assert shelf.where == {"c1": "gold"}
    with pytest.raises(InvalidArgument, match="immutable, it has none"):
        classes.catalog.check_change(Level.CONTAINER, {}, {"shelf": "gold"})
    classes.change(CONTAINER, {"shelf": "gold"}, {"shelf": "gold", "other": "gold"})


def test_release_gives_every_type_its_turn_and_can_be_repeated(caplog: pytest.LogCaptureFixture) -> None:
    log: list[str] = []
    shelves = [Noted(name, log=log) for name in ("a", "b")]
    classes = ClassResources(shelves)
    held = {"a": "gold", "b": "gold", "gone": "gold"}
    classes.apply(CONTAINER, {"a": "gold", "b": "gold"})
    shelves[0].refused = {"gold"}
    with pytest.raises(KernelCallError):
        classes.release(CONTAINER, held)
    assert (shelves[1].where, classes.assignments()) == ({}, ())
    shelves[0].refused = set()
    classes.release(CONTAINER, held)
    classes.release(CONTAINER, held)
    assert shelves[0].where == {}
    assert "keeps its class of gone: the type is no longer configured" in caplog.text


def test_verify_says_what_is_not_in_force() -> None:
    shelf = Noted()
    classes = ClassResources([shelf])
    classes.apply(CONTAINER, {"shelf": "gold"})
    classes.verify(CONTAINER, {"shelf": "gold"})
    shelf.where["c1"] = "bronze"
    with pytest.raises(FailedPrecondition, match="c1 is in bronze"):
        classes.verify(CONTAINER, {"shelf": "gold"})


def test_the_configuration_of_a_container_and_of_commands_in_it() -> None:
    classes = ClassResources([Noted("a"), Noted("b")])
    config = {"process": {}}
    assert classes.edit({"a": "gold", "b": "bronze"}, config) == {"process": {}, "a": "gold", "b": "bronze"}
    assert config == {"process": {}}
    with pytest.raises(FailedPrecondition, match="class resource a: class 'silver' is not configured any more"):
        classes.edit({"a": "silver"}, config)
    edited, enter = classes.command(CONTAINER, {"a": "gold", "b": "silver", "gone": "gold"}, config)
    assert (edited, enter) == ({"process": {}, "a": "gold"}, None)


def test_an_unfinished_change_from_a_class_that_is_gone_is_finished() -> None:
    shelf = Noted(refused={"bronze"})
    classes = ClassResources([shelf])
    assert classes.restore(CONTAINER, {"shelf": "silver"}, {"shelf": "gold"}) == {"shelf": "gold"}
    assert shelf.where == {"c1": "gold"}
    assert [item.classes for item in classes.assignments()] == [{"shelf": "gold"}]
    with pytest.raises(KernelCallError):
        classes.restore(CONTAINER, {"shelf": "silver"}, {"shelf": "bronze"})
    assert [item.classes for item in classes.assignments()] == [{"shelf": "silver"}]


@pytest.mark.requirement("Q16")
def test_what_lived_on_is_put_back_into_what_its_record_says() -> None:
    shelf = Noted()
    classes = ClassResources([shelf, Noted("other")])
    classes.start([{"shelf": "gold"}])
    assert shelf.log == ["shelf1 activate ['gold']"]
    shelf.where["c1"] = "gold"
    classes.restore(CONTAINER, {"shelf": "gold"}, {})
    assert shelf.log[1:] == []
    shelf.where["c1"] = "bronze"
    classes.restore(CONTAINER, {"shelf": "gold"}, {})
    assert shelf.where["c1"] == "gold"


@pytest.mark.requirement("Q9")
def test_a_change_that_nobody_finished_is_taken_back() -> None:
    log: list[str] = []
    shelf, other = Noted("a", log=log), Noted("b", log=log)
    classes = ClassResources([shelf, other])
    # Also where the former class reads as if it were in force: the change may have come to half of it.
    shelf.where["c1"], other.where["c1"] = "bronze", "gold"
    classes.restore(CONTAINER, {"a": "bronze"}, {"a": "gold", "b": "gold"})
    assert log == ["a1 apply c1 gold->bronze", "b1 release c1 gold"]
    assert (shelf.where, other.where) == ({"c1": "bronze"}, {})


@pytest.mark.requirement("Q33")
def test_what_runs_in_a_class_that_is_gone_is_left_alone() -> None:
    shelf = Noted()
    classes = ClassResources([shelf])
    classes.start([{"shelf": "silver"}])
    shelf.where["c1"] = "silver"
    classes.restore(CONTAINER, {"shelf": "silver", "gone": "x"}, {})
    assert shelf.where == {"c1": "silver"}
    # And it keeps no reload from being carried out.
    classes.replace(ClassResources([Noted(version=2)]))
    classes.release(CONTAINER, {"shelf": "silver", "gone": "x"})


def test_one_type_that_fails_keeps_no_other_from_being_restored() -> None:
    first, second = Noted("a", refused={"gold"}), Noted("b")
    classes = ClassResources([first, second])
    with pytest.raises(KernelCallError):
        classes.restore(CONTAINER, {"a": "gold", "b": "gold"}, {})
    assert second.where == {"c1": "gold"}


def two(log: list[str], version: int, **fields: Any) -> list[ClassResource]:
    return [Noted(name, log=log, version=version, **fields) for name in ("a", "b")]


def test_a_reload_gives_those_in_a_class_its_new_meaning() -> None:
    log: list[str] = []
    classes = ClassResources(two(log, 1))
    classes.start()
    classes.apply(CONTAINER, {"a": "gold"})
    before, generation = classes.catalog.offers(Level.CONTAINER), classes.generation
    log.clear()
    levels = {Level.CONTAINER: ("gold", "new")}
    classes.replace(ClassResources([*two(log, 2, levels=levels), Noted("c", log=log)], {"a": "new"}))
    assert log == ["a2 activate ['gold']", "b2 activate []", "c1 activate []", "a2 apply c1 gold->gold"]
    assert classes.catalog.offers(Level.CONTAINER) != before
    assert classes.generation != generation
    assert classes.catalog.resolve(Level.CONTAINER, {"a": "default", "c": "gold"}) == {"a": "new", "c": "gold"}
    classes.release(CONTAINER, {"a": "gold"})
    classes.replace(ClassResources())
    assert log[-3:] == ["a2 deactivate", "b2 deactivate", "c1 deactivate"]
    assert classes.catalog.offers(Level.CONTAINER) == ()


def test_a_reload_that_takes_away_a_class_in_use_is_refused() -> None:
    log: list[str] = []
    classes = ClassResources(two(log, 1))
    classes.start()
    classes.apply(CONTAINER, {"a": "gold"})
    log.clear()
    for coming in (
        [Noted("b")],
        [Noted("a", levels={Level.CONTAINER: ("bronze",)})],
        [Noted("a", levels={})],
    ):
        with pytest.raises(FailedPrecondition, match="class 'gold' would be gone, and ns/web/main is in it"):
            classes.replace(ClassResources(coming))
    assert log == []
    assert classes.generation == 0
    classes.release(CONTAINER, {"a": "gold"})
    classes.replace(ClassResources([Noted("b")]))


def test_a_reload_that_fails_at_a_type_leaves_what_was_in_force() -> None:
    log: list[str] = []
    old = two(log, 1)
    classes = ClassResources(old)
    classes.start()
    classes.apply(CONTAINER, {"a": "gold"})
    log.clear()
    coming = [Noted("a", log=log, version=2), Noted("b", log=log, version=2, cannot="no room")]
    with pytest.raises(FailedPrecondition, match="no room"):
        classes.replace(ClassResources(coming))
    assert log == ["a2 activate ['gold']", "a1 activate ['gold']"]
    classes.change(CONTAINER, {"a": "gold"}, {"a": "bronze"})
    assert log[-1] == "a1 apply c1 gold->bronze"


def test_a_reload_that_fails_at_a_container_leaves_what_was_in_force() -> None:
    log: list[str] = []
    classes = ClassResources(two(log, 1))
    classes.start()
    classes.apply(POD_OF_TWO[0], {"a": "gold"})
    classes.apply(POD_OF_TWO[1], {"a": "bronze"})
    log.clear()
    coming = [Noted("a", log=log, version=2, refused={"bronze"}), Noted("new", log=log)]
    with pytest.raises(KernelCallError):
        classes.replace(ClassResources(coming))
    assert log == [
        "a2 activate ['bronze', 'gold']",
        "new1 activate []",
        "a2 apply c1 gold->gold",
        "new1 deactivate",
        "a1 activate ['bronze', 'gold']",
        "a1 apply c1 gold->gold",
        "a1 apply c2 bronze->bronze",
    ]
    assert [item.name for item in classes.catalog.offers(Level.CONTAINER)] == ["a", "b"]


POD_OF_TWO = [Target(level=Level.CONTAINER, id=f"c{number}", name="x", cgroup="/none") for number in (1, 2)]


def test_what_has_ended_does_not_hinder_a_reload() -> None:
    process = subprocess.Popen(["sleep", "1000"])
    target = Target(level=Level.CONTAINER, id="c1", name="x", cgroup="/none", process=procfs.identify(process.pid))
    classes = ClassResources([Noted()])
    classes.apply(target, {"shelf": "gold"})
    process.kill()
    process.wait()
    coming = Noted(levels={Level.CONTAINER: ("bronze",)}, version=2)
    classes.replace(ClassResources([coming]))
    assert coming.log == ["shelf2 activate []"]
    # It is released later, by the type that is there then.
    classes.release(target, {"shelf": "gold"})
    assert coming.log[1:] == ["shelf2 release c1 gold"]


def test_nothing_is_put_into_a_class_that_went_away_meanwhile() -> None:
    classes = ClassResources([Noted()])
    wanted = classes.catalog.resolve(Level.CONTAINER, {"shelf": "gold"})
    classes.replace(ClassResources([Noted(levels={Level.CONTAINER: ("bronze",)})]))
    with pytest.raises(FailedPrecondition, match="class 'gold' is not configured any more"):
        classes.apply(CONTAINER, wanted)
    assert classes.assignments() == ()


def together(*operations: Callable[[], None]) -> None:
    threads = [threading.Thread(target=operation) for operation in operations]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_many_threads_and_reloads_leave_nobody_behind() -> None:
    classes = ClassResources([Noted()])
    classes.start()
    errors: list[BaseException] = []

    def live(number: int) -> None:
        target = Target(level=Level.CONTAINER, id=f"c{number}", name="x", cgroup="/none")
        try:
            for _ in range(30):
                classes.apply(target, {"shelf": "gold"})
                classes.change(target, {"shelf": "gold"}, {"shelf": "bronze"})
                classes.verify(target, {"shelf": "bronze"})
                classes.release(target, {"shelf": "bronze"})
        except BaseException as error:  # noqa: BLE001 - shown by the test's thread
            errors.append(error)

    def reload() -> None:
        for version in range(30):
            classes.replace(ClassResources([Noted(version=version)]))

    together(reload, *(lambda number=number: live(number) for number in range(8)))  # type: ignore[misc]
    assert errors == []
    assert classes.assignments() == ()
    assert classes.generation == 30
