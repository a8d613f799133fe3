"""Exec, Attach and PortForward: the URL that is answered, and that it leads to a server which wants an upgrade."""

from __future__ import annotations

import http.client
import ipaddress
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from podkeep.base.errors import FailedPrecondition, InvalidArgument, NotFound
from podkeep.cri.v1 import api_pb2 as api
from support.cri import namespaces, pod
from support.endpoint import Node

Ask = Callable[..., str]
UNKNOWN = "0" * 64


def exec_url(node: Node, container: str, **fields: object) -> str:
    """Return the URL of a command; stdout alone unless said otherwise."""
    given = {"cmd": ["echo", "hello"], "stdout": True} | fields
    return str(node.call("Exec", api.ExecRequest(container_id=container, **given)).url)


def attach_url(node: Node, container: str, **fields: object) -> str:
    """Return the URL of a container's output."""
    given = {"stdout": True, "stderr": True} | fields
    return str(node.call("Attach", api.AttachRequest(container_id=container, **given)).url)


def forward_url(node: Node, sandbox: str, *ports: int) -> str:
    """Return the URL of a pod's ports."""
    return str(node.call("PortForward", api.PortForwardRequest(pod_sandbox_id=sandbox, port=ports)).url)


def answer(url: str, method: str = "GET") -> int:
    """Return the status that a request without an upgrade gets."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=10)
    try:
        connection.request(method, f"{parts.path}?{parts.query}" if parts.query else parts.path)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("ask", [exec_url, attach_url], ids=["exec", "attach"])
def test_url_of_a_container(node: Node, ask: Ask) -> None:
    container = node.launch(node.run())
    urls = [ask(node, container) for _ in range(2)]
    assert urls[0] != urls[1]
    for url in urls:
        parts = urlsplit(url)
        assert parts.scheme in {"http", "https"}
        assert ipaddress.ip_address(str(parts.hostname)).is_loopback
        assert parts.port
        assert len(parts.path) > len("/exec/")


@pytest.mark.parametrize("network", [api.POD, api.NODE])
def test_url_of_a_pod(node: Node, network: int) -> None:
    sandbox = node.run(pod(options=namespaces(network=network)))
    parts = urlsplit(forward_url(node, sandbox, 80))
    assert ipaddress.ip_address(str(parts.hostname)).is_loopback


def test_request_without_an_upgrade_is_refused(node: Node) -> None:
    container = node.launch(node.run())
    assert 400 <= answer(exec_url(node, container)) < 500


def test_address_that_was_not_given_is_refused(node: Node) -> None:
    container = node.launch(node.run())
    url = urlsplit(exec_url(node, container))
    assert answer(url._replace(path="/exec/guessed", query="").geturl()) in {403, 404}


@pytest.mark.parametrize("ask", [exec_url, attach_url], ids=["exec", "attach"])
def test_container_that_is_not_there(node: Node, ask: Ask) -> None:
    node.refused(lambda: ask(node, UNKNOWN), NotFound)


@pytest.mark.parametrize("ask", [exec_url, attach_url], ids=["exec", "attach"])
def test_container_that_does_not_run(node: Node, ask: Ask) -> None:
    container = node.create(node.run())
    node.refused(lambda: ask(node, container), FailedPrecondition)


def test_pod_that_is_not_there(node: Node) -> None:
    node.refused(lambda: forward_url(node, UNKNOWN, 80), NotFound)


def test_pod_that_is_stopped(node: Node) -> None:
    sandbox = node.run()
    node.stop_pod(sandbox)
    node.refused(lambda: forward_url(node, sandbox, 80), FailedPrecondition)


def test_exec_without_any_stream(node: Node) -> None:
    """One of stdin, stdout and stderr must be asked for (CRI: ExecRequest)."""
    container = node.launch(node.run())
    node.refused(lambda: exec_url(node, container, stdout=False), InvalidArgument)


def test_terminal_has_no_stderr(node: Node) -> None:
    """With a terminal both outputs are one (CRI: ExecRequest)."""
    container = node.launch(node.run())
    node.refused(lambda: exec_url(node, container, tty=True, stderr=True), InvalidArgument)
