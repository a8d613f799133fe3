"""Reading ExecStart= out of a unit's files, and wrapping it."""

from __future__ import annotations

from pathlib import Path

import pytest

from podkeep.base.errors import FailedPrecondition, InvalidArgument
from podkeep.mountns import execstart
from podkeep.mountns.execstart import Entry, Part, Unit
from podkeep.mountns.namespace_ref import DEFAULT_PIN, KUBENS_PIN

ENTRY = Entry(pin=DEFAULT_PIN)
WRAPPER = f"/usr/bin/nsenter --mount={DEFAULT_PIN} --"

KUBEADM = """\
# /lib/systemd/system/kubelet.service
[Unit]
Description=kubelet: The Kubernetes Node Agent
Wants=network-online.target

[Service]
ExecStart=/usr/bin/kubelet
Restart=always

[Install]
WantedBy=multi-user.target

# /usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf
# Note: This dropin only works with kubeadm and kubelet v1.11+
[Service]
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS \\
    # a comment does not end the line
    $KUBELET_EXTRA_ARGS
"""


def unit(*service: str, name: str = "x.service") -> Unit:
    return execstart.read(name, [Part(path=name, text="\n".join(["[Service]", *service, ""]))])


def wrapped(*service: str, entry: Entry = ENTRY) -> str:
    return execstart.wrap(unit(*service), entry)


def test_the_command_is_the_one_after_all_drop_ins() -> None:
    parts = execstart.split(KUBEADM, "kubelet.service")
    assert [part.path for part in parts] == [
        "/lib/systemd/system/kubelet.service",
        "/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf",
    ]
    kubelet = execstart.read("kubelet.service", parts)
    command = execstart.command_of(kubelet)
    assert command.split() == [
        "/usr/bin/kubelet",
        "$KUBELET_CONFIG_ARGS",
        "$KUBELET_KUBEADM_ARGS",
        "$KUBELET_EXTRA_ARGS",
    ]
    assert execstart.wrap(kubelet, ENTRY) == f"{WRAPPER} {command}"


def test_a_text_without_headings_is_one_file() -> None:
    text = "# a vendor's remark about /etc/x.service\n[Service]\nExecStart=/bin/x\n"
    assert execstart.split(text, "x.service") == [Part(path="x.service", text=text)]


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("[Service]\nExecStart = /bin/a  b \n", ("/bin/a  b",)),
        ("[Service]\r\nExecStart=/bin/a\\\r\n b\r\n", ("/bin/a  b",)),
        ("[Unit]\nExecStart=/bin/a\n", ()),
        ("ExecStart=/bin/a\n", ()),
        ("[Service]\nExecStart=/bin/a\n[Install]\nExecStart=/bin/b\n", ("/bin/a",)),
        ("[Service]\nExecStart=/bin/a\nExecStart=\nExecStart=/bin/b\n", ("/bin/b",)),
        ("[Service]\nExecStart=/bin/a\nExecStart=/bin/b\n", ("/bin/a", "/bin/b")),
        ("[Service]\n  ; no\n# no\nExecStart=/bin/a \\\n; no\n\n", ("/bin/a",)),
        ("[Service]\nExecStart=/bin/a \\\\\nExecStart=/bin/b", ("/bin/a \\\\", "/bin/b")),
        ("[Service]\nExecStart=/bin/a \\", ("/bin/a",)),
        ("\ufeff[Service]\nExecStart=/bin/a=b\n", ("/bin/a=b",)),
    ],
)
def test_lines_are_read_as_systemd_reads_them(text: str, commands: tuple[str, ...]) -> None:
    assert execstart.read("x.service", [Part(path="x", text=text)]).commands == commands


def test_each_file_begins_outside_of_a_section() -> None:
    parts = [Part(path="a", text="[Service]\nExecStart=/bin/a"), Part(path="b", text="ExecStart=/bin/b\n")]
    assert execstart.read("x.service", parts).commands == ("/bin/a",)


@pytest.mark.requirement("M10", "M15")
@pytest.mark.parametrize(
    ("command", "after"),
    [
        ("/usr/bin/crio $OPTIONS ${ONE} %i --x='a b'", f"{WRAPPER} /usr/bin/crio $OPTIONS ${{ONE}} %i --x='a b'"),
        ("-/bin/a", f"-{WRAPPER} /bin/a"),
        ("!!/bin/a", f"!!{WRAPPER} /bin/a"),
        ("+-/bin/a", f"+-{WRAPPER} /bin/a"),
        ('"-/bin/a b" c', f'-{WRAPPER} "/bin/a b" c'),
        ("kubelet --v=2", f"{WRAPPER} kubelet --v=2"),
        ("@/usr/bin/a a --b", f"{WRAPPER} /usr/bin/a --b"),
        ("-@/usr/bin/a /opt/a", f"-{WRAPPER} /usr/bin/a"),
        ("/bin/a \\; b", f"{WRAPPER} /bin/a \\; b"),
        ("/bin/a ';' b", f"{WRAPPER} /bin/a ';' b"),
    ],
)
def test_a_wrapped_command_keeps_its_text_and_prefixes(command: str, after: str) -> None:
    assert wrapped(f"ExecStart={command}") == after


def test_without_replacement_of_variables_dollars_stay() -> None:
    entry = Entry(pin=Path("/run/a$b/mnt"))
    assert wrapped("ExecStart=/bin/a", entry=entry) == '/usr/bin/nsenter --mount="/run/a$$b/mnt" -- /bin/a'
    assert wrapped("ExecStart=:/bin/a", entry=entry) == ":/usr/bin/nsenter --mount=/run/a$b/mnt -- /bin/a"


def test_the_working_directory_is_kept() -> None:
    command = wrapped("ExecStart=/usr/bin/kubelet $A", "WorkingDirectory=/var/lib/ku be $/%n")
    assert command == f'{WRAPPER} /usr/bin/env "--chdir=/var/lib/ku be $$/%n" /usr/bin/kubelet $A'
    assert wrapped("ExecStart=/bin/a", "WorkingDirectory=/x", "WorkingDirectory=") == f"{WRAPPER} /bin/a"


@pytest.mark.requirement("M14")
@pytest.mark.parametrize("program", ["/opt/podkeep/bin/podkeep", "/usr/bin/python3 -m podkeep"])
def test_podkeep_gets_an_option(program: str) -> None:
    command = f"{program} --config /etc/podkeep/config.toml runtime"
    assert wrapped(f"ExecStart={command}") == f"{command} --mount-namespace={DEFAULT_PIN}"


def test_an_option_is_not_put_behind_the_end_of_options() -> None:
    assert wrapped("ExecStart=/bin/podkeep runtime --") == f"{WRAPPER} /bin/podkeep runtime --"


@pytest.mark.parametrize(
    ("service", "said"),
    [
        (["Type=oneshot", "ExecStart=/bin/a", "ExecStart=/bin/b"], "several commands"),
        (["ExecStart=/bin/a ; /bin/b"], "several commands"),
        (["Type=oneshot"], "has no ExecStart="),
        (["ExecStart=|echo $$HOME"], "a shell runs"),
        (["ExecStart=@/usr/bin/busybox sh"], "gives its program another name"),
        (["ExecStart=/opt/a$b/c"], "has a $ in it"),
        (["ExecStart=/bin/a", "User=nobody"], "runs as user nobody"),
        (["ExecStart=/bin/a", "ProtectSystem=full", "PrivateTmp=yes"], "PrivateTmp=yes, ProtectSystem=full"),
        (["ExecStart=/bin/a", "ReadOnlyPaths=/etc"], "ReadOnlyPaths=/etc"),
        (["ExecStart=/bin/a", "WorkingDirectory=~"], "WorkingDirectory=~"),
        (["ExecStart=/bin/a", "WorkingDirectory=-/srv"], "WorkingDirectory=-/srv"),
        (["ExecStart=/bin/a", "PrivateNetwork=yes"], "PrivateNetwork=yes"),
        (["ExecStart=/bin/podkeep runtime", "User=nobody"], "runs as user nobody"),
        (["ExecStart=/bin/podkeep runtime", "PrivateTmp=yes", "ProtectSystem=strict"], "PrivateTmp=yes, ProtectSystem"),
    ],
)
def test_what_a_wrapped_daemon_would_lose_is_refused(service: list[str], said: str) -> None:
    with pytest.raises(FailedPrecondition, match=r"x\.service") as refused:
        wrapped(*service)
    assert said in refused.value.message


@pytest.mark.parametrize("command", ["/bin/a", "!/bin/a", "/bin/podkeep runtime"])
@pytest.mark.parametrize(
    "settings",
    [
        ["RestrictNamespaces=yes"],
        ["RestrictNamespaces=net user"],
        ["RestrictNamespaces=~user mnt"],
        ["RestrictNamespaces=no", "RestrictNamespaces=~mnt"],
        ["CapabilityBoundingSet="],
        ["CapabilityBoundingSet=CAP_NET_ADMIN CAP_SYS_CHROOT"],
        ["CapabilityBoundingSet=~cap_sys_admin"],
        ["CapabilityBoundingSet=", "CapabilityBoundingSet=~CAP_KILL"],
        ["CapabilityBoundingSet=CAP_SYS_ADMIN", "CapabilityBoundingSet=CAP_KILL"],
        ["SystemCallFilter=~@mount setns"],
        ["SystemCallFilter=@basic-io read:EPERM"],
        ["SystemCallFilter=@system-service", "SystemCallFilter=~@process:EPERM"],
    ],
)
def test_settings_that_keep_it_from_entering_are_refused(command: str, settings: list[str]) -> None:
    with pytest.raises(FailedPrecondition, match=r"x\.service has") as refused:
        wrapped(f"ExecStart={command}", *settings)
    assert settings[-1] in refused.value.message
    assert wrapped("ExecStart=+/bin/a", *settings) == f"+{WRAPPER} /bin/a", "with all privileges"


@pytest.mark.parametrize(
    "settings",
    [
        ["RestrictNamespaces=no"],
        ["RestrictNamespaces=yes", "RestrictNamespaces="],
        ["RestrictNamespaces=mnt net"],
        ["RestrictNamespaces=net", "RestrictNamespaces=mnt"],
        ["RestrictNamespaces=~user"],
        ["CapabilityBoundingSet=~CAP_SYS_MODULE"],
        ["CapabilityBoundingSet=", "CapabilityBoundingSet=~"],
        ["CapabilityBoundingSet=CAP_SYS_ADMIN", "CapabilityBoundingSet=CAP_SYS_CHROOT"],
        ["SystemCallFilter=@system-service @mount"],
        ["SystemCallFilter=~@clock @obsolete"],
        ["SystemCallFilter=~setns", "SystemCallFilter="],
        ["SystemCallFilter=~@process", "SystemCallFilter=setns"],
    ],
)
def test_settings_that_let_it_enter_are_no_obstacle(settings: list[str]) -> None:
    assert wrapped("ExecStart=/bin/a", *settings) == f"{WRAPPER} /bin/a"


@pytest.mark.parametrize(
    "service",
    [
        ["ExecStart=/bin/a", "ProtectSystem=full", "ProtectSystem=no", "ProtectProc=default", "PrivateTmp=false"],
        ["ExecStart=/bin/a", "ReadOnlyPaths=/etc", "ReadOnlyPaths="],
        ["ExecStart=+/bin/a", "User=nobody", "ProtectSystem=full"],
        ["ExecStart=!/bin/a", "User=nobody"],
        ["ExecStart=/bin/a", "MountFlags=shared", "User=root"],
    ],
)
def test_settings_that_take_nothing_away_are_no_obstacle(service: list[str]) -> None:
    assert WRAPPER in wrapped(*service)


def test_a_command_that_does_not_end_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="inside of quotes"):
        wrapped("ExecStart=/bin/a 'b")


@pytest.mark.parametrize(
    ("command", "pin", "inside"),
    [
        (f"{WRAPPER} /bin/a", DEFAULT_PIN, True),
        ("nsenter -m/run/container-mount-namespace/mnt /bin/a", DEFAULT_PIN, True),
        ("-/bin/nsenter --mount=%t/container-mount-namespace/mnt -- /bin/a", DEFAULT_PIN, True),
        ("/usr/bin/nsenter -t 1 --net /bin/a --mount=/x", DEFAULT_PIN, False),
        (f"/usr/bin/nsenter -t 1 --net --mount={DEFAULT_PIN} /bin/a", DEFAULT_PIN, True),
        ("/usr/local/bin/nsenterCmns /bin/a", DEFAULT_PIN, True),
        (f"/bin/podkeep runtime --mount-namespace {DEFAULT_PIN}", DEFAULT_PIN, True),
        (f"/bin/podkeep --set a=b runtime --mount-namespace={DEFAULT_PIN}", DEFAULT_PIN, True),
        ("/bin/podkeep runtime", DEFAULT_PIN, False),
        ("/bin/other --mount-namespace=/x/y/z", DEFAULT_PIN, False),
        ("/usr/local/bin/kubenswrapper /usr/bin/kubelet", KUBENS_PIN, True),
        ("/usr/local/bin/kubenswrapper /usr/bin/kubelet", DEFAULT_PIN, False),
    ],
)
def test_who_gets_there_already_is_recognised(command: str, pin: Path, inside: bool) -> None:
    assert execstart.enters(unit(f"ExecStart={command}"), pin) is inside


def test_crio_of_openshift_follows_kubensmnt() -> None:
    crio = unit("EnvironmentFile=-/run/kubens/env", "ExecStart=/usr/bin/crio $CRIO_CONFIG_OPTIONS")
    assert execstart.enters(crio, KUBENS_PIN)
    assert not execstart.enters(crio, DEFAULT_PIN), "it would not find the variable"


@pytest.mark.parametrize(
    "command", ["/bin/nsenter --mount=/run/kubens/mnt /bin/a", "/bin/podkeep runtime --mount-namespace=/run/kubens/mnt"]
)
def test_a_daemon_of_another_namespace_is_not_moved(command: str) -> None:
    with pytest.raises(FailedPrecondition, match="pinned at /run/kubens/mnt"):
        execstart.enters(unit(f"ExecStart={command}"), DEFAULT_PIN)


@pytest.mark.parametrize(
    "options", ["-t 1 -m", "--target 1 --mount --", "--target=1 -n -m", "-m -t 1", "--all -t 1", "-a"]
)
def test_a_daemon_that_nsenter_takes_elsewhere_is_refused(options: str) -> None:
    with pytest.raises(FailedPrecondition, match=r"x\.service .* nsenter"):
        execstart.enters(unit(f"ExecStart=nsenter {options} kubelet --mount=/x/y/z"), DEFAULT_PIN)
