"""The nested machine: Debian 12 with systemd as PID 1, pure cgroup v2 and Debian's kernel, emulated by qemu.

Owns the processes of one machine (qemu and the connection of ssh) and what is done inside. What it boots is made by
support/nested/build.py and support/nested/checkout.py. Its disks are thrown away: each machine starts as new. It is
emulated in software, so it is ten times as slow as the machine it is on, and needs nothing of it but memory.

It has no network but a forwarded port of the SSH server on loopback, which the kernel chooses.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from support.nested import qmp
from support.nested.build import CACHE, REPOSITORY, Image, NestedError, image, mortal
from support.nested.checkout import make_disk

BOOT_TIMEOUT_S = 240.0
"""Twelve seconds are usual on an idle machine."""
POWER_OFF_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 60
STALE_S = 3600.0
POLL_S = 0.1
ROOMY_MIB = 6144
"""For 110 pods at once, in the machine that a person starts."""
CPU = "max,la57=off,smap=off,smep=off,avx=off,avx2=off,erms=off,fsrm=off"
"""Without what makes a real processor safer or faster, and an emulated one slower: page tables of five levels, checks
at each access of the kernel to a program's memory, and instructions that are emulated byte by byte."""
EMULATED = ("norandmaps", "mitigations=off")
"""Words for the kernel: with random addresses, qemu would translate each program anew each time it starts, which makes
a start five times as slow; and the emulated processor leaks nothing by speculation."""
CONSOLE_LINES = 120
"""Of the serial console, in the message of a failure: what a kernel says of its crash, whose reason comes first."""
ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[a-zA-Z]|[()][A-Z0-9]|[c=>78])|\r")


class Machine:
    """One machine, up between :meth:`start` and :meth:`close`; a context manager, too.

    :param cpus: with more than one, each of them is slower: atomic instructions must be so here, too.
    :param append: words for the kernel's command line, such as ``systemd.unified_cgroup_hierarchy=0``.
    """

    def __init__(self, *, memory_mib: int = 2048, cpus: int = 1, append: Sequence[str] = ()) -> None:
        self.memory_mib = memory_mib
        self.cpus = cpus
        self.append = tuple(append)
        self._image: Image | None = None
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._master: subprocess.Popen[bytes] | None = None
        self._port = 0
        self._forwarded: dict[Path, str] = {}
        """Sockets here, and where in the machine they lead."""
        self._last_console = ""

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Boot, and wait until commands can be run.

        :raises NestedError: if it does not come up; nothing of it is left then.
        """
        if os.geteuid() != 0:
            raise NestedError("the nested machine is root's: run `make nested` as root")
        self._image = image()
        self._directory = Path(tempfile.mkdtemp(prefix="nested-"))
        try:
            self._boot(self._image, self._directory)
            self._wait_for_boot(1)
            self._connect()
        except BaseException:
            self._end()
            raise
        return self

    def close(self) -> None:
        """Power off as an administrator would, or pull the plug if that does not work; can be called again."""
        try:
            if self._process is not None and self._process.poll() is None:
                with suppress(NestedError, subprocess.TimeoutExpired):
                    self.run("systemctl poweroff", timeout=POWER_OFF_TIMEOUT_S / 2)
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(POWER_OFF_TIMEOUT_S)
        finally:
            self._end()

    def reboot(self) -> None:
        """Reboot, and wait until commands can be run; disks stay, what was in memory does not."""
        boots = self._boots()
        with suppress(NestedError):  # the connection may end before the answer is here
            self.run("systemctl reboot")
        self._wait_for_boot(boots + 1)
        self._connect()

    def cut_power(self) -> None:
        """End everything at once, boot, and wait until commands can be run; connections end before it boots.

        What the kernel had not written to a disk yet is lost, what it had stays: the disk has no memory of its own
        that would lose it.
        """
        assert self._directory is not None, "the nested machine is not started"
        boots = self._boots()
        qmp.reset(self._directory / "qmp")
        self._disconnect()
        self._wait_for_boot(boots + 1)
        self._connect()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Process ID of qemu."""
        assert self._process is not None, "the nested machine is not started"
        return self._process.pid

    @property
    def console(self) -> str:
        """All of the serial console since the first boot, without escape sequences; kept after the end."""
        if self._directory is not None:
            with suppress(FileNotFoundError):
                text = (self._directory / "console").read_text(errors="replace")
                self._last_console = ESCAPES.sub("", text)
        return self._last_console

    # --- commands -----------------------------------------------------------------------------------------------------

    def run(
        self, command: Sequence[str] | str, *, stdin: bytes | str = b"", timeout: float = 60, check: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run a program, or a string by ``sh``, as root in ``/root``, and return its exit status and what it wrote.

        What is not UTF-8 can be had by ``.stdout.encode(errors="surrogateescape")``. Something for the background is
        best started with ``systemd-run``.

        :param timeout: in seconds; the command and its children are killed after it.
        :param check: a status other than 0 is an error.
        :raises subprocess.TimeoutExpired: with what it had written.
        :raises AssertionError: with both outputs and the console's last lines, if ``check`` says so.
        :raises NestedError: if the connection is lost.
        """
        done = self._run(command, stdin.encode() if isinstance(stdin, str) else stdin, timeout)
        if check and done.returncode != 0:
            raise AssertionError(self._failure(done))
        return subprocess.CompletedProcess(done.args, done.returncode, _text(done.stdout), _text(done.stderr))

    def podkeep(
        self, *arguments: str, stdin: bytes | str = b"", timeout: float = 120, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run podkeep of this checkout; see :meth:`run`."""
        return self.run(["podkeep", *arguments], stdin=stdin, timeout=timeout, check=check)

    def command(self, command: Sequence[str] | str) -> list[str]:
        """Return a command line of this machine that runs ``command`` in the nested one, for ``subprocess.Popen``."""
        text = command if isinstance(command, str) else shlex.join(command)
        return [*self._ssh(), "-T", "-S", self._control(), "-o", "ProxyCommand=false", "root@nested", text]

    def forward(self, remote: Path | str) -> Path:
        """Return a unix socket here that leads to the one at ``remote``, also after the machine has booted again."""
        assert self._directory is not None, "the nested machine is not started"
        local = self._directory / f"forwarded-{len(self._forwarded)}"
        self._forwarded[local] = str(remote)
        self._forward(local)
        return local

    def shell(self) -> int:
        """Run a shell on the terminal of this process, and return its exit status."""
        return subprocess.run(
            [*self._ssh(), "-t", "-S", self._control(), "root@nested", "bash -l"], check=False
        ).returncode

    # --- files --------------------------------------------------------------------------------------------------------

    def put(self, local: Path | str, remote: Path | str, *, timeout: float = 300) -> None:
        """Copy a file or a directory, merged with what is there; ``remote`` is its new name. Modes are kept."""
        local, target = Path(local), shlex.quote(str(remote))
        parent = shlex.quote(str(Path(remote).parent))
        if local.is_dir():
            packed = subprocess.run(["tar", "-C", str(local), "-cf", "-", "."], check=True, capture_output=True).stdout
            self._checked(f"mkdir -p {target} && tar -C {target} -xpf - --numeric-owner", packed, timeout)
        else:
            mode = f"{local.stat().st_mode & 0o7777:o}"
            store = f"mkdir -p {parent} && cat >{target} && chmod {mode} {target}"
            self._checked(store, local.read_bytes(), timeout)

    def get(self, remote: Path | str, local: Path | str, *, timeout: float = 300) -> None:
        """Copy a file or a directory to here; ``local`` is its new name. Modes are kept."""
        source, local = shlex.quote(str(remote)), Path(local)
        mode, kind = self._checked(f"stat -L -c '%a %F' {source}", b"", timeout).decode().strip().split(" ", 1)
        if kind == "directory":
            packed = self._checked(f"tar -C {source} -cf - .", b"", timeout)
            local.mkdir(parents=True, exist_ok=True)
            unpack = ["tar", "-C", str(local), "-xpf", "-", "--numeric-owner"]
            subprocess.run(unpack, input=packed, check=True, capture_output=True)
        else:
            local.write_bytes(self._checked(f"cat {source}", b"", timeout))
            local.chmod(int(mode, 8))

    def write(self, remote: Path | str, text: str, mode: int = 0o644) -> None:
        """Write a file, and directories that are missing above it."""
        target, parent = shlex.quote(str(remote)), shlex.quote(str(Path(remote).parent))
        self._checked(f"mkdir -p {parent} && cat >{target} && chmod {mode:o} {target}", text.encode(), 60)

    def read(self, remote: Path | str) -> str:
        """Return what a file holds."""
        return _text(self._checked(["cat", "--", str(remote)], b"", 60))

    # --- inside -------------------------------------------------------------------------------------------------------

    def _boot(self, boot: Image, directory: Path) -> None:
        # Beside what is linked into it; those of killed runs are removed after a while.
        for old in CACHE.glob("checkout-*"):
            if time.time() - old.stat().st_mtime > STALE_S:
                shutil.rmtree(old, ignore_errors=True)
        checkout = Path(tempfile.mkdtemp(prefix="checkout-", dir=CACHE)) / "disk"
        try:
            make_disk(checkout)
            with (directory / "qemu.log").open("wb") as log:
                # In a process group of its own: a key that interrupts the tests must not pull the plug.
                self._process = subprocess.Popen(
                    self._qemu(boot, directory, checkout),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    process_group=0,
                )
            deadline = time.monotonic() + BOOT_TIMEOUT_S
            while (port := qmp.forwarded_port(directory / "qmp")) is None:
                self._check_alive(deadline)
            self._port = port
        finally:
            shutil.rmtree(checkout.parent)

    def _qemu(self, boot: Image, directory: Path, checkout: Path) -> list[str]:
        words = ("console=ttyS0", "net.ifnames=0", f"nested.checkout={REPOSITORY}", *EMULATED, *self.append)
        disk = "format=raw,if=virtio,snapshot=on,cache=unsafe"
        parts: dict[str, str] = {
            "-machine": "q35",
            # KVM in a virtual machine may hang its guest; software works everywhere.
            "-accel": "tcg,thread=multi",
            "-cpu": CPU,
            "-smp": str(self.cpus),
            "-m": str(self.memory_mib),
            "-display": "none",
            "-kernel": str(boot.kernel),
            "-initrd": str(boot.initrd),
            "-append": " ".join(words),
            "-netdev": "user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:0-:22",
            "-qmp": f"unix:{directory / 'qmp'},server=on,wait=off",
        }
        # With the last, qemu ends when the kernel panics.
        devices = ("virtio-net-pci,netdev=net,romfile=", "virtio-rng-pci", "pvpanic-pci")
        return [
            *mortal(),
            *("qemu-system-x86_64", "-nodefaults", "-no-user-config"),
            *(word for pair in parts.items() for word in pair),
            *(word for file in (boot.disk, checkout) for word in ("-drive", f"file={file},{disk}")),
            *(word for device in devices for word in ("-device", device)),
            # The first is the console; on the second the machine says that it is up.
            *(word for name in ("console", "ready") for word in ("-serial", f"file:{directory / name}")),
        ]

    def _boots(self) -> int:
        assert self._directory is not None
        try:
            return (self._directory / "ready").read_bytes().count(b"ready")
        except FileNotFoundError:
            return 0

    def _wait_for_boot(self, number: int) -> None:
        deadline = time.monotonic() + BOOT_TIMEOUT_S
        while self._boots() < number:
            self._check_alive(deadline)

    def _check_alive(self, deadline: float) -> None:
        """Sleep a moment, and raise if there is nothing more to wait for."""
        assert self._process is not None
        assert self._directory is not None
        try:
            status = self._process.wait(POLL_S)
        except subprocess.TimeoutExpired:
            if time.monotonic() > deadline:
                raise NestedError(f"the nested machine is not up in time.\n{self._console_end()}") from None
            console = self._directory / "console"
            if console.exists() and b"Kernel panic" in console.read_bytes():
                raise NestedError(f"the nested machine's kernel panicked.\n{self._console_end()}") from None
        else:
            log = (self._directory / "qemu.log").read_text(errors="replace")
            raise NestedError(f"qemu ended with {status} while the machine boots: {log}\n{self._console_end()}")

    def _connect(self) -> None:
        """Open the connection that all commands share."""
        assert self._directory is not None
        self._disconnect()
        control = Path(self._control())
        options = ("-o", f"ConnectTimeout={CONNECT_TIMEOUT_S}", "-p", str(self._port), "-M", "-S", str(control), "-N")
        self._master = subprocess.Popen(
            [*mortal(), *self._ssh(), *options, "root@127.0.0.1"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            process_group=0,
        )
        while not control.is_socket():
            with suppress(subprocess.TimeoutExpired):
                self._master.wait(POLL_S)
                assert self._master.stderr is not None
                said = self._master.stderr.read().decode(errors="replace")
                raise NestedError(f"cannot connect to the nested machine: {said}\n{self._console_end()}")
        for local in self._forwarded:
            self._forward(local)

    def _forward(self, local: Path) -> None:
        where = f"{local}:{self._forwarded[local]}"
        command = [*self._ssh(), "-S", self._control(), "-O", "forward", "-L", where, "root@nested"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise NestedError(f"{where} cannot be forwarded: {done.stderr}")

    def _disconnect(self) -> None:
        if self._master is not None:
            self._master.kill()
            self._master.wait()
            assert self._master.stderr is not None
            self._master.stderr.close()
            self._master = None
        for path in (Path(self._control()), *self._forwarded):
            path.unlink(missing_ok=True)

    def _ssh(self) -> list[str]:
        assert self._image is not None, "the nested machine is not started"
        options = {
            "BatchMode": "yes",
            "IdentitiesOnly": "yes",
            "IdentityFile": str(self._image.key),
            "UserKnownHostsFile": str(self._image.known_hosts),
            "HostKeyAlias": "nested",
            "StrictHostKeyChecking": "yes",
            "LogLevel": "ERROR",
            # A machine that hangs is found out in the end.
            "ServerAliveInterval": "15",
            "ServerAliveCountMax": "8",
        }
        return ["ssh", "-F", "none", *(word for key, value in options.items() for word in ("-o", f"{key}={value}"))]

    def _control(self) -> str:
        assert self._directory is not None, "the nested machine is not started"
        return str(self._directory / "ssh")

    def _run(self, command: Sequence[str] | str, stdin: bytes, timeout: float) -> subprocess.CompletedProcess[bytes]:
        """Run a command; its first line of standard error is the shell's process ID, which is its session, too."""
        text = command if isinstance(command, str) else shlex.join(command)
        with subprocess.Popen(
            self.command(f"echo $$ >&2\n{text}"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            try:
                stdout, said = process.communicate(stdin, timeout)
            except subprocess.TimeoutExpired as expired:
                session, _, stderr = (expired.stderr or b"").partition(b"\n")
                process.kill()
                if session.isdigit():
                    self._run(["pkill", "-KILL", "--session", session.decode()], b"", 60)
                raise subprocess.TimeoutExpired(text, timeout, expired.stdout, stderr) from None
            except BaseException:
                process.kill()
                raise
        session, _, stderr = said.partition(b"\n")
        if not session.isdigit() or (process.returncode == 255 and self._is_lost()):
            raise NestedError(f"lost the nested machine while it ran {text!r}: {_text(said)}\n{self._console_end()}")
        return subprocess.CompletedProcess(text, process.returncode, stdout, stderr)

    def _is_lost(self) -> bool:
        """Return whether the connection is gone; ssh's own status for that may be a command's, too."""
        assert self._master is not None
        try:
            self._master.wait(0.5)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _checked(self, command: Sequence[str] | str, stdin: bytes, timeout: float) -> bytes:
        done = self._run(command, stdin, timeout)
        if done.returncode != 0:
            raise AssertionError(self._failure(done))
        return done.stdout

    def _failure(self, done: subprocess.CompletedProcess[bytes]) -> str:
        parts = [f"in the nested machine, {done.args!r} ended with {done.returncode}"]
        parts += [f"--- {name}\n{_text(text)}" for name, text in (("stdout", done.stdout), ("stderr", done.stderr))]
        return "\n".join([*parts, self._console_end()])

    def _console_end(self) -> str:
        lines = [line for line in self.console.splitlines() if line.strip()]
        return "\n".join(["--- console", *lines[-CONSOLE_LINES:]])

    def _end(self) -> None:
        """Kill what runs, and remove what is on disk."""
        if self._directory is None:
            return
        self._disconnect()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        _ = self.console  # kept for those who ask later
        shutil.rmtree(self._directory)
        self._directory = self._process = None
        self._forwarded.clear()


def _text(data: bytes) -> str:
    return data.decode(errors="surrogateescape")


def main() -> int:
    """Boot a machine and give a shell in it, or run the command behind ``--`` in the checkout, as it is there.

    What is before that are words for its kernel's command line.
    """
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    with Machine(memory_mib=ROOMY_MIB, cpus=2, append=words[:at]) as machine:
        if at == len(words):
            return machine.shell()
        return subprocess.run(
            machine.command(f"cd {REPOSITORY} && {shlex.join(words[at + 1 :])}"), check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
