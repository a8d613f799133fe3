"""The client with a real API: requests, refusals, watches that are resumed, credentials that change."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from podkeep.agent.manager import status_manager
from podkeep.agent.manager.status_manager import StatusManager
from podkeep.agent.metrics import AgentMetrics
from podkeep.api import received
from podkeep.api.status import PodStatus
from podkeep.base.errors import FailedPrecondition, Unavailable
from podkeep.client import kubeconfig
from podkeep.client.client import Client, Patch
from podkeep.client.correlation import Reference
from podkeep.client.credentials import Credentials
from podkeep.client.errors import ApiError
from podkeep.client.recorder import Recorder
from podkeep.client.reflector import Reflector
from podkeep.client.resources import CONFIG_MAPS, EVENTS, NAMESPACES, NODES, PODS, SERVICE_ACCOUNTS
from podkeep.client.settings import ExecPlugin, Settings
from support import forked
from support.api_daemon import ApiDaemon
from support.processes import write_script
from support.waiting import TIMEOUT_S

MAP = {"metadata": {"name": "tea"}, "data": {"green": "3"}}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiDaemon]:
    with ApiDaemon(tmp_path_factory.mktemp("client")) as daemon:
        yield daemon


def run(settings: Settings, body: Callable[[Client], Awaitable[None]]) -> None:
    """Run a test with a client, which is closed after it."""

    async def main() -> None:
        client = Client(settings)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await body(client)
        finally:
            await client.close()

    asyncio.run(main())


def admin(api: ApiDaemon) -> Settings:
    return kubeconfig.load([api.kubeconfig])


def for_socket(api: ApiDaemon) -> Settings:
    return Settings(server=f"unix://{api.socket}")


def node(api: ApiDaemon, name: str = "n1") -> Settings:
    """Settings with the rights of a node."""
    path = api.base / f"{name}.conf"
    command = [sys.executable, "-m", "podkeep", "kubeconfig", "--root", str(api.root), "--file", str(path)]
    command += ["--user", f"system:node:{name}", "--group", "system:nodes", "--server", f"https://{api.address}"]
    forked.run(command, check=True, capture_output=True, env={**os.environ, "PODKEEP_CONFIG": os.devnull})
    return kubeconfig.load([path])


async def fresh(client: Client, name: str) -> str:
    """Make an empty namespace and return its name."""
    await client.create(NAMESPACES, {"metadata": {"name": name}})
    return name


class Followed:
    """What a reflector tells."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []
        self.news = asyncio.Event()

    def replaced(self, items: Sequence[Mapping[str, Any]]) -> None:
        self._tell("replaced", sorted(item["metadata"]["name"] for item in items))

    def changed(self, item: Mapping[str, Any]) -> None:
        self._tell("changed", (item["metadata"]["name"], item.get("data")))

    def deleted(self, item: Mapping[str, Any]) -> None:
        self._tell("deleted", item["metadata"]["name"])

    def _tell(self, what: str, value: Any) -> None:
        self.told.append((what, value))
        self.news.set()

    async def until(self, count: int) -> list[tuple[str, Any]]:
        """Return the first ``count`` things that were told."""
        while len(self.told) < count:
            self.news.clear()
            await self.news.wait()
        return self.told[:count]


@pytest.mark.parametrize("settings", [admin, for_socket])
def test_the_verbs(api: ApiDaemon, settings: Callable[[ApiDaemon], Settings]) -> None:
    async def body(client: Client) -> None:
        space = await fresh(client, f"verbs-{settings.__name__.replace('_', '-')}")
        made = await client.create(CONFIG_MAPS, MAP, space)
        assert made["data"] == {"green": "3"}
        with pytest.raises(ApiError) as refused:
            await client.create(CONFIG_MAPS, MAP, space)
        assert refused.value.already_exists
        assert not refused.value.conflict
        strategic = await client.patch(CONFIG_MAPS, "tea", {"data": {"black": "4"}}, space)
        assert strategic["data"] == {"green": "3", "black": "4"}
        removal = [{"op": "remove", "path": "/data/black"}]
        assert (await client.patch(CONFIG_MAPS, "tea", removal, space, kind=Patch.JSON))["data"] == {"green": "3"}
        merged = await client.patch(
            CONFIG_MAPS, "tea", {"data": {"green": None, "oolong": "5"}}, space, kind=Patch.MERGE
        )
        assert merged["data"] == {"oolong": "5"}
        applied = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"white": "9"}}
        query = {"fieldManager": "tester"}
        whole = await client.patch(CONFIG_MAPS, "tea", applied, space, kind=Patch.APPLY, query=query)
        assert whole["data"] == {"oolong": "5", "white": "9"}
        with pytest.raises(ApiError) as refused:
            await client.update(CONFIG_MAPS, made | {"data": {}})
        assert refused.value.conflict
        assert (await client.update(CONFIG_MAPS, whole | {"data": {"a": "b"}}))["data"] == {"a": "b"}
        with pytest.raises(ApiError) as refused:
            await client.delete(CONFIG_MAPS, "tea", space, uid="another")
        assert refused.value.conflict
        await client.delete(CONFIG_MAPS, "tea", space, uid=made["metadata"]["uid"], grace=0)
        with pytest.raises(ApiError) as refused:
            await client.get(CONFIG_MAPS, "tea", space)
        assert refused.value.not_found
        assert str(refused.value) == 'configmaps "tea" not found'

    run(settings(api), body)


def test_a_list_is_all_pages(api: ApiDaemon) -> None:
    async def body(client: Client) -> None:
        space = await fresh(client, "pages")
        for number in range(7):
            labels = {"odd": str(number % 2)}
            await client.create(CONFIG_MAPS, {"metadata": {"name": f"m{number}", "labels": labels}}, space)
        found = await client.list(CONFIG_MAPS, space, limit=2, labels="odd")
        assert [item["metadata"]["name"] for item in found["items"]] == [f"m{number}" for number in range(7)]
        assert not found["metadata"].get("continue")
        odd = await client.list(CONFIG_MAPS, space, labels="odd=1")
        assert len(odd["items"]) == 3
        one = await client.list(CONFIG_MAPS, space, fields="metadata.name=m4")
        assert [item["metadata"]["name"] for item in one["items"]] == ["m4"]

    run(admin(api), body)


def test_many_at_once(api: ApiDaemon) -> None:
    async def body(client: Client) -> None:
        space = await fresh(client, "many")
        names = [f"m{number}" for number in range(60)]
        await asyncio.gather(*(client.create(CONFIG_MAPS, {"metadata": {"name": name}}, space) for name in names))
        found = await asyncio.gather(*(client.get(CONFIG_MAPS, name, space) for name in names))
        assert [item["metadata"]["name"] for item in found] == names

    run(admin(api), body)


def test_a_watch_from_a_version(api: ApiDaemon) -> None:
    async def body(client: Client) -> None:
        space = await fresh(client, "watched")
        version = (await client.list(CONFIG_MAPS, space))["metadata"]["resourceVersion"]
        await client.create(CONFIG_MAPS, MAP, space)
        await client.patch(CONFIG_MAPS, "tea", {"data": {"green": "4"}}, space)
        await client.delete(CONFIG_MAPS, "tea", space)
        seen = []
        watch = client.watch(CONFIG_MAPS, space, fields="metadata.name=tea", version=version)
        async with aclosing(watch):
            async for event in watch:
                seen.append((event.type, event.object["data"]["green"]))
                if event.type == "DELETED":
                    break
        assert seen == [("ADDED", "3"), ("MODIFIED", "4"), ("DELETED", "4")]

    run(admin(api), body)


def test_an_old_version_is_gone(api: ApiDaemon) -> None:
    async def body(client: Client) -> None:
        # Later than anything there is: the server says so, and does not wait for ever.
        with pytest.raises(ApiError):
            async for _ in client.watch(CONFIG_MAPS, "default", version="no-version"):
                pass

    run(admin(api), body)


def test_a_reflector_goes_on_after_a_restart_of_the_server(tmp_path: Path) -> None:
    async def body(client: Client, daemon: ApiDaemon) -> None:
        followed = Followed()
        reflector = Reflector(client, CONFIG_MAPS, "default", fields="metadata.name=tea")
        task = asyncio.create_task(reflector.run(followed))
        assert await followed.until(1) == [("replaced", [])]
        await client.create(CONFIG_MAPS, MAP, "default")
        assert (await followed.until(2))[1:] == [("changed", ("tea", {"green": "3"}))]
        await asyncio.to_thread(daemon.stop)
        with pytest.raises(Unavailable):
            await client.get(CONFIG_MAPS, "tea", "default")
        await asyncio.to_thread(daemon.start)
        await client.patch(CONFIG_MAPS, "tea", {"data": {"green": "4"}}, "default")
        told = (await followed.until(3))[2]
        assert told in [("changed", ("tea", {"green": "4"})), ("replaced", ["tea"])]
        await client.delete(CONFIG_MAPS, "tea", "default")
        while ("deleted", "tea") not in followed.told and ("replaced", []) not in followed.told[1:]:
            await followed.until(len(followed.told) + 1)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert reflector.error is None

    with ApiDaemon(tmp_path) as daemon:
        run(for_socket(daemon), lambda client: body(client, daemon))


def test_a_renewed_client_goes_on(api: ApiDaemon) -> None:
    async def body(client: Client) -> None:
        space = await fresh(client, "renewed")
        followed = Followed()
        task = asyncio.create_task(Reflector(client, CONFIG_MAPS, space, fields="metadata.name=tea").run(followed))
        await followed.until(1)
        await client.create(CONFIG_MAPS, MAP, space)
        await followed.until(2)
        client.renew()
        await client.delete(CONFIG_MAPS, "tea", space)
        assert (await followed.until(3))[2] == ("deleted", "tea")
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    run(admin(api), body)


async def token(client: Client, name: str) -> str:
    await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": name}}, "default")
    made = await client.create(SERVICE_ACCOUNTS, {"spec": {}}, "default", name=name, subresource="token")
    return str(made["status"]["token"])


def test_a_token_file_is_read_again_when_it_is_refused(api: ApiDaemon, tmp_path: Path) -> None:
    path = tmp_path / "token"
    server = f"https://{api.address}"
    settings = Settings(server=server, authority=admin(api).authority, token_file=str(path))

    async def body(root: Client) -> None:
        path.write_text(await token(root, "filed"))
        client = Client(settings)
        # It may do nothing, but the server knows who it is.
        with pytest.raises(ApiError, match="system:serviceaccount:default:filed"):
            await client.list(NODES)
        await root.delete(SERVICE_ACCOUNTS, "filed", "default")
        path.write_text(await token(root, "filed-2"))
        with pytest.raises(ApiError, match="system:serviceaccount:default:filed-2"):
            await client.list(NODES)
        await client.close()

    run(admin(api), body)


def test_certificates_in_a_kubeconfig_that_was_replaced_are_taken(tmp_path: Path) -> None:
    """The API has another authority: what the client trusted, and what it was known by, is worth nothing any more."""
    with ApiDaemon(tmp_path / "api") as api:
        settings = admin(api)
        assert settings.authority.data, "it is in the file itself"

        async def body(client: Client) -> None:
            assert await client.list(NAMESPACES)
            await asyncio.to_thread(api.stop)
            for name in ("ca.crt", "ca.key"):
                (api.root / "pki" / name).unlink()
            await asyncio.to_thread(api.start)
            assert admin(api).authority != settings.authority
            assert await client.list(NAMESPACES)

        run(settings, body)


def test_a_kubeconfig_in_the_middle_of_a_change_changes_nothing(api: ApiDaemon, tmp_path: Path) -> None:
    path = tmp_path / "admin.conf"
    whole = api.kubeconfig.read_text()
    path.write_text(whole)
    before = kubeconfig.load([path])
    for text in (whole[: len(whole) // 2], "", whole.replace(f"https://{api.address}", "https://192.0.2.1:6443")):
        assert text != whole
        path.write_text(text)
        assert kubeconfig.renewed(before) == before
    path.unlink()
    assert kubeconfig.renewed(before) == before


def test_a_kubeconfig_that_ends_within_a_key_is_not_taken(api: ApiDaemon, tmp_path: Path) -> None:
    """Base64 that is cut off may be base64 of half a key: that of kubeadm is the last thing in its file."""
    path = tmp_path / "admin.conf"
    whole = yaml.safe_dump(yaml.safe_load(api.kubeconfig.read_text()), width=10_000).rstrip()
    assert whole.rpartition("\n")[2].startswith("    client-key-data: ")
    path.write_text(whole)

    async def work() -> None:
        credentials = Credentials(kubeconfig.load([path]))
        assert await credentials.context() is not None
        for lacking in range(1, 200):
            path.write_text(whole[:-lacking])
            assert await credentials.context() is not None

    asyncio.run(work())


def test_a_kubeconfig_whose_key_comes_later_is_taken_then(api: ApiDaemon, tmp_path: Path) -> None:
    """Its file may be there before that which it names: what a client had is of no use for long."""
    path, key = tmp_path / "admin.conf", tmp_path / "key.pem"
    path.write_bytes(api.kubeconfig.read_bytes())
    settings = kubeconfig.load([path])
    value = yaml.safe_load(path.read_text())
    (user,) = value["users"]
    del user["user"]["client-key-data"]
    user["user"]["client-key"] = str(key)

    async def work() -> None:
        credentials = Credentials(settings)
        before = await credentials.context()
        path.write_text(yaml.safe_dump(value))
        assert await credentials.context() is before
        key.write_bytes(settings.key.data)
        assert await credentials.context() is not before

    asyncio.run(work())


def test_credentials_of_a_program(api: ApiDaemon, tmp_path: Path) -> None:
    calls, answer, program = tmp_path / "calls", tmp_path / "answer", tmp_path / "plugin"
    write_script(program, f'#!/bin/sh\necho "$KUBERNETES_EXEC_INFO" >>{calls}\ncat {answer}\n')
    plugin = ExecPlugin(command=str(program), cluster={"server": f"https://{api.address}"})
    settings = Settings(server=f"https://{api.address}", authority=admin(api).authority, exec_plugin=plugin)

    def grant(text: str) -> None:
        value = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "status": {"token": text}}
        answer.write_text(json.dumps(value))

    async def body(root: Client) -> None:
        client = Client(settings)
        answer.write_text("{}")
        with pytest.raises(FailedPrecondition, match="exec credentials"):
            await client.list(NODES)
        calls.unlink()
        grant(await token(root, "execed"))
        for _ in range(3):
            with pytest.raises(ApiError, match="system:serviceaccount:default:execed"):
                await client.list(NODES)
        assert len(calls.read_text().splitlines()) == 1
        told = json.loads(calls.read_text())
        assert told["spec"] == {"interactive": False, "cluster": {"server": f"https://{api.address}"}}
        await client.close()

    run(admin(api), body)


def test_whoever_is_not_trusted_is_not_spoken_to(api: ApiDaemon) -> None:
    async def body(client: Client) -> None:
        with pytest.raises(Unavailable, match="certificate is not trusted"):
            await client.list(NODES)

    run(Settings(server=f"https://{api.address}"), body)


def test_events_are_written_and_counted(api: ApiDaemon) -> None:
    async def body(client: Client) -> None:
        space = await fresh(client, "events")
        recorder = Recorder(client, "kubelet", "n1")
        task = asyncio.create_task(recorder.run())
        pod = Reference(kind="Pod", namespace=space, name="web", uid="u")
        for _ in range(3):
            recorder.event(pod, "Warning", "BackOff", "Back-off restarting failed container")
        recorder.event(pod, "Normal", "Pulled", "x" * 20_000)
        await recorder.written(TIMEOUT_S)
        found = {item["reason"]: item for item in (await client.list(EVENTS, space))["items"]}
        assert found["BackOff"]["count"] == 3
        assert found["BackOff"]["source"] == {"component": "kubelet", "host": "n1"}
        assert found["BackOff"]["reportingComponent"] == "kubelet"
        assert len(found["Pulled"]["message"]) < 10_000
        # One that is gone is made again when it happens again.
        await client.delete(EVENTS, found["BackOff"]["metadata"]["name"], space)
        recorder.event(pod, "Warning", "BackOff", "Back-off restarting failed container")
        await recorder.written(TIMEOUT_S)
        again = await client.get(EVENTS, found["BackOff"]["metadata"]["name"], space)
        assert again["count"] == 4
        # What is refused is given up.
        recorder.event(Reference(kind="Pod", namespace="none-such", name="web"), "Normal", "Pulled", "m")
        await recorder.written(TIMEOUT_S)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    run(admin(api), body)


def test_statuses_that_are_refused_stop_no_others(api: ApiDaemon) -> None:
    """As many as there are writers, and one more that is good."""

    async def body(client: Client) -> None:
        namespace = await fresh(client, "refused")
        manager = StatusManager(client, AgentMetrics())
        writing = asyncio.create_task(manager.run())
        spec = {"containers": [{"name": "c", "image": "i"}], "automountServiceAccountToken": False}
        for number in range(status_manager.WRITERS + 1):
            made = await client.create(PODS, {"metadata": {"name": f"p{number}"}, "spec": spec}, namespace)
            pod, good = received.pod(made).pod, number == status_manager.WRITERS
            manager.known(pod, made["status"])
            manager.set(pod, PodStatus(phase="Running", pod_ip="10.0.0.1" if good else "no address"))
            await asyncio.sleep(0)
        name = f"p{status_manager.WRITERS}"
        while (await client.get(PODS, name, namespace))["status"]["phase"] != "Running":  # noqa: ASYNC110 - the API's
            await asyncio.sleep(0.1)
        assert (await client.get(PODS, "p0", namespace))["status"]["phase"] == "Pending"
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing

    run(for_socket(api), body)


class Picky(Followed):
    """A follower that cannot take one object."""

    refused = 0

    def changed(self, item: Mapping[str, Any]) -> None:
        if item["metadata"]["name"] == "bad" and not self.refused:
            self.refused += 1
            raise ValueError("cannot take it")
        super().changed(item)


def test_an_object_that_cannot_be_taken_does_not_end_the_following(api: ApiDaemon) -> None:
    async def body(client: Client) -> None:
        namespace = await fresh(client, "picky")
        reflector, handler = Reflector(client, CONFIG_MAPS, namespace), Picky()
        task = asyncio.create_task(reflector.run(handler))
        await reflector.synced.wait()
        await client.create(CONFIG_MAPS, {"metadata": {"name": "bad"}}, namespace)
        while not any(kind == "replaced" and "bad" in str(value) for kind, value in handler.told):
            handler.news.clear()
            await handler.news.wait()
        assert handler.refused == 1
        await client.create(CONFIG_MAPS, {"metadata": {"name": "good"}}, namespace)
        while not any("good" in str(value) for _, value in handler.told):
            handler.news.clear()
            await handler.news.wait()
        assert not task.done()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    run(for_socket(api), body)
