"""``podkeep config check`` refuses what the daemon could not work with, and says what to do."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from podkeep.base.errors import FailedPrecondition, InvalidArgument
from podkeep.cli.core.invocation import Invocation
from podkeep.cli.diagnosis import config


def check(tmp_path: Path, text: str) -> Result:
    file = tmp_path / "config.toml"
    file.write_text(text)
    return CliRunner().invoke(config.command, ["check", str(file)], obj=Invocation(config_path=None, debug=False))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate, and its key under the password ``secret``."""
    directory = tmp_path_factory.mktemp("tls")
    cert, key = directory / "cert.pem", directory / "key.pem"
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    argv += ["-passout", "pass:secret", "-days", "2", "-subj", "/CN=localhost", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(argv, check=True, capture_output=True, timeout=60)
    return cert, key


def test_defaults_are_in_order(tmp_path: Path) -> None:
    done = check(tmp_path, "")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, f"{tmp_path}/config.toml: in order")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[agent]\nfeature_gates = { Foo = true }", "agent.feature_gates: unrecognized feature gate: Foo"),
        ('[runtime]\ndefault_rlimits = { nofile = "9:1" }', "runtime.default_rlimits.nofile: the soft limit"),
        ('[runtime]\ndefault_rlimits = { files = "9" }', "runtime.default_rlimits: 'files' is no limit"),
        ('[runtime]\ndefault_sysctls = { "kernel.panic" = "1" }', "runtime.default_sysctls: sysctl 'kernel.panic'"),
        (
            '[api]\nenable_admission_plugins = ["AlwaysPulImages"]',
            'api.enable_admission_plugins: unknown admission plugin: "AlwaysPulImages"',
        ),
        (
            '[api]\ndisable_admission_plugins = ["ClassResources"]',
            "api.disable_admission_plugins: admission plugins cannot be disabled: ClassResources",
        ),
        ("[images]\nparallel_layers = 0", "images.parallel_layers: 0 is less than 1"),
        ("[images]\nmax_layer_bytes = -1", "images.max_layer_bytes: -1 is less than 1"),
        ("[images]\nmax_layer_inodes = 0", "images.max_layer_inodes: 0 is less than 1"),
        ("[images]\nprogress_timeout = 0", "images.progress_timeout: 0 is no time"),
        ("[images]\nprogress_timeout = nan", "images.progress_timeout: nan is no number"),
        (
            '[images]\nallowed_registries = ["https://r.example"]',
            "images.allowed_registries: 'https://r.example' is not",
        ),
        ('[images]\ndocker_config = "config.json"', "images.docker_config: 'config.json' is not an absolute path"),
        (
            '[images]\ncredential_providers = "/x"',
            "images: credential_providers and credential_provider_dir go together",
        ),
        ('[registries."r.example"]\nkey_file = "/x"', 'registries."r.example": key_file without cert_file'),
        ('[runtime]\ncgroup_parent = "a/../b"', "runtime.cgroup_parent: 'a/../b' is not"),
        ('[runtime]\ncgroup_parent = "podkeep"', "runtime.cgroup_parent: 'podkeep' is not"),
        ('[runtime]\ncgroup_parent = "/a/../b"', "runtime.cgroup_parent: '/a/../b' is not"),
        ('[runtime]\ncgroup_parent = "/a/"', "runtime.cgroup_parent: '/a/' is not"),
        ('[runtime]\ncgroup_parent = ""', "runtime.cgroup_parent: '' is not"),
        (
            '[runtime]\ncgroup_driver = "systemd"\ncgroup_parent = "a b.slice"',
            "runtime.cgroup_parent: 'a b.slice' is not the name of a slice",
        ),
        ('[runtime]\ncgroup_driver = "systemd"\ncgroup_parent = "/"', "runtime.cgroup_parent: "),
        ('[runtime]\ncdi_spec_dirs = ["rel"]', "runtime.cdi_spec_dirs: 'rel' is not an absolute path"),
        ('[runtime]\nsocket = "podkeep.sock"', "runtime.socket: 'podkeep.sock' is not an absolute path"),
        (f'[runtime]\nsocket = "/{"x" * 120}"', "CRI socket /x"),
        ('[network]\nbridge = "abcdefghijklmnopqrstuvwxyz0"', "network.bridge: 'abcdefghijklmnopqrstuvwxyz0' is no"),
        ('[network]\nsubnet = "10.0.0.0/31"', "network.subnet: 10.0.0.0/31 is too small"),
        ('[registries."r"]\nmirrors = ["http://"]', "registries.\"r\".mirrors: 'http://' is not"),
        ('[registries."r"]\nmirrors = ["a b"]', "registries.\"r\".mirrors: 'a b' is not"),
        ('[registries."r"]\nmirrors = ["http://[::1"]', "registries.\"r\".mirrors: 'http://[::1' is not"),
        ('[registries."a b"]', "registries.'a b': "),
        ('[registries."http://a"]', "registries.'http://a': "),
        ('[metrics]\naddress = "localhost"', "metrics.address: 'localhost' is neither"),
        ('[streaming]\naddress = "localhost"', "streaming.address: 'localhost' does not appear"),
        ("[streaming]\nport = 70000", "streaming.port: 70000 is no port"),
        ('[agent]\nnode_name = "Node_1"', "agent.node_name: 'Node_1' is no name of a Node"),
        ('[agent.node_labels]\n"a b" = "c"', "agent.node_labels: 'a b' is no key of a label"),
        ('[agent.node_labels]\na = "b c"', "agent.node_labels.a: 'b c' is no value of a label"),
        (
            '[agent.node_labels]\n"node-role.kubernetes.io/worker" = ""',
            "agent.node_labels: 'node-role.kubernetes.io/worker' is not a node's to say",
        ),
        ('[agent]\nregister_with_taints = ["a:NoSchedule", "a=b:NoSchedule"]', "agent.register_with_taints: 'a=b:NoS"),
        ('[agent]\nregister_with_taints = ["a=b:Never"]', "agent.register_with_taints: 'a=b:Never' is not"),
        ('[agent]\nregister_with_taints = ["a b:NoSchedule"]', "agent.register_with_taints: 'a b:NoSchedule': "),
        ('[agent]\ncluster_dns = ["dns.example"]', "agent.cluster_dns: 'dns.example' does not appear"),
        ("[agent]\nmax_pods = 100000", "agent.max_pods: 100000 blocks of 65536 IDs from 65536 on do not fit"),
        ("[agent.crash_loop_back_off]\nmax_container_restart_period = 0.5", "agent.crash_loop_back_off.max_"),
        ('[agent.eviction_hard]\n"memory.free" = "1Gi"', "agent.eviction_hard: unsupported eviction signal"),
        ('[agent.eviction_soft]\n"memory.available" = "1Gi"', "agent.eviction_soft_grace_period: grace period must"),
        (
            '[agent.kube_reserved]\ncpu = "100000"',
            "agent.kube_reserved, agent.system_reserved or agent.eviction_hard: invalid Node Allocatable",
        ),
        ('[agent.kube_reserved]\nmemory = "256MB"', "agent.kube_reserved.memory: '256MB' is not a quantity"),
        ('[agent.system_reserved]\ncpu = "half"', "agent.system_reserved.cpu: 'half' is not a quantity"),
        ('[api.admission.pod_security.defaults]\nenforce = "all"', "api.admission.pod_security: "),
    ],
)
def test_a_value_that_cannot_work(tmp_path: Path, text: str, words: str) -> None:
    done = check(tmp_path, text)
    assert isinstance(done.exception, InvalidArgument), done.output
    assert done.exception.message.startswith(f"{tmp_path}/config.toml: {words}")


@pytest.mark.slow
def test_every_problem_is_told_and_where_it_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("""
nonsense = 1
[runtime]
root = "relative"
pids_limit = -1
sockets = "/x"
default_rlimits = { nofile = "9:1", files = "9" }
[runtime.handlers.one]
root = "/x"
[runtime.handlers.crun]
path = 5
[images]
parallel_layers = "many"
max_layer_bytes = 0
[registries."a b"]
[registries.r]
mirrors = ["a b"]
insecure = "yes"
[agent]
feature_gates = { Foo = true }
[metrics]
address = "localhost"
[mountns]
pin = "relative"
""")
    settings = ("network.subnet=10.0.0.0/33", "streaming.port=seven", 'registries."h:5".insecure=5', "=x")
    invocation = Invocation(config_path=file, debug=False, settings=settings)
    done = CliRunner().invoke(config.command, ["check"], obj=invocation)
    assert isinstance(done.exception, InvalidArgument)
    told = [line.removeprefix("podkeep: ") for line in done.output.splitlines() if line.startswith("podkeep: ")]
    told.append(done.exception.message)
    for words in (
        f"{file}: nonsense: unknown key",
        f"{file}: runtime.root: 'relative' is not an absolute path",
        f"{file}: runtime.pids_limit: -1 is negative",
        f"{file}: runtime.sockets: unknown key",
        f"{file}: runtime.default_rlimits.nofile: the soft limit",
        f"{file}: runtime.default_rlimits: 'files' is no limit",
        f"{file}: runtime.handlers.one: object missing required field `path`",
        f"{file}: runtime.handlers.crun.path: expected `string`, got `integer`",
        f"{file}: images.parallel_layers: expected `integer`, got `string`",
        f"{file}: images.max_layer_bytes: 0 is less than 1",
        f"{file}: registries.'a b': ",
        f"{file}: registries.\"r\".mirrors: 'a b' is not",
        f"{file}: registries.r.insecure: expected `boolean`, got `string`",
        f"{file}: agent.feature_gates: unrecognized feature gate: Foo",
        f"{file}: metrics.address: 'localhost' is neither",
        f"{file}: mountns.pin: 'relative' is not an absolute path",
        "--set network.subnet=10.0.0.0/33: network.subnet: ",
        "--set streaming.port=seven: streaming.port: expected `integer`, got `string`",
        '--set registries."h:5".insecure=5: registries."h:5".insecure: expected `boolean`, got `integer`',
        "setting '=x' is not KEY=VALUE",
    ):
        assert [line for line in told if line.lower().startswith(words.lower())], (words, told)
    assert len(told) == len(set(told))


@pytest.mark.slow
@pytest.mark.parametrize("mirror", ["m", "m:5000", "m_1:5000/p", "http://m/p/q", "https://[::1]:5000", "[::1]:5000"])
def test_mirrors(tmp_path: Path, mirror: str) -> None:
    assert check(tmp_path, f'[registries."r:5000"]\nmirrors = ["{mirror}"]').exit_code == 0


@pytest.mark.slow
def test_certificates_are_read(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    cert, locked = certificate
    none = tmp_path / "none.pem"
    none.write_text("no PEM")
    key = tmp_path / "key.pem"
    argv = ["openssl", "pkey", "-in", str(locked), "-passin", "pass:secret", "-out", str(key)]
    subprocess.run(argv, check=True, capture_output=True, timeout=60)
    tokens, no_tokens = tmp_path / "tokens.csv", tmp_path / "no-tokens.csv"
    tokens.write_text("secret,ann,1\n")
    no_tokens.write_text("secret,ann\n")
    pairs = (
        ("streaming", "tls_cert", "tls_key"),
        ("agent", "tls_cert_file", "tls_private_key_file"),
        ("api", "tls_cert", "tls_key"),
    )
    authorities = (
        ('registries."r"', "ca_file"),
        ("api", "client_ca"),
        ("api", "kubelet_ca"),
        ("agent.authentication.x509", "client_ca_file"),
    )

    def found(section: str, **values: Path) -> str:
        """Return what ``config check`` refuses of a section; nothing, if it finds no fault."""
        done = check(tmp_path, f"[{section}]\n" + "".join(f'{key} = "{value}"\n' for key, value in values.items()))
        assert done.exception is None or isinstance(done.exception, FailedPrecondition)
        return "" if done.exception is None else done.exception.message

    for section, of_cert, of_key in pairs:
        assert found(section, **{of_cert: cert, of_key: key}) == ""
        # A key with a password must not make the daemon ask for one.
        for wrong in (locked, none, tmp_path, tmp_path / "missing"):
            assert f"{section}.{of_cert}" in found(section, **{of_cert: cert, of_key: wrong})
    for section, of_authorities in authorities:
        assert found(section, **{of_authorities: cert}) == ""
        for wrong in (none, key, tmp_path, tmp_path / "missing"):
            assert f"{section}.{of_authorities}" in found(section, **{of_authorities: wrong})
    assert found("api", token_auth_file=tokens) == ""
    for wrong in (no_tokens, tmp_path, tmp_path / "missing"):
        assert "api.token_auth_file" in found("api", token_auth_file=wrong)


def test_only_packages_that_have_the_file_are_named(tmp_path: Path) -> None:
    done = check(tmp_path, '[runtime.handlers.crun]\npath = "/opt/nope"\n')
    assert isinstance(done.exception, FailedPrecondition)
    assert "apt-get" not in done.output
    assert "runtime.handlers.crun.path" in done.output


def test_files_of_registries_and_credentials_are_looked_at(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    provider = {
        "name": "mine",
        "matchImages": ["*.example"],
        "defaultCacheDuration": "1h",
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
    }
    document = {"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig", "providers": [provider]}
    (tmp_path / "plugins.json").write_text(json.dumps(document))
    (tmp_path / "docker.json").write_text("{")
    text = f"""
[images]
docker_config = "{tmp_path}/docker.json"
credential_providers = "{tmp_path}/plugins.json"
credential_provider_dir = "{tmp_path}/plugins"
[registries."r.example"]
cert_file = "{certificate[0]}"
key_file = "{certificate[1]}"
"""
    done = check(tmp_path, text)
    assert isinstance(done.exception, FailedPrecondition)
    assert 'registries."r.example".cert_file' in str(done.exception)
    said = done.output
    assert f"{tmp_path}/docker.json: not valid JSON" in said
    assert f"{tmp_path}/plugins/mine cannot be run" in said

    (tmp_path / "docker.json").write_text("{}")
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins/mine").touch(mode=0o755)
    done = check(tmp_path, text.partition("[registries")[0])
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, f"{tmp_path}/config.toml: in order")


def test_what_class_resources_lack_here_is_told_and_is_no_error(tmp_path: Path) -> None:
    done = check(tmp_path, '[class_resources.types.x]\nhook = "/nosuch/hook"\n[class_resources.types.x.classes.a]\n')
    assert done.exit_code == 0
    assert "its hook /nosuch/hook is not there" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("agent.feature_gates.Foo=true", "agent.feature_gates: unrecognized feature gate: Foo"),
        ("agent.eviction_hard.memory.available=1Gi", "agent.eviction_hard.memory: expected `string`, got `table`"),
        ("runtime.handlers.other.kind=vm", "runtime.handlers.other: object missing required field `path`"),
    ],
)
def test_a_problem_of_a_setting_is_never_the_files(tmp_path: Path, setting: str, words: str) -> None:
    """Also where the problem is with the table that the setting puts something into."""
    file = tmp_path / "config.toml"
    file.write_text("[agent]\nfeature_gates = { ClassResources = true }\n")
    invocation = Invocation(config_path=None, debug=False, settings=("log.level=info", setting))
    said = CliRunner().invoke(config.command, ["check", str(file)], obj=invocation)
    told = [*said.stderr.splitlines(), str(said.exception)]
    assert any(line.removeprefix("podkeep: ").startswith(f"--set {setting}: {words}") for line in told), told
    file.write_text("[agent]\nfeature_gates = { Foo = true }\n")
    invocation = Invocation(config_path=None, debug=False, settings=("log.level=info",))
    said = CliRunner().invoke(config.command, ["check", str(file)], obj=invocation)
    assert str(said.exception).startswith(f"{file}: agent.feature_gates: unrecognized feature gate: Foo")


def test_every_kind_of_daemon_problem_is_told_at_once(tmp_path: Path) -> None:
    said = check(tmp_path, "[agent]\nfeature_gates = { Foo = true }\n[api]\nfeature_gates = { Foo = true }\n")
    told = f"{said.stderr}{said.exception}"
    assert "agent.feature_gates: unrecognized" in told
    assert "api.feature_gates: unrecognized" in told


@pytest.mark.parametrize("text", ['[network]\nsubnet = "abc"\n', '[network]\nsubnet6 = "abc"\n'])
def test_a_problem_is_told_once(tmp_path: Path, text: str) -> None:
    """Also where the value is looked at when it is read, and once more by the daemon that uses it."""
    said = check(tmp_path, text)
    assert f"{said.stderr}{said.exception}".count("'abc'") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('[log]\nlevel = "loud"', "use debug, error, info or warning"),
        ('[images]\nsnapshot_driver = "zfs"', "use auto, directories or erofs"),
        ('[images.artifact_types]\n"a/b" = "maybe"', "use allow, deny or files"),
    ],
)
def test_a_word_that_is_none_of_a_few_is_answered_with_them(tmp_path: Path, text: str, hint: str) -> None:
    error = check(tmp_path, text).exception
    assert isinstance(error, InvalidArgument)
    assert "invalid enum value" in error.message
    assert error.hint == hint
