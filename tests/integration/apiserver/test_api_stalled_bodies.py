"""Bodies that begin and do not end: what one user keeps of the API so is that user's share alone."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from podkeep.http.budget import OWN_BYTES, SERVER_BYTES
from support.api_client import ApiClient
from support.api_daemon import ApiDaemon
from support.waiting import TIMEOUT_S

MAPS = "/api/v1/namespaces/default/configmaps"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings"
PIECE = 1_000_000


def allow(client: ApiClient, user: str) -> None:
    """Let a user change what is in a namespace."""
    group = "rbac.authorization.k8s.io"
    role = {"apiGroup": group, "kind": "ClusterRole", "name": "edit"}
    binding = {"metadata": {"name": user}, "roleRef": role}
    answer = client.ask("POST", BINDINGS, binding | {"subjects": [{"apiGroup": group, "kind": "User", "name": user}]})
    assert answer.status == 201


@contextmanager
def stalled(path: Path, user: str, start: bytes) -> Iterator[None]:
    """Begin a body, and leave it so."""
    with closing(socket.socket(socket.AF_UNIX)) as client:
        client.settimeout(TIMEOUT_S)
        client.connect(str(path))
        head = f"POST {MAPS} HTTP/1.1\r\nHost: x\r\nImpersonate-User: {user}\r\nContent-Type: application/json\r\n"
        with suppress(ConnectionError):  # it is refused before all of it was sent
            client.sendall(f"{head}Content-Length: 3000000\r\n\r\n".encode() + start)
        yield


def test_one_users_unfinished_bodies_keep_nobody_elses_out(tmp_path: Path, scratch_machine: None) -> None:
    with ApiDaemon(tmp_path) as api, closing(ApiClient(api.socket)) as client, ExitStack() as held:
        for user in ("one", "two"):
            allow(client, user)
        for _ in range(SERVER_BYTES // PIECE):
            held.enter_context(stalled(api.socket, "one", b" " * (PIECE + OWN_BYTES)))
        large = {"metadata": {"name": "large"}, "data": {"a": "x" * PIECE}}
        assert client.ask("POST", MAPS, large, Impersonate_User="two").status == 201
