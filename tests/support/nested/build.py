"""The disk, kernel and initial RAM disk of the nested machine, made of Debian's packages and kept under ``.cache``.

Owns what is in the machine, and the cache; booting it is support/nested/machine.py. A build takes about a minute, needs
root and Debian's archive, and mounts nothing outside of namespaces of its own. What is kept is named by a hash of
everything here that decides its content, so an edit of this file makes a new one; the one before is removed.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
CACHE = REPOSITORY / ".cache" / "nested"
SKELETON = Path(__file__).with_name("skeleton")
INIT = Path(__file__).with_name("init.sh")

SUITE = "bookworm"
PACKAGES = (
    "linux-image-cloud-amd64",
    "systemd-sysv",
    "udev",
    "dbus",
    "apparmor",
    "containerd",
    "kmod",
    "procps",
    "python3",
    "util-linux",
    "openssh-server",
    "initramfs-tools",
    "kubernetes-client",
    "cpio",
    "nfs-kernel-server",
)
UNITS = ("ssh.service", "nested-network.service", "nested-ready.service")
NFS_UNITS = ("nfs-server.service", "nfs-client.target", "rpcbind.service", "rpcbind.socket")
"""A test that wants a server of NFS starts it."""
MASKED = (
    *("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer", "fstrim.timer"),
    "e2scrub_reap.service",
)
"""What would work at a time of its own choosing."""
GENERATORS = (
    "cryptsetup",
    "gpt-auto",
    "hibernate-resume",
    "integritysetup",
    "rc-local",
    "system-update",
    "veritysetup",
)
"""Of systemd, for disks and files that the machine has not, masked: they would take a third of each ``daemon-reload``.
The rest of Debian is as it comes, but for profiles of AppArmor."""
MODULES = ("virtio_pci", "virtio_blk")
"""What the kernel needs to find its disk; everything else is loaded by udev or on demand."""
LEAVE_OUT = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/info/*")
DISK_SIZE = "8G"
"""Of the file system; the file has holes."""
BUILD_TIMEOUT_S = 900
TOOLS = {
    "mmdebstrap": "mmdebstrap",
    "mkfs.ext4": "e2fsprogs",
    "qemu-system-x86_64": "qemu-system-x86",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "setpriv": "util-linux",
    "unshare": "util-linux",
}


class NestedError(Exception):
    """The nested machine cannot be made or does not do what is asked; the message says what to do about it."""


@dataclass(frozen=True, kw_only=True)
class Image:
    """What a machine boots from; the files are shared by all machines and never written to."""

    directory: Path

    @property
    def kernel(self) -> Path:
        """Debian's kernel."""
        return self.directory / "vmlinuz"

    @property
    def initrd(self) -> Path:
        """The modules that find the disk."""
        return self.directory / "initrd"

    @property
    def disk(self) -> Path:
        """The root file system, raw."""
        return self.directory / "root.img"

    @property
    def key(self) -> Path:
        """The private key that opens the machine."""
        return self.directory / "key"

    @property
    def known_hosts(self) -> Path:
        """The machine's own public key, for the name ``nested``."""
        return self.directory / "known_hosts"


def image() -> Image:
    """Return the image, built if it is not there; of several that ask at once, one builds.

    :raises NestedError: if a tool is missing or the build fails.
    """
    _check_tools()
    wanted = CACHE / f"image-{recipe_hash()}"
    if wanted.is_dir():
        return Image(directory=wanted)
    if os.geteuid() != 0:
        raise NestedError("the nested machine is built by root only: run `make nested` as root")
    with _locked():
        if not wanted.is_dir():
            for old in (*CACHE.glob("image-*"), *CACHE.glob("build-*")):
                shutil.rmtree(old)
            building = Path(tempfile.mkdtemp(prefix="build-", dir=CACHE))
            try:
                _build(building)
                building.rename(wanted)
            finally:
                shutil.rmtree(building, ignore_errors=True)
    return Image(directory=wanted)


def recipe_hash() -> str:
    """Return what tells one image from another: a hash of this file, of the packages, and of the files put in."""
    digest = hashlib.sha256("\n".join(packages()).encode())
    for path in (Path(__file__), INIT, *sorted(SKELETON.rglob("*"))):
        if path.is_file():
            digest.update(f"\n{path.name} {path.stat().st_mode:o} {path.stat().st_size}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def packages() -> tuple[str, ...]:
    """Return Debian's packages in the machine: what podkeep and its tests need anywhere, and what makes a machine."""
    listed = subprocess.run(
        [REPOSITORY / "tools" / "setup", "test", "--list"], check=True, capture_output=True, text=True
    )
    return tuple(sorted({*listed.stdout.split(), *PACKAGES}))


def _check_tools() -> None:
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = sorted({package for tool, package in TOOLS.items() if shutil.which(tool, path=path) is None})
    if missing:
        raise NestedError(f"the nested machine needs {', '.join(missing)}: run tools/setup nested")


@contextmanager
def _locked() -> Iterator[None]:
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(target: Path) -> None:
    root = target / "root"
    _bootstrap(root)
    shutil.copytree(SKELETON, root, dirs_exist_ok=True)
    _configure(root)
    _make_keys(root, target)
    _make_initrd(root, target / "initrd")
    kernel = next((root / "boot").glob("vmlinuz-*"))
    shutil.copy(kernel, target / "vmlinuz")
    # Unwritten inode tables are cleared by the kernel in the background of every boot if they are left to it.
    options = "lazy_itable_init=0,lazy_journal_init=0"
    disk = target / "root.img"
    _run("mkfs.ext4", "-q", "-L", "root", "-m", "0", "-E", options, "-d", str(root), str(disk), DISK_SIZE)
    shutil.rmtree(root)


def _bootstrap(root: Path) -> None:
    _run(
        "mmdebstrap",
        "--mode=root",
        "--variant=minbase",
        "--architectures=amd64",
        f"--include={','.join(packages())}",
        "--dpkgopt=force-unsafe-io",  # who loses power here makes it again
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in LEAVE_OUT),
        SUITE,
        str(root),
        # Debian's own initial RAM disk is not used.
        environment={"INITRD": "No"},
    )


def _configure(root: Path) -> None:
    (root / "etc/machine-id").write_text(f"{secrets.token_hex(16)}\n")
    (root / "etc/resolv.conf").write_text("")
    # A shell that starts fast; there is bash for people.
    _in(root, "usermod", "--shell", "/bin/sh", "root")
    _in(root, "systemctl", "enable", *UNITS)
    _in(root, "systemctl", "mask", *MASKED)
    generators = root / "etc/systemd/system-generators"
    generators.mkdir()
    for name in GENERATORS:
        (generators / f"systemd-{name}-generator").symlink_to("/dev/null")
    # Compiling the profiles of programs that no test runs would take half of the time of each boot.
    profiles = root / "etc/apparmor.d"
    for profile in [path.name for path in profiles.iterdir() if path.is_file()]:
        (profiles / "disable" / profile).symlink_to(f"../{profile}")
    _in(root, "systemctl", "disable", "docker-registry.service", "containerd.service", *NFS_UNITS)


def _make_keys(root: Path, target: Path) -> None:
    _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "nested", "-f", str(target / "key"))
    directory = root / "root/.ssh"
    directory.mkdir(mode=0o700, exist_ok=True)
    shutil.copy(target / "key.pub", directory / "authorized_keys")
    kind, public, *_ = (root / "etc/ssh/ssh_host_ed25519_key.pub").read_text().split()
    (target / "known_hosts").write_text(f"nested {kind} {public}\n")


def _make_initrd(root: Path, target: Path) -> None:
    """Pack busybox, ``init.sh`` and the modules that lead to the disk, in the order in which they are loaded."""
    release = next((root / "lib/modules").iterdir()).name
    shown = _in(root, "modprobe", "--set-version", release, "--show-depends", "--all", *MODULES).splitlines()
    files = list(dict.fromkeys(line.split()[1] for line in shown if line.startswith("insmod ")))
    tree = root / "tmp/initrd"
    for name in ("bin", "modules", "proc", "dev", "root"):
        (tree / name).mkdir(parents=True)
    shutil.copy(root / "bin/busybox", tree / "bin/busybox")
    shutil.copy(INIT, tree / "init")
    (tree / "init").chmod(0o755)
    for name in files:
        shutil.copy(root / name.removeprefix("/"), tree / "modules")
    (tree / "modules/order").write_text("".join(f"{Path(name).name}\n" for name in files))
    _in(root, "sh", "-c", "cd /tmp/initrd && find . | cpio --quiet --create --format=newc >/tmp/initrd.cpio")
    shutil.move(root / "tmp/initrd.cpio", target)
    shutil.rmtree(tree)


def _in(root: Path, *command: str) -> str:
    return _run("chroot", str(root), *command)


def _run(*command: str, environment: dict[str, str] | None = None) -> str:
    """Run a step in namespaces of its own, which end with it, as it ends with this process; return its output."""
    done = subprocess.run(
        [*mortal(), "unshare", "--mount", "--pid", "--fork", "--kill-child", *command],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=BUILD_TIMEOUT_S,
        check=False,
        env={
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LC_ALL": "C.UTF-8",
            **{name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")},
            **(environment or {}),
        },
    )
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
        raise NestedError(f"cannot build the nested machine: {' '.join(command)} ended with {done.returncode}:\n{said}")
    return done.stdout


def mortal() -> Sequence[str]:
    """Return a prefix for a command that is killed when the process that starts it ends, however it ends."""
    return ("setpriv", "--pdeathsig", "KILL", "--")


if __name__ == "__main__":
    image()
