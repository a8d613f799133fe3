"""Reading the configuration: directories are resolved, and nobody else's."""

from __future__ import annotations

from pathlib import Path

import pytest

from podkeep.base import config
from podkeep.base.errors import InvalidArgument


def load(tmp_path: Path, text: str) -> config.Config:
    file = tmp_path / "config.toml"
    file.write_text(text)
    return config.load(file)


def test_directories_are_resolved_and_the_socket_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real")
    loaded = load(
        tmp_path,
        f"""
[runtime]
root = "{link}/root"
run = "{link}/run/"
socket = "{link}/run/s"
[runtime.handlers.crun]
path = "/usr/bin/crun"
root = "{link}/crun"
[runtime.handlers.other]
path = "/usr/bin/other"
[agent]
root = "{link}/kubelet"
pod_logs = "{link}/./logs"
""",
    )
    real = str(tmp_path / "real")
    assert (loaded.runtime.root, loaded.runtime.run) == (f"{real}/root", f"{real}/run")
    assert loaded.runtime.socket == f"{link}/run/s"
    assert {name: handler.root for name, handler in loaded.runtime.handlers.items()} == {
        "crun": f"{real}/crun",
        "other": "",
    }
    assert (loaded.agent.root, loaded.agent.pod_logs) == (f"{real}/kubelet", f"{real}/logs")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[runtime]\nrun = "/run"', "runtime.run: /run is the machine's"),
        ('[runtime]\nrun = "/var/run/"', "runtime.run: /run is the machine's"),
        ('[mountns]\npin = "/run/mnt"', "mountns.pin: its directory /run is the machine's"),
        ('[mountns]\npin = "/run/own/"', "mountns.pin: '/run/own/' is not the plain path of a file"),
        ('[mountns]\npin = "/run/own/.."', "mountns.pin: '/run/own/..' is not the plain path of a file"),
        ('[runtime]\nroot = "/"', "runtime.root: / is the machine's"),
        ('[agent]\nroot = "/var/lib"', "agent.root: /var/lib is the machine's"),
        ('[agent]\npod_logs = "/etc"', "agent.pod_logs: /etc is the machine's"),
        ('[runtime]\nrun = "/sys/fs/cgroup/x"', "runtime.run: /sys/fs/cgroup/x is the machine's"),
        ('[runtime]\nrun = "run"', "runtime.run: 'run' is not an absolute path"),
        ('[runtime]\nroot = "/srv/p"\nrun = "/srv/p"', "runtime.run and runtime.root are the same directory, /srv/p"),
        ('[runtime]\nroot = "/srv/p"\nrun = "/srv/p/run"', "runtime.run and runtime.root are one inside the other"),
        ('[runtime]\nroot = "/srv/p/root"\nrun = "/srv/p"', "runtime.run and runtime.root are one inside the other"),
        (
            '[runtime]\nroot = "/srv/r"\nrun = "/var/lib/podkeep/agent/pods"',
            "runtime.run and agent.root are one inside the other",
        ),
        ('[runtime]\nroot = "/var/lib/podkeep/agent"', "runtime.root and agent.root are the same directory"),
    ],
)
def test_a_directory_of_somebody_else_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        load(tmp_path, text)
    assert caught.value.message.startswith(f"{tmp_path}/config.toml: {words}")
    assert caught.value.hint


def test_names_that_only_begin_alike_are_apart(tmp_path: Path) -> None:
    loaded = load(tmp_path, '[runtime]\nroot = "/srv/run-data"\nrun = "/srv/run"')
    assert (loaded.runtime.root, loaded.runtime.run) == ("/srv/run-data", "/srv/run")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[agent]\nmax_pods = 0", "agent.max_pods: 0 is less than 1"),
        ('[runtime]\nlog_size_limit = "-1"', "runtime.log_size_limit: -1 is less than nothing"),
        ('[runtime]\nlog_size_limit = "much"', "runtime.log_size_limit: "),
        ("[agent.user_namespaces]\nids_per_pod = 65535", "agent.user_namespaces.ids_per_pod: 65535 is not a multiple"),
        ("[agent.user_namespaces]\nids_per_pod = 0", "agent.user_namespaces.ids_per_pod: 0 is not a multiple"),
        ("[agent.user_namespaces]\nids_per_pod = -65536", "agent.user_namespaces.ids_per_pod: -65536 is not"),
        ("[agent.user_namespaces]\nids_per_pod = 2147483648", "agent.user_namespaces.ids_per_pod: 2147483648 is not"),
        ("[agent]\nregistry_burst = -1", "agent.registry_burst: -1 is negative"),
        ("[agent]\nevent_burst = -1", "agent.event_burst: -1 is negative"),
        ("[agent]\nevent_record_qps = -0.5", "agent.event_record_qps: -0.5 is negative"),
        ("[agent]\nevent_record_qps = nan", "agent.event_record_qps: nan is no number"),
        ("[agent]\nimage_minimum_gc_age = inf", "agent.image_minimum_gc_age: inf is no number"),
        ('[images]\ndocker_config = "/a\\u0000b"', "images.docker_config: it has a NUL character"),
        ('[registries."r.example"]\nca_file = "/a\\u0000"', "registries.r.example.ca_file: it has a NUL character"),
        ('[network]\ncni_plugin_dirs = ["/a", "/\\u0000"]', "network.cni_plugin_dirs: it has a NUL character"),
        ("[agent]\nmax_pods = -5", "agent.max_pods: -5 is less than 1"),
        ("[api]\nmax_user_watches = 31", "api.max_user_watches: 31 is not in the range 32 to 2048"),
        ("[api]\nmax_user_watches = 2049", "api.max_user_watches: 2049 is not in the range 32 to 2048"),
        ("[api]\nterminated_pod_gc_threshold = -1", "api.terminated_pod_gc_threshold: -1 is less than 0"),
        ('[api]\nnamespace_size_limit = "15Mi"', "api.namespace_size_limit: 15Mi is less than 16Mi"),
        ('[api]\nnamespace_size_limit = "all"', "api.namespace_size_limit: "),
        ('[api]\nhistory_size_limit = "63Mi"', "api.history_size_limit: 63Mi is less than 64Mi"),
        ('[network]\nsubnet = ""', "network.subnet: "),
        ('[network]\nsubnet = "10.0.0.1/16"', "network.subnet: 10.0.0.1/16 has host bits set"),
        ('[network]\nsubnet = "fd00::/64"', "network.subnet: "),
        ('[network]\nsubnet6 = "10.0.0.0/16"', "network.subnet6: "),
        ('[network]\ncni_conf_dir = "net.d"', "network.cni_conf_dir: 'net.d' is not an absolute path"),
        ('[network]\ncni_plugin_dirs = ["/a", "b"]', "network.cni_plugin_dirs: 'b' is not an absolute path"),
        ('[class_resources]\nrdt_config = "r.yaml"', "class_resources.rdt_config: 'r.yaml' is not an absolute path"),
        ('[class_resources]\nresctrl = "r"', "class_resources.resctrl: 'r' is not an absolute path"),
        ('[class_resources]\nblockio_config = "b"', "class_resources.blockio_config: 'b' is not an absolute path"),
        ("[network]\ncni_timeout = 0", "network.cni_timeout: 0 is no time"),
        ('[runtime]\ndefault_handler = "kata"', "runtime.default_handler: 'kata' is not in runtime.handlers"),
        (
            '[runtime.handlers.runc]\npath = "/usr/bin/runc"',
            "runtime.default_handler: 'crun' is not in runtime.handlers",
        ),
        ("[runtime.handlers]", "runtime.default_handler: 'crun' is not in runtime.handlers, which has: none"),
    ],
)
def test_a_value_out_of_range_is_refused_by_the_name_of_its_key(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        load(tmp_path, text)
    assert caught.value.message.startswith(f"{tmp_path}/config.toml: {words}")
    assert caught.value.hint


def test_the_smallest_values_are_taken(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        '[api]\nmax_user_watches = 32\nnamespace_size_limit = "16Mi"\nhistory_size_limit = "64Mi"\n'
        '[agent]\nmax_pods = 1\n[runtime]\ndefault_handler = "r"\n[runtime.handlers.r]\npath = "/usr/bin/runc"',
    )
    assert (loaded.agent.max_pods, loaded.runtime.default_handler) == (1, "r")
    assert (loaded.api.namespace_bytes(), loaded.api.history_bytes()) == (16 << 20, 64 << 20)


@pytest.mark.parametrize(
    ("setting", "tables"),
    [
        ("mountns.enabled=false", {"mountns": {"enabled": False}}),
        ("runtime.root=/srv/podkeep", {"runtime": {"root": "/srv/podkeep"}}),
        ('runtime.root="/srv/podkeep"', {"runtime": {"root": "/srv/podkeep"}}),
        ("images.parallel_layers=5", {"images": {"parallel_layers": 5}}),
        ('registries."h:5".mirrors=["a", "b"]', {"registries": {"h:5": {"mirrors": ["a", "b"]}}}),
        ("runtime.root=", {"runtime": {"root": ""}}),
    ],
)
def test_a_setting_is_a_piece_of_the_file(setting: str, tables: dict[str, object]) -> None:
    assert config.parse_setting(setting) == tables


@pytest.mark.parametrize("setting", ["", "runtime.root", "=1", "a b=1", "runtime..root=1"])
def test_a_setting_without_a_key_is_refused(setting: str) -> None:
    with pytest.raises(InvalidArgument):
        config.parse_setting(setting)


def test_settings_win_over_the_file_and_leave_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[images]\nparallel_layers = 2\nmax_layer_inodes = 7\n[registries."h"]\ninsecure = true\n')
    loaded = config.load(file, ["images.parallel_layers=4", "registries.h.ca_file=/a.pem", "images.parallel_layers=5"])
    assert (loaded.images.parallel_layers, loaded.images.max_layer_inodes) == (5, 7)
    assert loaded.registries == {"h": config.RegistryConfig(insecure=True, ca_file="/a.pem")}


@pytest.mark.parametrize(
    ("text", "told"),
    [("a = " + "9" * 5000, "a number has too many digits"), ("a = " + "[" * 20_000, "it nests too deeply")],
    ids=["long", "deep"],
)
def test_what_no_reader_of_toml_takes_is_refused(text: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    with pytest.raises(InvalidArgument, match=f"config.toml: {told}"):
        config.load(file)
    file.write_text("")
    with pytest.raises(InvalidArgument, match="expected `integer`, got `string`"):
        config.load(file, [f"images.max_layer_inodes{text.removeprefix('a')}"])


@pytest.mark.slow
def test_a_key_of_many_parts_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    parts = "a." * 1500 + "a = 1"
    for text in (f"agent.{parts}", f"agent.a = [{{{parts}}}]"):
        file.write_text(text)
        with pytest.raises(InvalidArgument, match=r"config.toml: it nests too deeply"):
            config.load(file)
    file.write_text("")
    with pytest.raises(InvalidArgument, match="it nests too deeply"):
        config.load(file, [f"agent.{parts}"])


@pytest.mark.parametrize("setting", ["runtime.nonsense=1", "mountns.enabled=maybe", "runtime=1"])
def test_a_wrong_setting_is_refused_like_a_wrong_file(setting: str, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("")
    with pytest.raises(InvalidArgument):
        config.load(tmp_path / "config.toml", [setting])


def test_what_is_shown_can_be_read_again(tmp_path: Path) -> None:
    first = load(
        tmp_path,
        """
[runtime]
default_handler = "my.kata"
handlers = { "my.kata" = { path = "/usr/bin/ka\\u007fta \\"x\\"" } }
[registries."127.0.0.1:5000"]
mirrors = ["a", "b"]
[registries."[::1]:5000"]
""",
    )
    assert load(tmp_path, config.to_toml(first)) == first


@pytest.mark.parametrize(
    ("address", "endpoint"),
    [
        ("", None),
        ("127.0.0.1:9090", ("127.0.0.1", 9090)),
        ("[::1]:9090", ("::1", 9090)),
        ("/run/podkeep/metrics.sock", "/run/podkeep/metrics.sock"),
    ],
)
def test_where_metrics_are_served(address: str, endpoint: object) -> None:
    assert config.MetricsConfig(address=address).endpoint() == endpoint


@pytest.mark.parametrize("address", ["9090", ":9090", "localhost:9090", "127.0.0.1", "127.0.0.1:0", "::1:70000", "a"])
def test_an_address_of_metrics_that_cannot_work(address: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"metrics\.address"):
        load(tmp_path, f'[metrics]\naddress = "{address}"\n')
