"""Logs, exec, port-forward and proxies through ``podkeep api``, with a stand-in for the kubelet, which also fails."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from podkeep.kernel.mount import mounts
from support.api_daemon import ApiDaemon
from support.kubelet_server import KubeletServer
from support.waiting import TIMEOUT_S

PODS = "/api/v1/namespaces/default/pods"
WEB = f"{PODS}/web"
ALL = ("*",)
CONTAINERS = ("one", "refusing", "moving", "babbling", "breaking", "silent")


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(str(self._path))


def ask(
    api: ApiDaemon, method: str, target: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[http.client.HTTPResponse, bytes]:
    """Ask as root."""
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    with closing(_UnixConnection(api.socket)) as connection:
        connection.request(method, target, data, {"Content-Type": "application/json"} | (headers or {}))
        answer = connection.getresponse()
        return answer, answer.read()


def make(api: ApiDaemon, target: str, value: dict[str, Any]) -> None:
    answer, body = ask(api, "POST", target, value)
    assert answer.status == 201, body


def pod(name: str, *containers: str, node: str = "") -> dict[str, Any]:
    spec: dict[str, Any] = {"containers": [{"name": item, "image": "x"} for item in containers]}
    spec |= {"nodeName": node} if node else {}
    return {"metadata": {"name": name}, "spec": spec | {"automountServiceAccountToken": False}}


def add_node(api: ApiDaemon, name: str, address: str, port: int) -> None:
    make(api, "/api/v1/nodes", {"metadata": {"name": name}})
    status = {
        "addresses": [{"type": "Hostname", "address": "wrong"}, {"type": "InternalIP", "address": address}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }
    merge = {"Content-Type": "application/merge-patch+json"}
    answer, body = ask(api, "PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, merge)
    assert answer.status == 200, body


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, scratch_machine: None) -> Iterator[ApiDaemon]:
    base = tmp_path_factory.mktemp("relay")
    options = ("--set", 'api.disable_admission_plugins=["ServiceAccount"]')
    with ApiDaemon(base, *options) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def kubelet(api: ApiDaemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeletServer]:
    with KubeletServer(api.root, tmp_path_factory.mktemp("kubelet"), "n1") as server:
        add_node(api, "n1", "127.0.0.1", server.port)
        make(api, PODS, pod("web", *CONTAINERS, node="n1"))
        make(api, PODS, pod("single", "one", node="n1"))
        yield server


def message(body: bytes) -> str:
    text: str = json.loads(body)["message"]
    return text


def test_a_log_and_what_is_asked_for_it(api: ApiDaemon, kubelet: KubeletServer) -> None:
    query = "?container=one&tailLines=3&timestamps=true&sinceTime=2026-11-23T12:00:00%2B01:00&limitBytes=9&pretty=true"
    answer, body = ask(api, "GET", f"{WEB}/log{query}", headers={"Authorization": ""})
    assert (answer.status, answer.headers["Content-Type"], body) == (200, "text/plain", b"hello\n")
    asked = kubelet.asked[-1]
    assert asked.path == "/containerLogs/default/web/one"
    assert asked.query == {
        "tailLines": ["3"],
        "timestamps": ["true"],
        "limitBytes": ["9"],
        "sinceTime": ["2026-11-23T11:00:00Z"],
    }
    assert asked.user == "kube-apiserver-kubelet-client"
    assert ask(api, "GET", f"{PODS}/single/log")[1] == b"hello\n"


@pytest.mark.parametrize(
    ("target", "status", "text"),
    [
        ("nopod/log", 404, 'pods "nopod" not found'),
        ("web/log?container=x", 400, "container x is not valid for pod web"),
        (
            "web/log",
            400,
            "a container name must be specified for pod web, choose one of: [one refusing moving babbling breaking"
            " silent]",
        ),
        ("web/log?container=one&tailLines=-1", 422, "tailLines: Invalid value: -1: must be greater than or equal to 0"),
        ("web/log?container=one&limitBytes=0", 422, "limitBytes: Invalid value: 0: must be greater than 0"),
        ("web/log?container=one&sinceSeconds=0", 422, "sinceSeconds: Invalid value: 0: must be greater than 0"),
        ("web/log?container=one&sinceTime=yesterday", 400, 'parsing time "yesterday"'),
        ("web/log?container=one&tailLines=x", 400, 'parsing "x": invalid syntax'),
        (
            "web/log?container=refusing",
            400,
            'container "refusing" in pod "web" is waiting to start: ContainerCreating',
        ),
        ("web/log?container=moving", 500, "redirects forbidden"),
        ("web/log?container=babbling", 500, "malformed HTTP response"),
        ("web/exec?container=one&command=ls", 400, "Upgrade request required"),
    ],
)
def test_what_cannot_be_answered_is_told(
    api: ApiDaemon, kubelet: KubeletServer, target: str, status: int, text: str
) -> None:
    answer, body = ask(api, "GET", f"{PODS}/{target}")
    assert answer.status == status
    assert text in message(body)


def test_a_log_that_breaks_off_is_no_whole_one(api: ApiDaemon, kubelet: KubeletServer) -> None:
    with pytest.raises(http.client.IncompleteRead) as broken:
        ask(api, "GET", f"{WEB}/log?container=breaking")
    assert broken.value.partial == b"hello"


def test_a_pod_without_a_node_has_no_log_and_runs_nothing(api: ApiDaemon) -> None:
    make(api, PODS, pod("waiting", "one"))
    answer, body = ask(api, "GET", f"{PODS}/waiting/log")
    assert (answer.status, body) == (204, b"")
    answer, body = ask(api, "POST", f"{PODS}/waiting/exec?command=ls")
    assert (answer.status, message(body)) == (400, "pod waiting does not have a host assigned")


def test_only_a_kubelet_that_the_authority_knows_is_asked(
    api: ApiDaemon, kubelet: KubeletServer, tmp_path: Path
) -> None:
    with KubeletServer(api.root, tmp_path, "n2", "127.0.0.9") as other:
        add_node(api, "n2", "127.0.0.1", other.port)
        make(api, PODS, pod("elsewhere", "one", node="n2"))
        answer, body = ask(api, "GET", f"{PODS}/elsewhere/log")
        assert answer.status == 500
        assert "tls: failed to verify certificate: x509: IP address mismatch" in message(body)
        assert not other.asked
        assert ask(api, "GET", f"{PODS}/elsewhere/log?insecureSkipTLSVerifyBackend=true")[1] == b"hello\n"
    answer, body = ask(api, "GET", f"{PODS}/elsewhere/log")
    assert f"dial tcp 127.0.0.1:{other.port}: connect: connection refused" in message(body)


@pytest.mark.parametrize("container", ["one", "silent"])
def test_a_client_that_leaves_ends_the_connection_to_the_kubelet(
    api: ApiDaemon, kubelet: KubeletServer, container: str
) -> None:
    connection = _UnixConnection(api.socket)
    count = len(kubelet.asked)
    connection.request("GET", f"{WEB}/log?container={container}&follow=true")
    if container == "one":
        answer = connection.getresponse()
        assert answer.read(6) == b"first\n"
        answer.close()
    else:
        # The kubelet has been asked, and says nothing.
        kubelet.wait_for(count + 1)
    connection.close()
    assert kubelet.asked[-1].gone.wait(TIMEOUT_S)


def upgraded(api: ApiDaemon, target: str) -> tuple[socket.socket, bytes]:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(TIMEOUT_S)
    sock.connect(str(api.socket))
    sock.sendall(
        f"POST {target} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nAuthorization: \r\n"
        "X-Stream-Protocol-Version: v4.channel.k8s.io\r\nContent-Length: 0\r\n\r\n".encode()
    )
    data = b""
    while b"\r\n\r\n" not in data:
        data += sock.recv(65536)
    return sock, data


def test_streams_are_passed_on_both_ways(api: ApiDaemon, kubelet: KubeletServer) -> None:
    sock, data = upgraded(api, f"{WEB}/exec?container=one&stdin=true&stdout=1&stderr=false&command=a&command=b%20c")
    with sock:
        head, _, rest = data.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ")
        assert b"X-Stream-Protocol-Version: v4.channel.k8s.io".lower() in head.lower()
        sent = b"x" * 300_000 + b"bye"
        sock.sendall(sent)
        # The kubelet ends the stream; all that it sent before comes.
        while piece := sock.recv(65536):
            rest += piece
    assert rest == b"early " + sent.upper()
    asked = kubelet.asked[-1]
    assert asked.path == "/exec/default/web/one"
    assert asked.query == {"input": ["1"], "output": ["1"], "command": ["a", "b c"]}
    assert "authorization" not in asked.headers
    assert asked.gone.wait(TIMEOUT_S)


def test_a_stream_ends_with_its_client_and_a_refusal_is_passed_on(api: ApiDaemon, kubelet: KubeletServer) -> None:
    sock, _ = upgraded(api, f"{WEB}/portforward")
    assert kubelet.asked[-1].path == "/portForward/default/web"
    sock.close()
    assert kubelet.asked[-1].gone.wait(TIMEOUT_S)
    sock, data = upgraded(api, f"{WEB}/attach?container=refusing&stdout=true")
    with sock:
        assert data.startswith(b"HTTP/1.1 400 ")


UPGRADE = {"Connection": "Upgrade", "Upgrade": "websocket"}


def allow(api: ApiDaemon, user: str, *resources: str, verbs: tuple[str, ...] = ("get",)) -> dict[str, str]:
    """Let a user do something everywhere; return the headers of requests as that user."""
    roles = "/apis/rbac.authorization.k8s.io/v1"
    rules = [{"apiGroups": [""], "resources": list(resources), "verbs": list(verbs)}]
    make(api, f"{roles}/clusterroles", {"metadata": {"name": user}, "rules": rules})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user}
    subjects = [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}]
    binding = {"metadata": {"name": user}, "roleRef": reference, "subjects": subjects}
    make(api, f"{roles}/clusterrolebindings", binding)
    return {"Impersonate-User": user}


def test_who_may_only_read_pods_runs_nothing_over_websocket(api: ApiDaemon, kubelet: KubeletServer) -> None:
    headers = allow(api, "ann", "pods", "pods/exec") | UPGRADE
    answer, _ = ask(api, "GET", f"{WEB}/exec?container=one&command=ls", headers=headers)
    assert answer.status == 403


def test_who_may_only_read_from_nodes_runs_nothing_over_websocket(api: ApiDaemon, tmp_path: Path) -> None:
    """The kubelet sees the API's certificate and not who asks: it cannot tell."""
    subprocess.run(["ip", "address", "add", "192.0.2.8/32", "dev", "lo"], check=True)
    reads, runs = (allow(api, user, "nodes/proxy", verbs=verbs) for user, verbs in (("rita", ("get",)), ("rob", ALL)))
    with KubeletServer(api.root, tmp_path, "n4", "192.0.2.8") as server:
        add_node(api, "n4", "192.0.2.8", server.port)
        for name in ("n4", f"n4:{server.port}", f"https:n4:{server.port}"):
            target = f"/api/v1/nodes/{name}/proxy/exec/default/web/one?command=ls&output=1"
            answer, body = ask(api, "GET", target, headers=reads | UPGRADE)
            assert answer.status == 403, body
            assert 'User "rita" cannot create resource "nodes/proxy"' in message(body)
        assert server.asked == []
        assert ask(api, "GET", "/api/v1/nodes/n4/proxy/pods", headers=reads)[0].status == 200
        answer, _ = ask(api, "GET", "/api/v1/nodes/n4/proxy/exec/default/web/refusing", headers=runs | UPGRADE)
        assert (answer.status, server.asked[-1].path) == (400, "/exec/default/web/refusing")


def test_nothing_of_the_machine_itself_is_reached_by_proxies(api: ApiDaemon, kubelet: KubeletServer) -> None:
    status = {"status": {"podIPs": [{"ip": "127.0.0.1"}], "podIP": "127.0.0.1"}}
    ask(api, "PATCH", f"{WEB}/status", status, {"Content-Type": "application/merge-patch+json"})
    for target in (f"{WEB}/proxy/", f"{PODS}/web:{kubelet.port}/proxy/", "/api/v1/nodes/n1/proxy/pods"):
        answer, body = ask(api, "GET", target)
        assert (answer.status, message(body)) == (400, "address not allowed")
    answer, body = ask(api, "GET", f"{PODS}/ftp:web:80/proxy/")
    assert (answer.status, message(body)) == (400, 'invalid pod request "ftp:web:80"')


def test_a_proxied_request_and_its_answer(api: ApiDaemon, tmp_path: Path) -> None:
    subprocess.run(["ip", "address", "add", "192.0.2.7/32", "dev", "lo"], check=True)
    node = "/api/v1/nodes/n3/proxy"
    with KubeletServer(api.root, tmp_path, "n3", "192.0.2.7") as server:
        add_node(api, "n3", "192.0.2.7", server.port)
        answer, _ = ask(api, "GET", f"{node}?a=b")
        assert (answer.status, answer.headers["Location"]) == (301, f"{node}/?a=b")
        headers = {"X-Mine": "1", "Impersonate-User": "kubernetes-admin", "Impersonate-Group": "system:masters"}
        answer, body = ask(api, "POST", f"{node}/echo?a=b%20c", b"x" * 300_000, headers)
        assert (answer.status, body) == (299, b"x" * 300_000)
        assert (answer.headers["X-Own"], answer.headers["Location"]) == ("yes", f"{node}/there")
        asked = server.asked[-1]
        assert (asked.method, asked.path, asked.query) == ("POST", "/echo", {"a": ["b c"]})
        assert asked.headers["x-mine"] == "1"
        assert not [name for name in asked.headers if name.startswith("impersonate")]
    answer, body = ask(api, "GET", f"{node}/echo")
    assert answer.status == 503
    assert message(body).startswith("error trying to reach service: dial tcp 192.0.2.7:")


@pytest.fixture
def unanswered(tmp_path: Path, scratch_machine: None) -> Iterator[socket.socket]:
    """A name server that answers nothing, and is the machine's."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with listening, ExitStack() as stack:
        subprocess.run(["ip", "address", "add", "192.0.2.53/32", "dev", "lo"], check=True)
        listening.bind(("192.0.2.53", 53))
        listening.settimeout(TIMEOUT_S)
        file = tmp_path / "resolv.conf"
        file.write_text("nameserver 192.0.2.53\noptions timeout:30 attempts:1\n")
        mounts.bind(file, Path("/etc/resolv.conf").resolve())
        stack.callback(mounts.unmount, Path("/etc/resolv.conf").resolve())
        yield listening


def test_a_node_whose_name_is_looked_up_for_long_keeps_no_other_waiting(
    tmp_path: Path, unanswered: socket.socket
) -> None:
    subprocess.run(["ip", "address", "add", "192.0.2.18/32", "dev", "lo"], check=True)
    options = ("--set", 'api.disable_admission_plugins=["ServiceAccount"]')
    with ApiDaemon(tmp_path, *options) as api, KubeletServer(api.root, tmp_path, "fast", "192.0.2.18") as server:
        add_node(api, "fast", "192.0.2.18", server.port)
        add_node(api, "slow", "slow.example", 10250)
        make(api, PODS, pod("waiting", "one", node="slow"))
        with ExitStack() as asking:
            # More than there are threads of Python's own making (ThreadPoolExecutor).
            for _ in range(40):
                connection = asking.enter_context(closing(_UnixConnection(api.socket)))
                connection.request("GET", f"{PODS}/waiting/log")
            unanswered.recv(512)
            with closing(_UnixConnection(api.socket)) as connection:
                connection.connect()
                # Half of the time that a lookup takes.
                connection.sock.settimeout(15)
                connection.request("POST", "/api/v1/nodes/fast/proxy/echo", b"x")
                assert connection.getresponse().read() == b"x"


def test_a_service_leads_to_pods_only(api: ApiDaemon) -> None:
    make(api, "/api/v1/namespaces/default/services", {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}})
    subsets = [{"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 1}]}]
    make(api, "/api/v1/namespaces/default/endpoints", {"metadata": {"name": "s"}, "subsets": subsets})
    for name, text in (
        ("s", 'no endpoints available for service "s"'),
        ("s:80", 'no endpoints available for service "s:80"'),
        ("s:81", 'no service port 81 found for service "s"'),
    ):
        answer, body = ask(api, "GET", f"/api/v1/namespaces/default/services/{name}/proxy/")
        assert (answer.status, message(body)) == (503, text)


def test_a_service_leads_to_pods_of_its_own_namespace_only(api: ApiDaemon, saying: list[bytes]) -> None:
    """Who may write Endpoints in one namespace may not thereby ask pods of another."""
    saying.append(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret")
    make(api, "/api/v1/namespaces", {"metadata": {"name": "theirs"}})
    address = {"ip": "192.0.2.9", "targetRef": {"kind": "Pod", "namespace": "default", "name": "hostile"}}
    (container,) = json.loads(ask(api, "GET", f"{PODS}/hostile")[1])["spec"]["containers"]
    answers = []
    for namespace in ("default", "theirs"):
        services = f"/api/v1/namespaces/{namespace}/services"
        make(api, services, {"metadata": {"name": "t"}, "spec": {"ports": [{"port": 80}]}})
        subsets = [{"addresses": [address], "ports": [{"port": container["ports"][0]["containerPort"]}]}]
        make(api, f"/api/v1/namespaces/{namespace}/endpoints", {"metadata": {"name": "t"}, "subsets": subsets})
        answers.append(ask(api, "GET", f"{services}/t/proxy/")[0].status)
    assert answers == [200, 503]


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
BLANKS = b"A:" + b" " * 20_000 + b"\0\r\n\r\n"


@pytest.fixture(scope="module")
def saying(api: ApiDaemon) -> Iterator[list[bytes]]:
    """What the pod ``hostile`` answers."""
    subprocess.run(["ip", "address", "add", "192.0.2.9/32", "dev", "lo"], check=True)
    said: list[bytes] = []
    listener = socket.create_server(("192.0.2.9", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with suppress(OSError), connection:
                    connection.settimeout(TIMEOUT_S)
                    connection.recv(65536)
                    connection.sendall(said[-1])
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(65536):
                        pass

    thread = threading.Thread(target=serve)
    thread.start()
    value = pod("hostile", "one", node="n1")
    value["spec"]["containers"][0]["ports"] = [{"containerPort": listener.getsockname()[1]}]
    make(api, PODS, value)
    merge = {"Content-Type": "application/merge-patch+json"}
    status = {"status": {"podIP": "192.0.2.9", "podIPs": [{"ip": "192.0.2.9"}]}}
    assert ask(api, "PATCH", f"{PODS}/hostile/status", status, merge)[0].status == 200
    yield said
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(TIMEOUT_S)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\n" + BLANKS,
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n" + BLANKS,
        CHUNKED + b"0\r\n" + BLANKS,
        CHUNKED + b"1;" + b" " * 20_000 + b"\nx\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\n\r\n" * 20_000,
    ],
    ids=["head", "head after another", "trailers", "chunk", "interim answers"],
)
def test_what_a_pod_answers_takes_no_time_of_others(api: ApiDaemon, saying: list[bytes], said: bytes) -> None:
    saying.append(said)
    before = cpu_seconds(api.pid)
    with suppress(http.client.HTTPException, OSError):
        answer, body = ask(api, "GET", f"{PODS}/hostile/proxy/")
        assert (answer.status, b"malformed HTTP response" in body) == (503, True)
    assert cpu_seconds(api.pid) - before < 1


@pytest.mark.parametrize(
    ("said", "header"),
    [
        (b"HTTP/1.1 200 OK\r\nX: gr\xfcn\r\nContent-Length: 0\r\n\r\n", ("X", "gr\xfcn")),
        (b"HTTP/1.1 200 OK\r\nLocation: //[\r\nContent-Length: 0\r\n\r\n", ("Location", "//[")),
    ],
    ids=["bytes", "location"],
)
def test_headers_of_a_pod_that_say_nothing_are_passed_on(
    api: ApiDaemon, saying: list[bytes], said: bytes, header: tuple[str, str]
) -> None:
    saying.append(said)
    answer, _ = ask(api, "GET", f"{PODS}/hostile/proxy/", headers={"Y": "gr\xfcn"})
    assert (answer.status, answer.headers[header[0]]) == (200, header[1])
