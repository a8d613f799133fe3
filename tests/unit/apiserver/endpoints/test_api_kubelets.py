"""What the API says when it cannot ask a kubelet, as it has nothing to verify it with."""

from __future__ import annotations

from pathlib import Path

from support.api_calls import Api, run


def test_an_authority_of_kubelets_that_is_not_there_is_named(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        node = {"metadata": {"name": "n"}, "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}}
        assert (await api.call("POST", "/api/v1/nodes", node)).status == 201
        spec = {"nodeName": "n", "containers": [{"name": "c", "image": "x"}]}
        pods = "/api/v1/namespaces/default/pods"
        assert (await api.call("POST", pods, {"metadata": {"name": "p"}, "spec": spec})).status == 201
        answer = await api.call("GET", f"{pods}/p/log")
        file = tmp_path / "no-kubelet"
        said = f"the kubelets' authority {file} (api.kubelet_ca) cannot be used: No such file or directory"
        assert (answer.status, answer.message) == (500, said)

    run(tmp_path, test)
