"""The attacks of docs/isolation.md: what each one tries, and how it ends for whom.

Each is made by the same program (``programs/attacks.py``, ``programs/escaped.py``) three times: as the machine's root,
from a pod with a block of IDs of its own, and from a pod that has the one mapping of its node. None changes anything on
the machine when it is allowed, so that some "end" with an error that comes after the permission was checked. They are
made on two kernels (``attacked``); how one ends does not depend on which, but not every kernel has what is attacked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from support.escaped import DONE


class Who(StrEnum):
    """Whose processes attack."""

    ROOT = "root"
    """A privileged pod in the user namespace of the machine."""
    BLOCK = "block"
    """A privileged pod with ``hostUsers: false``."""
    NODE = "node"
    """The same on a node with one mapping for all pods."""


class By(StrEnum):
    """What the attacking process has."""

    POD = "pod"
    """What a privileged container has."""
    ESCAPED = "escaped"
    """Besides, a descriptor of the machine's ``/``, its process IDs and its network: an escape that has succeeded."""


@dataclass(frozen=True, kw_only=True)
class Attack:
    """One row.

    :param name: a function of the program, and what is attacked if there are several targets: ``read secret``.
    :param what: what is tried, for people.
    :param root: how it ends for the machine's root.
    :param pod: how it ends with a user namespace.
    :param node: the same with one mapping for the node, if that differs.
    :param needs: a path that is there if the kernel has what is attacked, if not having it is no ENOSYS.
    :param lacking: what is said of a kernel that does not have it; every machine has what is attacked if that is empty.
    :param note: why the outcome is as it is, where that is not plain.
    """

    name: str
    what: str
    by: By = By.POD
    root: str = DONE
    pod: str = "EPERM"
    node: str = ""
    needs: str = ""
    lacking: str = ""
    note: str = ""

    def lacks(self, ended: str) -> str:
        """Return what this machine is without, so that nobody can be attacked there; empty if it has it.

        :param ended: how the attack ended here.
        """
        if self.needs and not Path(self.needs).exists():
            return self.lacking
        return self.lacking if ended == "ENOSYS" else ""

    def expected(self, who: Who) -> str:
        """Return how it has to end."""
        return self.root if who is Who.ROOT else (who is Who.NODE and self.node) or self.pod


SAME_USERS = "pods with one mapping are the same users of the machine"
_MODULES = {"needs": "/proc/modules", "lacking": "built without modules"}


def _file(name: str, what: str, **more: str) -> Attack:
    return Attack(name=name, what=what, by=By.ESCAPED, **{"pod": "EACCES"} | more)


ATTACKS: tuple[Attack, ...] = (
    _file("take_over runtime", "overwrite the runtime's program by `/proc/PID/exe` (CVE-2019-5736)"),
    _file("overwrite release_agent", "set `release_agent`, a program that the kernel runs as root (CVE-2022-0492)"),
    Attack(name="set_core_pattern", what="set `core_pattern`, a program that the kernel runs as root", pod="EACCES"),
    _file("read secret", "read a file of root's by a leaked descriptor of `/` (CVE-2024-21626)"),
    _file("overwrite runtime", "overwrite a program of root's by a leaked descriptor of `/`"),
    _file("uring secret", "open a file of root's with io_uring, which works in a thread of the kernel"),
    _file("read private", "read a file of the machine's user 1000, as user 1000 of the pod"),
    Attack(name="open_by_handle", what="open a file by its inode (CVE-2014-3519)"),
    Attack(
        name="signal other",
        what="signal a process of another pod, as the same user",
        by=By.ESCAPED,
        node=DONE,
        note=SAME_USERS,
    ),
    Attack(name="trace other", what="trace a process of another pod, as the same user", by=By.ESCAPED),
    _file("list other's root", "look into the file system of another pod, by `/proc/PID/root`"),
    _file("read other's file", "read a file of another pod, as the same user", node=DONE, note=SAME_USERS),
    _file("list pods", "read tokens and Secrets of other pods, in the agent's directory"),
    _file("reach runtime's socket", "ask the runtime to do something, by its socket"),
    Attack(name="find_key", what="read a key of root's in its keyring", pod="ENOKEY"),
    _file("connect socket", "connect to an abstract socket that takes root's connections alone (CVE-2020-15257)"),
    Attack(name="join", what="join the machine's mount namespace by a leaked descriptor", by=By.ESCAPED),
    Attack(name="load_module", what="load a module from memory", root="ENOEXEC", **_MODULES),
    Attack(name="load_module_file", what="load a module from a file", root="ENOEXEC", **_MODULES),
    Attack(name="set_clock", what="set the clock", root="EINVAL"),
    Attack(name="adjust_clock", what="make the clock faster or slower"),
    Attack(name="make_device", what="make a node of a device"),
    Attack(name="mount_disk", what="mount a disk"),
    _file("read disk", "read a disk"),
    _file("open memory", "open the machine's memory", needs="/dev/mem", lacking="built without `/dev/mem`"),
    Attack(name="use_ports", what="use the machine's I/O ports", lacking="built without ioperm(2)"),
    Attack(name="read_kernel_log", what="read the kernel's log"),
    Attack(name="set_console_level", what="keep the kernel's messages from the console", root="EINVAL"),
    Attack(name="fault_for_the_kernel", what="hold up page faults of the kernel with userfaultfd"),
    Attack(name="load_bpf", what="load a program of eBPF"),
    Attack(name="swap_on", what="swap to a file", root="ENOENT"),
    Attack(name="account", what="record the processes of the machine with acct(2)", root="ENOENT"),
    Attack(
        name="kexec",
        what="load another kernel",
        root="EINVAL",
        needs="/sys/kernel/kexec_loaded",
        lacking="built without kexec",
    ),
    Attack(name="reboot", what="reboot", by=By.ESCAPED, root="EINVAL"),
    Attack(name="set_sysctl", what="set a sysctl of the machine, `vm.swappiness`", pod="EACCES"),
    Attack(
        name="trigger_sysrq",
        what="open `/proc/sysrq-trigger`, which can make the machine crash",
        pod="EACCES",
        needs="/proc/sysrq-trigger",
        lacking="built without SysRq",
    ),
)


Outcomes = Mapping[str, str]
"""How each attack ended, by its name; of one that the machine lacks, what it lacks."""


def outcomes(found: Mapping[str, str]) -> Outcomes:
    """Return how attacks that were made on this machine ended."""
    return {attack.name: attack.lacks(found[attack.name]) or found[attack.name] for attack in ATTACKS}


def wrong(who: Who, found: Mapping[str, str]) -> list[str]:
    """Return the attacks on this machine that ended otherwise than they must; what it lacks must fail somehow."""
    ends = [(attack, found[attack.name]) for attack in ATTACKS]
    return [
        f"{attack.name}: {end}, not {attack.expected(who)}"
        for attack, end in ends
        if (end == DONE if attack.lacks(end) else end != attack.expected(who))
    ]
