"""The plugins ResourceQuota and ClassQuota over a real store."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from podkeep.api.feature_gates import CLASS_RESOURCES, FeatureGates
from podkeep.apiserver.admission import limits
from podkeep.apiserver.admission.chain import ORDER, chain
from podkeep.apiserver.admission.quota import usage as quota_usage
from podkeep.apiserver.admission.quota.class_quota import ClassQuota
from podkeep.apiserver.admission.quota.ledger import QuotaLedger
from podkeep.apiserver.admission.quota.resource_quota import ResourceQuota
from podkeep.apiserver.kinds.resources import Target
from podkeep.apiserver.kinds.served import Served
from podkeep.apiserver.meta.objects import Object
from podkeep.apiserver.meta.status import StatusError
from podkeep.apiserver.patch.values import copy
from podkeep.apiserver.registry.lister import StoreLister
from podkeep.apiserver.registry.registry import DeleteOptions, PatchType, Registry, Request
from podkeep.apiserver.storage import store as storage
from podkeep.apiserver.storage.store import Store

SERVED = Served()
ME = Request(field_manager="me")
NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
PLURALS = {"Pod": "pods", "ResourceQuota": "resourcequotas", "Service": "services", "Secret": "secrets"}


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


def at(plural: str, name: str = "", subresource: str = "") -> Target:
    found = SERVED.find("", "v1", plural)
    assert found is not None
    return Target(found, "default", name, subresource)


def pod(name: str, cpu: str | None = "1", **spec: Any) -> Object:
    requests = {"resources": {"requests": {"cpu": cpu}}} if cpu else {}
    container = {"name": "c", "image": "i", **requests}
    return {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}


def quota(name: str = "q", **spec: Any) -> Object:
    return {"metadata": {"name": name}, "spec": spec}


def all_used(ledger: QuotaLedger, name: str = "q") -> Mapping[str, Decimal]:
    while not ledger.count_some("default"):
        pass
    return ledger.used("default", name)


class Cluster:
    """A registry with both plugins."""

    def __init__(self, store: Store, clock: Clock, gates: FeatureGates | None = None) -> None:
        self.store, self.clock = store, clock
        self.lister = StoreLister(store)
        self.ledger = QuotaLedger(self.lister, clock)
        plugins = {"ResourceQuota": ResourceQuota(self.ledger, clock), "ClassQuota": ClassQuota(self.ledger, gates)}
        self.registry = Registry(store, chain(plugins), gates, now=clock)

    async def create(self, plural: str, value: Object, request: Request = ME) -> Object:
        return await self.registry.create(at(plural), copy(value), request)

    async def refusal(self, work: Awaitable[Any]) -> str:
        with pytest.raises(StatusError) as caught:
            await work
        assert caught.value.code == 403, caught.value.message
        return caught.value.message

    def used(self, name: str = "q") -> dict[str, str]:
        return {item: str(amount) for item, amount in all_used(self.ledger, name).items() if amount}

    def counted(self, name: str = "q") -> dict[str, str]:
        """Return what a ledger finds that begins now."""
        ledger = QuotaLedger(StoreLister(self.store), self.clock)
        ledger.quotas("default")
        return {item: str(amount) for item, amount in all_used(ledger, name).items() if amount}


def run(path: Path, steps: Callable[[Cluster], Awaitable[None]], gates: FeatureGates | None = None) -> None:
    async def within() -> None:
        async with Store(path / "db") as store:
            await steps(Cluster(store, Clock(), gates))

    asyncio.run(within())


def test_what_is_there_is_not_decoded_whole_for_a_new_quota(tmp_path: Path) -> None:
    """All objects that it counts were, twice: two seconds for 200 MiB of pods, again after each change of it."""
    whole: list[str] = []

    class Noted(StoreLister):
        def newest(self, resource: str, namespace: str, name: str) -> Mapping[str, Any] | None:
            whole.append(resource)
            return super().newest(resource, namespace, name)

        def list(self, resource: str, namespace: str = "") -> Iterator[Mapping[str, Any]]:
            whole.append(resource)
            return super().list(resource, namespace)

    async def steps(cluster: Cluster) -> None:
        await cluster.create("pods", pod("a", "2", overhead={"cpu": "1"}))
        await cluster.create("configmaps", {"metadata": {"name": "c"}})
        await cluster.create("services", {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}})
        await cluster.create(
            "resourcequotas", quota(hard={"requests.cpu": "9", "configmaps": "9", "services": "9", "count/pods": "9"})
        )
        ledger = QuotaLedger(Noted(cluster.store), cluster.clock)
        assert ledger.quotas("default")
        used = {item: str(amount) for item, amount in all_used(ledger).items() if amount}
        assert used == cluster.used()
        assert (used["requests.cpu"], used["configmaps"], used["services"]) == ("3", "1", "1")
        assert not set(whole) - {"resourcequotas"}

    run(tmp_path, steps)


def test_a_quota_counts_from_the_moment_it_is_there(tmp_path: Path) -> None:
    async def steps(cluster: Cluster) -> None:
        await cluster.create("pods", pod("a"))
        await cluster.create("resourcequotas", quota(hard={"pods": "2", "requests.cpu": "2500m"}))
        await cluster.create("pods", pod("b"))
        assert await cluster.refusal(cluster.create("pods", pod("c", "100m"))) == (
            'pods "c" is forbidden: exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2'
        )
        await cluster.registry.delete(at("pods", "a"), DeleteOptions(grace_period=0), ME)
        assert await cluster.refusal(cluster.create("pods", pod("c", "2"))) == (
            'pods "c" is forbidden: exceeded quota: q, requested: requests.cpu=2, used: requests.cpu=1, limited:'
            " requests.cpu=2500m"
        )
        await cluster.create("pods", pod("c", "1500m"))
        assert cluster.used() == cluster.counted()

    run(tmp_path, steps)


def test_writes_at_once_do_not_take_more_than_there_is(tmp_path: Path) -> None:
    async def steps(cluster: Cluster) -> None:
        await cluster.create("resourcequotas", quota(hard={"pods": "5", "count/secrets": "3"}))
        tried = Request(field_manager="me", dry_run=True)
        answers = await asyncio.gather(
            *(cluster.create("pods", pod(f"p{number}"), tried) for number in range(5)),
            *(cluster.create("pods", pod(f"p{number}")) for number in range(20)),
            *(cluster.create("secrets", {"metadata": {"name": f"s{number}"}}) for number in range(9)),
            return_exceptions=True,
        )
        assert sum(isinstance(answer, dict) for answer in answers) == 5 + 5 + 3
        assert (cluster.store.count("pods"), cluster.store.count("secrets")) == (5, 3)
        assert cluster.used() == cluster.counted()

    run(tmp_path, steps)


def test_what_could_not_be_written_is_not_charged(tmp_path: Path) -> None:
    """A file that grows past its limit is one of the ways in which a disk refuses."""

    async def steps(cluster: Cluster) -> None:
        await cluster.create("resourcequotas", quota(hard={"pods": "2"}))
        large = pod("large")
        large["metadata"]["annotations"] = {"a": "x" * 200_000}
        before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
        try:
            answers = await asyncio.gather(
                *(cluster.create("pods", large | {"metadata": large["metadata"] | {"name": name}}) for name in "abc"),
                return_exceptions=True,
            )
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))
        assert [answer.code for answer in answers if isinstance(answer, StatusError)] == [500, 500, 403]
        assert cluster.used() == {} == cluster.counted()
        for name in "ab":
            await cluster.create("pods", pod(name))
        assert cluster.used()["pods"] == "2"

    run(tmp_path, steps)


def test_a_pod_has_to_say_what_a_quota_limits(tmp_path: Path) -> None:
    async def steps(cluster: Cluster) -> None:
        await cluster.create("resourcequotas", quota(hard={"cpu": "2", "limits.memory": "1Gi"}))
        assert await cluster.refusal(cluster.create("pods", pod("a", None))) == (
            'pods "a" is forbidden: failed quota: q: must specify cpu for: c; limits.memory for: c'
        )

    run(tmp_path, steps)


def test_scopes_and_several_quotas(tmp_path: Path) -> None:
    async def steps(cluster: Cluster) -> None:
        await cluster.create("resourcequotas", quota("all", hard={"pods": "3"}))
        await cluster.create("resourcequotas", quota("idle", hard={"pods": "1"}, scopes=["BestEffort"]))
        await cluster.create("pods", pod("a", None))
        assert "exceeded quota: idle" in await cluster.refusal(cluster.create("pods", pod("b", None)))
        await cluster.create("pods", pod("b"))
        await cluster.create("pods", pod("c"))
        assert "exceeded quota: all" in await cluster.refusal(cluster.create("pods", pod("d")))
        assert (cluster.used("all")["pods"], cluster.used("idle")["pods"]) == ("3", "1")
        # A deadline moves a pod into the scope of another quota.
        await cluster.create("resourcequotas", quota("ending", hard={"pods": "0"}, scopes=["Terminating"]))
        deadline = {"spec": {"activeDeadlineSeconds": 60}}
        text = await cluster.refusal(cluster.registry.patch(at("pods", "b"), deadline, PatchType.MERGE, ME))
        assert text.endswith("exceeded quota: ending, requested: pods=1, used: pods=0, limited: pods=0")

    run(tmp_path, steps)


def test_a_quota_that_changes_or_goes(tmp_path: Path) -> None:
    async def steps(cluster: Cluster) -> None:
        await cluster.create("pods", pod("a"))
        await cluster.create("resourcequotas", quota(hard={"services": "1"}))
        await cluster.create("pods", pod("b"))
        patch = {"spec": {"hard": {"pods": "2"}}}
        target = at("resourcequotas", "q")
        await cluster.registry.patch(target, patch, PatchType.MERGE, ME)
        assert "used: pods=2" in await cluster.refusal(cluster.create("pods", pod("c")))
        assert cluster.used()["pods"] == "2"
        await cluster.registry.delete(target, DeleteOptions(), ME)
        await cluster.create("pods", pod("c"))
        assert cluster.ledger.quotas("default") == []

    run(tmp_path, steps)


def test_services_may_change_what_they_use(tmp_path: Path) -> None:
    async def steps(cluster: Cluster) -> None:
        await cluster.create("resourcequotas", quota(hard={"services.nodeports": "1"}))
        service = {
            "metadata": {"name": "s"},
            "spec": {"type": "NodePort", "ports": [{"name": "a", "port": 80, "nodePort": 30080}]},
        }
        await cluster.create("services", service)
        second = {"name": "b", "port": 81, "nodePort": 30081, "protocol": "TCP"}
        patch = [{"op": "add", "path": "/spec/ports/-", "value": second}]
        text = await cluster.refusal(cluster.registry.patch(at("services", "s"), patch, PatchType.JSON, ME))
        assert text.endswith(
            "exceeded quota: q, requested: services.nodeports=1, used: services.nodeports=1, limited:"
            " services.nodeports=1"
        )
        await cluster.registry.patch(at("services", "s"), {"metadata": {"labels": {"a": "b"}}}, PatchType.MERGE, ME)

    run(tmp_path, steps)


def test_pods_that_have_ended_or_should_have_are_not_charged(tmp_path: Path) -> None:
    async def steps(cluster: Cluster) -> None:
        await cluster.create("resourcequotas", quota(hard={"pods": "2", "count/pods": "3"}))
        for name in "ab":
            await cluster.create("pods", pod(name, nodeName="n"))
        await cluster.registry.delete(at("pods", "a"), DeleteOptions(grace_period=30), ME)
        assert "exceeded quota" in await cluster.refusal(cluster.create("pods", pod("c")))
        cluster.clock.now += timedelta(seconds=120)
        await cluster.create("pods", pod("c"))
        assert cluster.used() == cluster.counted()
        text = await cluster.refusal(cluster.create("pods", pod("d")))
        assert "requested: count/pods=1,pods=1, used: count/pods=3,pods=2" in text

    run(tmp_path, steps)


def test_pods_that_end_are_not_read_before_their_time_is_up(tmp_path: Path) -> None:
    """All of them were, whole, for each write that a quota counts: a hundred may take years to end, and half a second
    to be read."""
    read: list[str] = []

    class Noted(StoreLister):
        def newest(self, resource: str, namespace: str, name: str) -> Mapping[str, Any] | None:
            read.append(name)
            return super().newest(resource, namespace, name)

    async def steps(cluster: Cluster) -> None:
        await cluster.create("resourcequotas", quota(hard={"pods": "9", "requests.cpu": "9"}))
        for name, grace in (("a", 30), ("b", 1000)):
            await cluster.create("pods", pod(name, nodeName="n"))
            await cluster.registry.delete(at("pods", name), DeleteOptions(grace_period=grace), ME)
        ledger = QuotaLedger(Noted(cluster.store), cluster.clock)
        ledger.quotas("default")
        all_used(ledger)
        # The time of its end is that of its deletion and its grace period, to which the latter is added again.
        for seconds, cpu, ended in ((0, "2", []), (60, "2", []), (1, "1", ["a"]), (0, "1", [])):
            cluster.clock.now += timedelta(seconds=seconds)
            read.clear()
            assert str(all_used(ledger)["requests.cpu"]) == cpu
            assert read == ended

    run(tmp_path, steps)


def test_the_ledger_after_more_than_it_can_look_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "HISTORY_EVENTS", 2)

    async def steps(cluster: Cluster) -> None:
        await cluster.create("resourcequotas", quota(hard={"pods": "9"}))
        await cluster.create("pods", pod("a"))
        assert cluster.used()["pods"] == "1"
        registry = Registry(cluster.store)
        for number in range(6):
            await registry.create(at("pods"), pod(f"p{number}"), ME)
        cluster.ledger.quotas("default")
        assert cluster.used() == cluster.counted()
        assert cluster.used()["pods"] == "7"

    run(tmp_path, steps)


def test_all_plugins_over_one_store(tmp_path: Path) -> None:
    async def steps(cluster: Cluster) -> None:
        found = limits.plugins(cluster.lister, FeatureGates())
        registry = Registry(cluster.store, chain(found), now=cluster.clock)
        assert found.keys() <= set(ORDER)
        defaults = {"type": "Container", "default": {"cpu": "2"}}
        await cluster.create("limitranges", {"metadata": {"name": "l"}, "spec": {"limits": [defaults]}})
        await cluster.create("resourcequotas", quota(hard={"limits.cpu": "3"}))
        created = await registry.create(at("pods"), pod("a", None), ME)
        assert created["spec"]["priority"] == 0
        # What a limit range fills in is what a quota counts.
        assert (await cluster.refusal(registry.create(at("pods"), pod("b", None), ME))).endswith(
            "exceeded quota: q, requested: limits.cpu=2, used: limits.cpu=2, limited: limits.cpu=3"
        )

    run(tmp_path, steps)


# classes


def classy(
    name: str = "a", *, whole: dict[str, str] | None = None, annotations: dict[str, str] | None = None, **classes: str
) -> Object:
    value = pod(name)
    value["metadata"]["annotations"] = annotations or {}
    value["spec"]["containers"][0]["resources"]["classes"] = classes
    if whole:
        value["spec"]["resources"] = {"classes": whole}
    return value


def allow(**classes: list[str]) -> list[dict[str, Any]]:
    return [{"name": name, "classes": found} if found else {"name": name} for name, found in classes.items()]


BRONZE = quota("b", containerClassResources=allow(rdt=["bronze", "silver"], blockio=[]))
NO_GOLD = (
    'pods "a" is forbidden: exceeded class quota: b, requested: rdt=gold for container c, allowed classes of rdt:'
    " bronze,silver"
)
ANNOTATION = "rdt.resources.alpha.kubernetes.io/"


@pytest.mark.slow
@pytest.mark.requirement("Q70", "Q72", "Q73")
@pytest.mark.parametrize(
    ("quotas", "value", "expected"),
    [
        ([], classy(rdt="gold", whole={"x": "y"}), ""),
        ([quota(hard={"pods": "5"})], classy(rdt="gold"), ""),
        ([BRONZE], classy(), ""),
        ([BRONZE], classy(rdt="bronze"), ""),
        ([BRONZE], classy(rdt="gold"), NO_GOLD),
        ([BRONZE], classy(rdt="default"), NO_GOLD.replace("gold", "default")),
        ([BRONZE], classy(whole={"rdt": "gold"}), ""),
        (
            [BRONZE],
            classy(blockio="slow"),
            NO_GOLD.replace("rdt=gold", "blockio=slow").replace("of rdt: bronze,silver", "of blockio: none"),
        ),
        (
            [BRONZE],
            classy(**{"example.com/x": "y"}),
            NO_GOLD.replace("rdt=gold", "example.com/x=y").replace("of rdt: bronze,silver", "of example.com/x: none"),
        ),
        (
            [quota("p", podClassResources=allow(rdt=["bronze"]))],
            classy(whole={"rdt": "gold"}),
            'pods "a" is forbidden: exceeded class quota: p, requested: rdt=gold for the pod, allowed classes of rdt:'
            " bronze",
        ),
        ([quota("p", podClassResources=allow(rdt=["bronze"]))], classy(rdt="gold"), ""),
        ([BRONZE, quota("c", containerClassResources=allow(rdt=["bronze", "gold"]))], classy(rdt="bronze"), ""),
        ([BRONZE, quota("c", containerClassResources=allow(rdt=["bronze", "gold"]))], classy(rdt="gold"), NO_GOLD),
        (
            [BRONZE, quota("c", containerClassResources=allow(rdt=["bronze"]))],
            classy(rdt="silver"),
            NO_GOLD.replace("quota: b", "quota: c").replace("gold", "silver").replace("bronze,silver", "bronze"),
        ),
        ([BRONZE], classy(annotations={f"{ANNOTATION}default": "gold"}), NO_GOLD),
        ([BRONZE], classy(annotations={f"{ANNOTATION}container.c": "gold"}), NO_GOLD),
        ([BRONZE], classy(annotations={f"{ANNOTATION}container.c": "silver"}), ""),
        ([quota("s", scopes=["BestEffort"], **BRONZE["spec"])], classy(rdt="gold"), ""),
        (
            [quota("s", scopes=["NotBestEffort"], **BRONZE["spec"])],
            classy(rdt="gold"),
            NO_GOLD.replace("quota: b", "quota: s"),
        ),
        (
            [
                quota(
                    "s",
                    scopeSelector={
                        "matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["x"]}]
                    },
                    **BRONZE["spec"],
                )
            ],
            classy(rdt="gold"),
            "",
        ),
    ],
)
def test_classes_that_a_quota_allows(tmp_path: Path, quotas: list[Object], value: Object, expected: str) -> None:
    async def steps(cluster: Cluster) -> None:
        for item in quotas:
            await cluster.create("resourcequotas", item)
        if expected:
            assert await cluster.refusal(cluster.create("pods", value)) == expected
        else:
            await cluster.create("pods", value)

    run(tmp_path, steps)


@pytest.mark.requirement("Q72", "Q73")
def test_a_pod_keeps_its_classes_and_gets_no_others(tmp_path: Path) -> None:
    async def steps(cluster: Cluster) -> None:
        await cluster.create("pods", classy(rdt="gold"))
        await cluster.create("resourcequotas", BRONZE)
        target = at("pods", "a")
        await cluster.registry.patch(target, {"metadata": {"labels": {"a": "b"}}}, PatchType.MERGE, ME)
        status = {"status": {"phase": "Running"}}
        await cluster.registry.patch(target._replace(subresource="status"), status, PatchType.MERGE, ME)

        async def resize(name: str) -> Object:
            container = {"name": "c", "resources": {"classes": {"rdt": name}}}
            patch = {"spec": {"containers": [container]}}
            return await cluster.registry.patch(target._replace(subresource="resize"), patch, PatchType.STRATEGIC, ME)

        assert "requested: rdt=platinum" in await cluster.refusal(resize("platinum"))
        resized = await resize("silver")
        assert resized["spec"]["containers"][0]["resources"]["classes"] == {"rdt": "silver"}
        assert await cluster.refusal(resize("gold")) == NO_GOLD

    run(tmp_path, steps)


@pytest.mark.requirement("Q75")
def test_without_the_gate_classes_of_quotas_mean_nothing(tmp_path: Path) -> None:
    async def before(cluster: Cluster) -> None:
        await cluster.create("resourcequotas", BRONZE)

    async def after(cluster: Cluster) -> None:
        await cluster.create("pods", classy(annotations={f"{ANNOTATION}default": "gold"}))

    run(tmp_path, before)
    run(tmp_path, after, FeatureGates(given={CLASS_RESOURCES.name: False}))


def test_a_namespace_is_counted_while_others_have_their_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 pods of 900 containers took 2.5 s, in which nobody was answered; a namespace may have 30 times as many."""
    monkeypatch.setattr("podkeep.apiserver.admission.quota.ledger.PORTION_BYTES", 1)

    async def steps(cluster: Cluster) -> None:
        plain = Registry(cluster.store)
        for number in range(30):
            await plain.create(at("pods"), pod(f"p{number:02}"), ME)
        await cluster.create("resourcequotas", quota(hard={"pods": "32", "requests.cpu": "99"}))
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        watching = asyncio.create_task(others())
        # All of them wait for the same count, and no more are let in than have room.
        made = (cluster.create("pods", pod(f"n{number}")) for number in range(5))
        other = cluster.create("configmaps", {"metadata": {"name": "c"}})
        *ends, configmap = await asyncio.gather(*made, other, return_exceptions=True)
        watching.cancel()
        assert turns >= 30
        assert sum(isinstance(end, dict) for end in ends) == 2
        assert isinstance(configmap, dict)
        assert cluster.used() == cluster.counted()

    run(tmp_path, steps)


def test_a_write_does_not_wait_for_a_count_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who changes a quota again and again has the count begin anew each time."""
    monkeypatch.setattr("podkeep.apiserver.admission.quota.ledger.PORTION_BYTES", 1)
    monkeypatch.setattr("podkeep.apiserver.admission.quota.ledger.READY_S", 0.0)

    async def steps(cluster: Cluster) -> None:
        plain = Registry(cluster.store)
        for number in range(5):
            await plain.create(at("pods"), pod(f"p{number}"), ME)
        await cluster.create("resourcequotas", quota(hard={"pods": "99"}))
        with pytest.raises(StatusError) as caught:
            await cluster.create("pods", pod("new"))
        assert caught.value.code == 429

    run(tmp_path, steps)


def test_what_is_written_while_a_namespace_is_counted_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("podkeep.apiserver.admission.quota.ledger.PORTION_BYTES", 1)

    async def steps(cluster: Cluster) -> None:
        plain = Registry(cluster.store)
        for number in range(9):
            await plain.create(at("pods"), pod(f"p{number}"), ME)
        await cluster.create("resourcequotas", quota(hard={"pods": "99", "requests.cpu": "99"}))
        ledger = cluster.ledger
        assert not ledger.count_some("default")  # one of p0 to p8
        with pytest.raises(StatusError) as caught:
            ledger.used("default", "q")
        assert caught.value.code == 429
        now = DeleteOptions(grace_period=0)
        for number in (0, 8):
            await plain.delete(at("pods", f"p{number}"), now, ME)
        await plain.create(at("pods"), pod("new", "5"), ME)
        assert not ledger.count_some("default")
        # On their way to the disk: what is counted is what the next write finds.
        gone = asyncio.create_task(plain.delete(at("pods", "p1"), now, ME))
        more = asyncio.create_task(plain.create(at("pods"), pod("more", "7"), ME))
        await asyncio.sleep(0)
        assert len(cluster.lister.pending()) == 2
        assert all_used(ledger)["requests.cpu"] == 6 + 5 + 7
        await asyncio.gather(gone, more)
        assert cluster.used() == cluster.counted()
        # Another meaning of a quota has it begin again.
        assert ledger.count_some("default")
        await cluster.create("resourcequotas", quota("r", hard={"requests.cpu": "99"}))
        ledger.quotas("default")
        assert not ledger.count_some("default")
        assert cluster.used("r")["requests.cpu"] == "18"

    run(tmp_path, steps)


def test_a_namespace_has_no_quotas_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each object was held against all of them, and a pod's containers added up for each."""
    monkeypatch.setattr("podkeep.apiserver.admission.quota.resource_quota.MAX_QUOTAS", 3)

    async def steps(cluster: Cluster) -> None:
        made = (cluster.create("resourcequotas", quota(f"q{number}")) for number in range(6))
        ends = await asyncio.gather(*made, return_exceptions=True)
        refused = [end for end in ends if isinstance(end, StatusError)]
        assert len(refused) == 3
        assert refused[0].message.endswith(": namespace default may have 3 quotas; delete some first")
        await cluster.registry.delete(at("resourcequotas", "q0"), DeleteOptions(), ME)
        await cluster.create("resourcequotas", quota("again"))

    run(tmp_path, steps)


def test_what_a_pod_uses_is_added_up_once_for_all_quotas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    real = quota_usage.usage

    def counted(resource: str, value: Object, now: datetime) -> dict[str, Any]:
        calls.append(resource)
        return real(resource, value, now)

    async def steps(cluster: Cluster) -> None:
        for number in range(20):
            await cluster.create("resourcequotas", quota(f"q{number:02}", hard={"requests.cpu": "100"}))
        many = pod("many")
        many["spec"]["containers"] = [
            {"name": f"c{number}", "image": "i", "resources": {"requests": {"cpu": "1m"}}} for number in range(900)
        ]
        monkeypatch.setattr(quota_usage, "usage", counted)
        await cluster.create("pods", many)
        assert cluster.used("q19")["requests.cpu"] == cluster.used("q00")["requests.cpu"] == "0.900"
        assert calls.count("pods") == 2  # for the decision, and where it is charged
        monkeypatch.setattr("podkeep.apiserver.admission.refusal.MAX_COMPARISONS", 10_000)
        message = await cluster.refusal(cluster.create("pods", {**many, "metadata": {"name": "more"}}))
        why = "the 20 quotas of namespace default are too many to hold 900 containers against them; delete some first"
        assert message.endswith(f": {why}")
        await cluster.create("pods", pod("one"))

    run(tmp_path, steps)


def test_a_scope_that_is_named_again_and_again_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr(quota_usage, "qos_class", lambda spec: calls.append(spec) or "BestEffort")
    best = {"scopeName": "BestEffort", "operator": "Exists"}
    named = {"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}
    other = {"scopeName": "PriorityClass", "operator": "NotIn", "values": ["low"]}
    selector = {"matchExpressions": [*[best] * 100, named, other]}
    value = pod("p", priorityClassName="high")
    assert quota_usage.in_scope(quota(scopeSelector=selector), "pods", value)
    assert len(calls) == 1
    value["spec"]["priorityClassName"] = "low"
    assert not quota_usage.in_scope(quota(scopeSelector=selector), "pods", value)


def test_what_is_written_is_counted_when_a_quota_is_asked_for_and_in_portions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of a group of writes was counted in the step that acknowledged it: 16 pods of 900 containers took 1 s."""
    calls: list[str] = []
    real = quota_usage.usage

    def counted(resource: str, value: Object, now: datetime) -> dict[str, Any]:
        calls.append(resource)
        return real(resource, value, now)

    async def steps(cluster: Cluster) -> None:
        plain = Registry(cluster.store)
        for number in range(9):
            await cluster.create("pods", pod(f"p{number}"))
        await cluster.create("resourcequotas", quota(hard={"pods": "10", "requests.cpu": "99"}))
        assert all_used(cluster.ledger)["pods"] == 9
        monkeypatch.setattr(quota_usage, "usage", counted)
        for number in range(9):
            status = {"status": {"phase": "Running"}}
            await plain.patch(at("pods", f"p{number}", "status"), status, PatchType.MERGE, ME)
        await plain.delete(at("pods", "p8"), DeleteOptions(grace_period=0), ME)
        assert not calls
        monkeypatch.setattr("podkeep.apiserver.admission.quota.ledger.PORTION_BYTES", 1)
        assert not cluster.ledger.count_some("default")
        assert len(calls) <= 1
        # Who writes waits for the rest of it, and is held against all.
        await cluster.create("pods", pod("a"))
        await plain.patch(at("pods", "p0", "status"), {"status": {"phase": "Failed"}}, PatchType.MERGE, ME)
        await cluster.create("pods", pod("b"))
        await cluster.create("pods", pod("c"))
        assert "exceeded quota: q" in await cluster.refusal(cluster.create("pods", pod("d")))
        assert cluster.used() == cluster.counted()

    run(tmp_path, steps)
