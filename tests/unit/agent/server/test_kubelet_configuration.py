"""A KubeletConfiguration file as settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from podkeep.agent import kubelet_configuration
from podkeep.agent.kubelet_configuration import FIELDS, assignments, in_force, load, read, seconds, snake
from podkeep.base import config
from podkeep.base.errors import InvalidArgument

DEFAULTS = config.Config().agent.eviction_hard
HEAD = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"


@pytest.mark.parametrize(
    ("field", "value", "settings"),
    [
        ("port", 10251, {"agent.port": 10251}),
        ("address", "127.0.0.1", {"agent.address": "127.0.0.1"}),
        ("address", "", {}),
        ("resolvConf", "", {"agent.resolv_conf": ""}),
        ("port", 0, {}),
        ("maxPods", 0, {}),
        ("nodeLeaseDurationSeconds", 0, {}),
        ("eventBurst", 0, {}),
        ("registryBurst", 0, {}),
        ("eventRecordQPS", 0, {"agent.event_record_qps": 0}),
        ("maxPods", None, {}),
        ("podLogsDir", "/var/log/pods", {"agent.pod_logs": "/var/log/pods"}),
        ("containerRuntimeEndpoint", "unix:///run/x.sock", {"runtime.socket": "unix:///run/x.sock"}),
        ("cgroupDriver", "systemd", {"runtime.cgroup_driver": "systemd"}),
        ("streamingConnectionIdleTimeout", "1h30m", {"agent.streaming_connection_idle_timeout": 5400.0}),
        ("streamingConnectionIdleTimeout", "0s", {}),
        ("runtimeRequestTimeout", "2m", {"agent.runtime_request_timeout": 120.0}),
        ("evictionHard", {"memory.available": "5%"}, {"agent.eviction_hard": {"memory.available": "5%"}}),
        (
            "evictionSoftGracePeriod",
            {"memory.available": "1m30s"},
            {"agent.eviction_soft_grace_period": {"memory.available": 90.0}},
        ),
        (
            "authentication",
            {"x509": {"clientCAFile": "/ca.crt"}, "webhook": {"cacheTTL": "0s", "enabled": False}},
            {
                "agent.authentication.x509.client_ca_file": "/ca.crt",
                "agent.authentication.webhook.enabled": False,
            },
        ),
        (
            "shutdownGracePeriodByPodPriority",
            [{"priority": 1, "shutdownGracePeriodSeconds": 5}],
            {"agent.shutdown_grace_period_by_pod_priority": [{"priority": 1, "seconds": 5}]},
        ),
        ("userNamespaces", {"idsPerPod": 131072}, {"agent.user_namespaces.ids_per_pod": 131072}),
        ("featureGates", {"ImageVolume": False}, {"agent.feature_gates": {"ImageVolume": False}}),
    ],
)
def test_fields_that_have_a_setting(field: str, value: Any, settings: dict[str, Any]) -> None:
    found = read({field: value}, "file")
    assert (dict(found.settings), found.ignored) == (settings, ())


@pytest.mark.parametrize(
    ("document", "ignored"),
    [
        ({"cpuManagerPolicy": "static"}, ("cpuManagerPolicy",)),
        ({"cpuManagerReconcilePeriod": "0s", "memorySwap": {}, "logging": {"verbosity": 0, "options": {}}}, ()),
        ({"logging": {"format": "json"}, "tracing": {"endpoint": "x"}}, ("logging", "tracing")),
        ({"featureGates": {"CPUManager": True}}, ("featureGates.CPUManager",)),
    ],
)
def test_what_means_nothing_here_is_named_unless_it_is_empty(
    document: dict[str, Any], ignored: tuple[str, ...]
) -> None:
    assert read(document, "file").ignored == ignored


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"maxPodz": 1}, "file: maxPodz: unknown field"),
        ({"authentication": {"x509": {"clientCA": ""}}}, "file: authentication.x509.clientCA: unknown field"),
        ({"authentication": True}, "file: authentication: expected an object"),
        ({"port": "10250"}, "file: port: expected an integer"),
        ({"port": True}, "file: port: expected an integer"),
        ({"enableServer": "yes"}, "file: enableServer: expected a boolean"),
        ({"syncFrequency": "soon"}, "file: syncFrequency: expected a duration"),
        ({"syncFrequency": 10}, "file: syncFrequency: expected a duration"),
        ({"clusterDNS": "10.0.0.10"}, "file: clusterDNS: expected strings"),
        ({"evictionHard": {"memory.available": 5}}, "file: evictionHard: expected strings by name"),
    ],
)
def test_wrong_fields_are_errors(document: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        read(document, "file")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("300ms", 0.3),
        ("1h15m30.918s", 4530.918),
        (".5s", 0.5),
        ("-1.5h", -5400),
        ("1us", 1e-6),
        ("3µs", 3e-6),
    ],
)
def test_durations(text: str, expected: float) -> None:
    assert seconds(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "1", "s", "1s1", "1 s", "1d", "--1s", "1s" * 60])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError):
        seconds(text)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("cpuCFSQuota", "cpu_cfs_quota"),
        ("singleProcessOOMKill", "single_process_oom_kill"),
        ("imageGCHighThresholdPercent", "image_gc_high_threshold_percent"),
        ("clusterDNS", "cluster_dns"),
        ("tlsPrivateKeyFile", "tls_private_key_file"),
        ("registryPullQPS", "registry_pull_qps"),
    ],
)
def test_names_of_settings(name: str, setting: str) -> None:
    assert snake(name) == setting


def test_a_file_and_its_drop_ins_become_a_configuration(tmp_path: Path) -> None:
    """The file, then ``*.conf`` in the order of their names; tables of values are merged, others replaced."""
    main, directory = tmp_path / "config.yaml", tmp_path / "conf.d"
    directory.mkdir()
    main.write_text(HEAD + "port: 1\nevictionHard: {memory.available: 1%, nodefs.available: 2%}\nrunOnce: true\n")
    (directory / "20.conf").write_text(HEAD + "port: 3\n")
    (directory / "10.conf").write_text(HEAD + "port: 2\nevictionHard: {memory.available: 3%}\n")
    (directory / "30.yaml").write_text("not read")
    found = load(main, directory)
    assert found.ignored == ("runOnce",)
    result = config.load(None, assignments(found.settings))
    assert result.agent.port == 3
    assert result.agent.eviction_hard == {"memory.available": "3%", "nodefs.available": "2%"}


@pytest.mark.parametrize(
    ("main", "drop_in", "expected"),
    [
        ("", "", {}),
        ("evictionHard: {pid.available: 1%}\n", "", {"pid.available": "1%"}),
        (
            "evictionHard: {pid.available: 1%, memory.available: 1Gi}\nmergeDefaultEvictionSettings: true\n",
            "",
            DEFAULTS | {"pid.available": "1%", "memory.available": "1Gi"},
        ),
        ("mergeDefaultEvictionSettings: true\n", "", {}),
        # What a drop-in file adds to has its defaults by then.
        ("", "evictionHard: {memory.available: 1Gi}\n", DEFAULTS | {"memory.available": "1Gi"}),
        (
            "evictionHard: {pid.available: 1%}\n",
            "evictionHard: {memory.available: 1Gi}\n",
            {"pid.available": "1%", "memory.available": "1Gi"},
        ),
    ],
)
def test_thresholds_that_a_file_does_not_name(
    tmp_path: Path, main: str, drop_in: str, expected: dict[str, str]
) -> None:
    """As cmd/kubelet (loadConfigFile, mergeKubeletConfigurations)."""
    file, directory = tmp_path / "config.yaml", tmp_path / "conf.d"
    directory.mkdir()
    file.write_text(HEAD + main)
    (directory / "10.conf").write_text(HEAD + drop_in)
    found = load(file, directory)
    assert (found.settings.get("agent.eviction_hard", {}), found.ignored) == (expected, ())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nodeStatusUpdateFrequency: 4s\n", 4.0),
        ("nodeStatusUpdateFrequency: 4s\nnodeStatusReportFrequency: 0s\n", 4.0),
        ("nodeStatusUpdateFrequency: 4s\nnodeStatusReportFrequency: 1m\n", 60.0),
        ("nodeStatusUpdateFrequency: 0s\n", 300.0),
    ],
)
def test_who_looks_at_the_node_more_often_reports_it_so(tmp_path: Path, text: str, expected: float) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(HEAD + text)
    result = config.load(None, assignments(load(file).settings))
    assert result.agent.node_status_report_frequency == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not one KubeletConfiguration"),
        (HEAD + "---\n" + HEAD, "not one KubeletConfiguration"),
        ("kind: Pod\napiVersion: v1\n", "not a KubeletConfiguration"),
        (HEAD + "port: 1\nport: 2\n", "line 4"),
        ("[", "line"),
    ],
)
def test_what_is_no_such_file(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(InvalidArgument, match=words):
        load(path)
    with pytest.raises(InvalidArgument, match="No such file"):
        load(tmp_path / "missing")


def test_what_is_in_force_is_a_file_for_a_kubelet(tmp_path: Path) -> None:
    """As a kubelet shows it, with its kind (setConfigz): `jq .kubeletconfig` makes a file that can be read."""
    path = tmp_path / "kubelet.json"
    path.write_text(json.dumps(in_force(config.Config())))
    load(path)


@pytest.mark.slow
def test_every_setting_of_a_known_field_is_shown_and_can_be_read_again() -> None:
    shown = json.loads(json.dumps(in_force(config.Config())))
    assert shown["streamingConnectionIdleTimeout"] == "4h0m0s"
    assert shown["authentication"]["webhook"] == {"enabled": True, "cacheTTL": "2m0s"}
    assert set(shown) <= {"kind", "apiVersion", *FIELDS}
    again = config.load(None, assignments(kubelet_configuration.read(shown, "configz").settings))
    assert again.agent == config.load(None).agent


@pytest.mark.slow
def test_taints_are_texts_here() -> None:
    taints = [{"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}, {"key": "slow", "effect": "NoExecute"}]
    document = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}
    found = read({**document, "registerWithTaints": taints}, "f").settings
    assert found == {"agent.register_with_taints": ["dedicated=gpu:NoSchedule", "slow:NoExecute"]}
    assert in_force(config.load(None, assignments(found)))["registerWithTaints"] == taints
