"""Which pod is evicted first, and what is said: tables of pods and what they use."""

from __future__ import annotations

from typing import Any

import pytest

from podkeep.agent.eviction import ranking
from podkeep.agent.eviction.ranking import Filesystems, Violation
from podkeep.agent.eviction.statistics import memory_available
from podkeep.agent.eviction.usage import ContainerUse, DiskUse, PodUse
from podkeep.agent.resources.thresholds import Observation, Threshold, Value
from podkeep.api.pod import Pod
from podkeep.kernel.process import totals
from support.pods import container, pod, resources

MI = 1 << 20


def memory(mebibytes: int) -> PodUse:
    return PodUse(memory=mebibytes * MI, containers={"main": ContainerUse(memory=mebibytes * MI)})


def disk(layer: int = 0, logs: int = 0, volume: int = 0, inodes: int = 0) -> PodUse:
    main = ContainerUse(layer=DiskUse(layer * MI, inodes), logs=DiskUse(logs * MI))
    return PodUse(containers={"main": main}, volumes={"data": DiskUse(volume * MI)})


def asking(name: str, requests: str = "", **spec: Any) -> Pod:
    return pod(container(requests=requests), name=name, **spec)


@pytest.mark.parametrize(
    ("signal", "pods", "uses", "expected"),
    [
        # Beyond the request goes before priority, priority before the amount.
        (
            "memory.available",
            [asking("below", "memory=100Mi"), asking("beyond", "memory=10Mi", priority=9), asking("much")],
            [memory(90), memory(20), memory(5)],
            ["much", "beyond", "below"],
        ),
        (
            "memory.available",
            [asking("a"), asking("b"), asking("c", "memory=30Mi")],
            [memory(5), memory(20), memory(45)],
            ["b", "c", "a"],
        ),
        ("memory.available", [asking("known"), asking("unknown", priority=5)], [memory(5), None], ["unknown", "known"]),
        (
            "pid.available",
            [asking("few"), asking("many"), asking("important", priority=1)],
            [PodUse(processes=2), PodUse(processes=9), PodUse(processes=90)],
            ["many", "few", "important"],
        ),
        (
            "nodefs.available",
            [asking("a", "ephemeral-storage=50Mi"), asking("b"), asking("c")],
            [disk(layer=40), disk(logs=5), disk(volume=9)],
            ["c", "b", "a"],
        ),
        ("imagefs.inodesFree", [asking("a"), asking("b")], [disk(inodes=5), disk(inodes=6)], ["b", "a"]),
    ],
)
def test_order(signal: str, pods: list[Pod], uses: list[PodUse | None], expected: list[str]) -> None:
    by_name = {one.metadata.name: use for one, use in zip(pods, uses, strict=True)}

    found = ranking.rank(signal, pods, lambda one: by_name[one.metadata.name], Filesystems())

    assert [one.metadata.name for one in found] == expected


@pytest.mark.parametrize(
    ("signal", "filesystems", "counted"),
    [
        ("nodefs.available", Filesystems(), 6),
        ("imagefs.available", Filesystems(), 6),
        ("nodefs.available", Filesystems(images_apart=True), 5),
        ("imagefs.available", Filesystems(images_apart=True), 1),
        ("containerfs.inodesFree", Filesystems(images_apart=True), 1),
        ("nodefs.available", Filesystems(images_apart=True, layers_apart=True), 6),
        ("imagefs.available", Filesystems(images_apart=True, layers_apart=True), 0),
        ("containerfs.available", Filesystems(images_apart=True, layers_apart=True), 6),
    ],
)
def test_what_counts_is_what_is_on_that_file_system(signal: str, filesystems: Filesystems, counted: int) -> None:
    use = disk(layer=1, logs=2, volume=3)

    assert use.disk(ranking.counted(signal, filesystems)).used_bytes == counted * MI


def test_memory_goes_before_everything_else() -> None:
    low = [
        Threshold(signal="nodefs.available", value=Value(text="1")),
        Threshold(signal="allocatableMemory.available", value=Value(text="1")),
    ]

    assert ranking.first(low) == low[1]
    assert ranking.first([]) is None


LOW = Threshold(signal="memory.available", value=Value(text="100Mi"))
SEEN = {"memory.available": Observation(available=50 * MI, capacity=1024 * MI)}


def test_the_message_names_containers_beyond_their_requests() -> None:
    given = pod(container(requests="memory=10Mi"), container("small", requests="memory=64Mi"))
    use = PodUse(
        memory=90 * MI, containers={"main": ContainerUse(memory=80 * MI), "small": ContainerUse(memory=10 * MI)}
    )

    text, annotations = ranking.message("memory", given, use, [LOW], SEEN)

    assert text == (
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. "
        "Container main was using 80Mi, request is 10Mi, has larger consumption of memory. "
    )
    assert annotations == {
        "offending_containers": "main",
        "offending_containers_usage": "80Mi",
        "starved_resource": "memory",
    }


def test_the_message_about_a_pod_with_resources_of_its_own() -> None:
    given = pod(container(), resources=resources("memory=10Mi"))

    text, annotations = ranking.message("memory", given, memory(20), [LOW], SEEN)

    assert "Pod web was using 20Mi, request is 10Mi, has larger consumption of memory. " in text
    assert "Container main was using 20Mi, request is 0, has larger consumption of memory. " in text
    assert annotations["offending_pod"] == "web"


def test_the_message_where_nothing_was_measured() -> None:
    assert ranking.message("pids", pod(), None, [], {}) == ("The node was low on resource: pids. ", {})


def test_the_message_about_a_disk() -> None:
    low = Threshold(signal="nodefs.available", value=Value(part=0.1))
    seen = {"nodefs.available": Observation(available=5 * MI, capacity=100 * MI)}

    text, _ = ranking.message("ephemeral-storage", pod(), disk(layer=2, logs=1), [low], seen)

    assert text == (
        "The node was low on resource: ephemeral-storage. Threshold quantity: 10Mi, available: 5Mi. "
        "Container main was using 3Mi, request is 0, has larger consumption of ephemeral-storage. "
    )


DATA = [{"name": "data", "emptyDir": {"sizeLimit": "4Mi"}}]


@pytest.mark.parametrize(
    ("given", "use", "filesystems", "expected"),
    [
        (pod(), disk(layer=1000), Filesystems(), None),
        (pod(volumes=DATA), disk(volume=4), Filesystems(), None),
        (
            pod(volumes=DATA),
            disk(volume=5),
            Filesystems(),
            Violation("emptydirfs.limit", 'Usage of EmptyDir volume "data" exceeds the limit "4Mi". '),
        ),
        # Who hides files where no walk goes has no limit that could be kept otherwise.
        (
            pod(volumes=DATA),
            PodUse(volumes={"data": DiskUse(0, hidden=True)}),
            Filesystems(),
            Violation(
                "emptydirfs.limit",
                'Usage of EmptyDir volume "data", which has the limit "4Mi", cannot be counted: there are too many '
                "files, or directories inside or beside each other. ",
            ),
        ),
        (
            pod(container(limits="ephemeral-storage=10Mi")),
            disk(layer=4, logs=4, volume=4),
            Filesystems(),
            Violation(
                "ephemeralpodfs.limit",
                "Pod ephemeral local storage usage exceeds the total limit of containers 10Mi. ",
            ),
        ),
        (
            pod(container(limits="ephemeral-storage=10Mi"), container("b", limits="ephemeral-storage=10Mi")),
            disk(layer=6, logs=6),
            Filesystems(),
            Violation(
                "ephemeralcontainerfs.limit", 'Container main exceeded its local ephemeral storage limit "10Mi". '
            ),
        ),
        # A layer that is on another file system is not the container's ephemeral storage.
        (
            pod(container(limits="ephemeral-storage=10Mi"), container("b", limits="ephemeral-storage=10Mi")),
            disk(layer=6, logs=6),
            Filesystems(images_apart=True),
            None,
        ),
    ],
)
def test_limits_of_local_storage(given: Pod, use: PodUse, filesystems: Filesystems, expected: Violation | None) -> None:
    assert ranking.violation(given, use, filesystems) == expected
    assert ranking.limits_storage(given) or expected is None


def test_memory_of_a_machine_is_what_is_free_and_inactive_page_cache() -> None:
    text = "MemTotal: 1000 kB\nMemFree: 100 kB\nInactive: 300 kB\nInactive(file): 200 kB\nHugePages_Total: 0\n"

    assert memory_available(totals.table(text)) == Observation(available=300 << 10, capacity=1000 << 10)
    assert memory_available({}) is None
