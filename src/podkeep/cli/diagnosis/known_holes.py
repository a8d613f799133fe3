"""Versions of OCI runtimes, of conmon and of the kernel with holes that are known.

Owns: the table, and what can be told of a version: Debian and others fix holes without a new version number, so the
changelog of the installed package is asked, too, if what runs is from it. Does not own: running programs
(``programs``).

The facts are those of each project's own release notes and advisories; of the kernel, those of its stable branches, as
its CVE records have them.
conmon has no entry: no CVE was given to it itself (CVE-2022-1708 is of CRI-O, which had it write without a limit).
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from pathlib import Path

from podkeep.base import spawn
from podkeep.base.errors import PodkeepError
from podkeep.base.frozen import FrozenStruct
from podkeep.cli.diagnosis import finding
from podkeep.cli.diagnosis.finding import Finding

Version = tuple[int, int, int, int]
"""Three numbers, and 0 for a candidate of that release (``1.4.0-rc.2``), else 1."""

PROGRAMS = frozenset({"crun", "runc", "conmon"})
"""What the table speaks of, as each of them calls itself."""

_SAID = re.compile(r"^(?P<name>[a-z]+) version (?P<version>\S+)", re.MULTILINE)
_NUMBERS = re.compile(r"(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?(?P<rest>.*)")
_CANDIDATE = re.compile(r"[-~.+]?(rc|alpha|beta|dev)")
_DEBIAN_KERNEL = re.compile(r"\bDebian (?P<package>(?P<release>\d+\.\d+\.\d+)-\S+)")
_UBUNTU_KERNEL = re.compile(r"Ubuntu (?P<package>\S+?-[0-9.~]+)-\S+ (?P<release>\S+)\s*")
_ENTRY = re.compile(r"^[a-z0-9][a-z0-9+.-]* \((?P<version>[^)\s]+)\)", re.MULTILINE)
"""First line of an entry of a changelog (deb-changelog(5)); the newest entry is the first."""
_PACKAGE = re.compile(r"(?P<name>[a-z0-9][a-z0-9+.-]*)(?::[a-z0-9-]+)?: ")
_UBUNTU_SIGNATURE = Path("/proc/version_signature")
_DOCUMENTS = Path("/usr/share/doc")
_MOST_BYTES = 32 << 20


class Hole(FrozenStruct, kw_only=True):
    """A hole in some versions of a program, or of the kernel (``linux``).

    Affected are versions from ``since`` on; those in ``fixed`` and later ones of the same minor version are not, nor
    is any from the last of them on. Without ``fixed`` no release is known that fixes it, and all are; ``until`` is the
    last that was looked at.
    """

    program: str
    cve: str
    what: str
    podkeep: str = ""
    """What podkeep does about it, or what in a pod keeps it from being used; empty: nothing."""
    safe: bool = False
    """Whether that is enough."""
    since: str = "0.0"
    fixed: tuple[str, ...] = ()
    until: str = ""

    def affects(self, version: Version) -> bool:
        """Say whether a version has this hole, going by its number."""
        if version < _lowest(self.since):
            return False
        if not self.fixed:
            return True
        fixed = [_parsed(item) for item in self.fixed]
        return version < max(fixed) and not any(version[:2] == item[:2] and version >= item for item in fixed)


_REFUSED = "needs a user namespace of its own making for it, which seccompProfile RuntimeDefault refuses"
_NO_NAMESPACES = f"a container without CAP_SYS_ADMIN {_REFUSED}"
_NO_NETWORKS = f"a container without CAP_NET_ADMIN {_REFUSED}"

HOLES = (
    Hole(
        program="crun",
        cve="CVE-2026-88265",
        what="a volume at /dev, or a file or link at /dev/null, gives a file of the pod author's choice to the "
        "container's user",
        podkeep="refuses such volumes, but for the machine's own /dev",
        safe=True,
        fixed=("1.30",),
    ),
    Hole(
        program="crun",
        cve="CVE-2026-88264",
        what="an image whose /dev/console is a link has a file made on the machine",
        podkeep="gives each container a /dev of its own, and refuses volumes in its place",
        safe=True,
        fixed=("1.30",),
    ),
    Hole(
        program="crun",
        cve="CVE-2026-133553",
        what="a mount with tmpcopyup copies files of the image to files of the machine",
        podkeep="makes no such mounts",
        safe=True,
        until="1.30.1",
    ),
    Hole(
        program="crun",
        cve="CVE-2026-84042",
        what="the handler krun, with a network of its own, runs programs of the image as root of the machine",
        podkeep="runs it as crun; only a handler with a path or options for krun is concerned",
        safe=True,
        since="1.29",
        fixed=("1.30.1",),
    ),
    Hole(
        program="crun",
        cve="CVE-2026-47766",
        what="an image whose /dev is a link has devices made outside of the container",
        podkeep="refuses such images",
        safe=True,
        fixed=("1.28",),
    ),
    Hole(
        program="crun",
        cve="CVE-2026-30892",
        what="`crun exec --user 1` runs as root",
        podkeep="names users in a file and never by this option",
        safe=True,
        since="1.19",
        fixed=("1.27",),
    ),
    Hole(
        program="crun",
        cve="CVE-2025-24965",
        what="the handler krun writes a file outside of the container",
        podkeep="runs it as crun; only a handler with a path or options for krun is concerned",
        safe=True,
        fixed=("1.20",),
    ),
    Hole(
        program="crun",
        cve="CVE-2022-27650",
        what="commands that are executed in a container get inheritable capabilities",
        podkeep="says which capabilities a command has, inheritable ones included",
        safe=True,
        fixed=("1.4.4",),
    ),
    Hole(
        program="runc",
        cve="CVE-2026-41579",
        what="an image whose /dev is a link has files removed and links made outside of the container",
        podkeep="refuses such images",
        safe=True,
        fixed=("1.3.6", "1.4.3", "1.5.0"),
    ),
    Hole(
        program="runc",
        cve="CVE-2025-31133",
        what="links at masked paths let a container write to /proc of the machine, and out of it (with CVE-2025-52565 "
        "and CVE-2025-52881)",
        podkeep="pods with hostUsers: false cannot write there as the machine's root; others can",
        fixed=("1.2.8", "1.3.3", "1.4.0"),
    ),
    Hole(
        program="runc",
        cve="CVE-2024-45310",
        what="a container has empty files and directories made on the machine",
        fixed=("1.1.14", "1.2.0"),
    ),
    Hole(
        program="runc",
        cve="CVE-2024-21626",
        what="an image or a command whose working directory is /proc/self/fd/N is in the machine's file system",
        fixed=("1.1.12",),
    ),
    Hole(
        program="runc",
        cve="CVE-2023-27561",
        what="volumes and links that are swapped for each other take away the confinement of /proc",
        fixed=("1.1.5",),
    ),
    Hole(
        program="runc",
        cve="CVE-2023-28642",
        what="an image whose /proc is a link takes away the confinement by AppArmor or SELinux",
        fixed=("1.1.5",),
    ),
    Hole(
        program="runc",
        cve="CVE-2022-29162",
        what="commands that are executed in a container get inheritable capabilities",
        podkeep="says which capabilities a command has, inheritable ones included",
        safe=True,
        fixed=("1.1.2",),
    ),
    Hole(
        program="runc",
        cve="CVE-2021-30465",
        what="a link that is swapped while a volume is mounted puts it outside of the container",
        fixed=("1.0.0",),
    ),
    Hole(
        program="runc",
        cve="CVE-2019-5736",
        what="a container replaces the machine's runc, which root runs next",
        podkeep="pods with hostUsers: false cannot write there as the machine's root; others can",
        fixed=("1.0.0",),
    ),
    Hole(
        program="linux",
        cve="CVE-2026-31431",
        what="a container changes files that it may only read, also those of images that other pods share (AF_ALG)",
        since="4.14",
        fixed=("5.10.254", "5.15.204", "6.1.170", "6.6.137", "6.12.85", "6.18.22", "6.19.12", "7.0"),
    ),
    Hole(
        program="linux",
        cve="CVE-2026-43500",
        what="a container changes files that it may only read, also those of images that other pods share (AF_RXRPC)",
        podkeep="it needs a key for it, which seccompProfile RuntimeDefault refuses",
        since="5.3",
        fixed=("6.6.140", "6.12.88", "6.18.29", "7.0.6", "7.1"),
    ),
    Hole(
        program="linux",
        cve="CVE-2026-46300",
        what="IPsec: users of a network namespace change files that they may only read",
        podkeep=_NO_NETWORKS,
        since="3.9",
        fixed=("5.10.257", "5.15.208", "6.1.174", "6.6.141", "6.12.91", "6.18.33", "7.0.10", "7.1"),
    ),
    Hole(
        program="linux",
        cve="CVE-2026-43284",
        what="IPsec: users of a network namespace change files that they may only read",
        podkeep=_NO_NETWORKS,
        since="4.11",
        fixed=("5.10.255", "5.15.206", "6.1.172", "6.6.138", "6.12.87", "6.18.28", "7.0.5", "7.1"),
    ),
    Hole(
        program="linux",
        cve="CVE-2024-1086",
        what="nf_tables: use of freed memory, root of the machine for users of a network namespace",
        podkeep=_NO_NETWORKS,
        since="3.15",
        fixed=("5.4.269", "5.10.210", "5.15.149", "6.1.76", "6.6.15", "6.7.3", "6.8"),
    ),
    Hole(
        program="linux",
        cve="CVE-2023-3269",
        what="stacks that grow: use of freed memory, root of the machine for any process",
        since="6.1",
        fixed=("6.1.37", "6.3.11", "6.4.1", "6.5"),
    ),
    Hole(
        program="linux",
        cve="CVE-2023-32233",
        what="nf_tables: use of freed memory, root of the machine for users of a network namespace",
        podkeep=_NO_NETWORKS,
        fixed=("4.19.283", "5.4.243", "5.10.180", "5.15.111", "6.1.28", "6.2.15", "6.3.2", "6.4"),
    ),
    Hole(
        program="linux",
        cve="CVE-2023-0386",
        what="overlay: a set-user-ID file of a user namespace is copied out of it as root's",
        podkeep=_NO_NAMESPACES,
        since="5.11",
        fixed=("5.15.91", "6.1.9", "6.2"),
    ),
    Hole(
        program="linux",
        cve="CVE-2022-0847",
        what="a container changes files that it may only read, also those of images that other pods share",
        since="5.8",
        fixed=("5.10.102", "5.15.25", "5.16.11", "5.17"),
    ),
    Hole(
        program="linux",
        cve="CVE-2022-0492",
        what="cgroup v1: a release agent runs as root of the machine",
        podkeep=_NO_NAMESPACES,
        fixed=("4.19.229", "5.4.177", "5.10.97", "5.15.20", "5.16.6", "5.17"),
    ),
    Hole(
        program="linux",
        cve="CVE-2022-0185",
        what="memory of the kernel is written over by a mount option in a user namespace",
        podkeep=_NO_NAMESPACES,
        since="5.1",
        fixed=("5.4.173", "5.10.93", "5.15.16", "5.16.2", "5.17"),
    ),
)


class Package(FrozenStruct, kw_only=True):
    """The distribution's package of a program; ``changelog`` is None if it is not there, or not that of what runs."""

    name: str
    changelog: str | None = None

    def fixes(self, cve: str) -> bool:
        """Say whether the package's changelog names a hole: distributions name what they have fixed."""
        return self.changelog is not None and re.search(rf"\b{re.escape(cve)}\b", self.changelog) is not None


def of_program(path: str, said: str) -> list[Finding]:
    """Judge a program by what it says about its version; nothing of programs that the table does not know."""
    # Behind what a wrapper says, too.
    match = next((found for found in _SAID.finditer(said) if found["name"] in PROGRAMS), None)
    name = match["name"] if match else Path(path).name
    if name not in PROGRAMS:
        return []
    version = parse(match["version"]) if match else None
    if match is None or version is None:
        return [_unknown(name, said.strip().partition("\n")[0][:80])]
    holes = [hole for hole in HOLES if hole.program == name and hole.affects(version)]
    package = package_of(path) if holes else None
    return [judge(hole, match["version"], package) for hole in holes]


def of_kernel(release: str, version: str, signature: str | None = None) -> list[Finding]:
    """Judge the kernel by what uname(2) says; Debian and Ubuntu name the stable release that theirs is made from.

    :param signature: content of ``/proc/version_signature``; None: read it.
    """
    text = _signature() if signature is None else signature
    made = _DEBIAN_KERNEL.search(version) or _UBUNTU_KERNEL.fullmatch(text)
    shown = made["release"] if made else release
    parsed = parse(shown)
    if parsed is None:
        return [_unknown("kernel", release[:80])]
    # A number of the distribution's own (6.8.0-40, 5.14.0-427.el9) does not say what is in it.
    holes = [hole for hole in HOLES if hole.program == "linux" and hole.affects(parsed)]
    package = _kernel_package(f"linux-image-{release}", made["package"] if made else "") if holes else None
    return [judge(hole, shown, package) for hole in holes]


def _kernel_package(name: str, version: str) -> Package:
    """Return the package of the kernel that runs; the one that is installed may be newer, and wait for a reboot."""
    changelog = _changelog(name)
    return Package(name=name, changelog=None if changelog is None else of_version(changelog, version))


def of_version(changelog: str, version: str) -> str | None:
    """Return what a changelog says of a version and those before it; None if it does not have that version."""
    for entry in _ENTRY.finditer(changelog):
        # That of a signed kernel has a plus where the kernel's own has a hyphen.
        if version and version in (entry["version"], entry["version"].replace("+", "-", 1)):
            return changelog[entry.start() :]
    return None


def judge(hole: Hole, shown: str, package: Package | None) -> Finding:
    """Return what to say about a version that has a hole by its number."""
    program = "kernel" if hole.program == "linux" else hole.program
    name = f"{program} {hole.cve}"
    if package is not None and package.fixes(hole.cve):
        return finding.ok(name, f"{shown}: fixed in this package, as the changelog of {package.name} says")
    if hole.safe:
        return finding.ok(name, f"{shown}: {hole.what}; harmless here: podkeep {hole.podkeep}")
    update = f"{program} {', '.join(hole.fixed)} or newer" if hole.fixed else f"no release up to {hole.until} fixes it"
    why = hole.podkeep or "nothing on podkeep's side keeps it from being used"
    return finding.warning(name, f"{shown}: {hole.what}", why=why, fix=_fix(update, package))


def _fix(update: str, package: Package | None) -> str:
    if package is None:
        return update
    if package.changelog is None:
        return f"{update}; the distribution may have it in {package.name} already: apt changelog {package.name}"
    return f"{update}; the changelog of {package.name} does not name it: apt-get update; apt-get install {package.name}"


def _unknown(name: str, said: str) -> Finding:
    return finding.warning(
        f"{name} version",
        f"not understood: {said!r}",
        why="versions with known holes cannot be told",
        fix="compare it with the security advisories of the project",
    )


def parse(text: str) -> Version | None:
    """Return a version number; None if it is not one."""
    match = _NUMBERS.fullmatch(text)
    if match is None:
        return None
    major, minor, patch = (int(match[number] or 0) for number in (1, 2, 3))
    return major, minor, patch, 0 if _CANDIDATE.match(match["rest"]) else 1


def _parsed(text: str) -> Version:
    version = parse(text)
    if version is None:
        raise ValueError(text)
    return version


def _lowest(text: str) -> Version:
    return (*_parsed(text)[:3], 0)


def package_of(path: str) -> Package | None:
    """Return the distribution's package that a program is from, as dpkg knows it; None if it does not.

    dpkg knows a file by one path. Where /bin is a link to /usr/bin a program has two, and which of them is the
    package's depends on its age.
    """
    for name in dict.fromkeys((path, os.path.realpath(path))):
        try:
            said = spawn.run(["dpkg-query", "--search", name], timeout=10).stdout.decode(errors="replace")
        except (PodkeepError, OSError):
            return None
        if (match := _PACKAGE.match(said)) is not None:
            package = match["name"]
            return Package(name=package, changelog=None if _was_replaced(package, path) else _changelog(package))
    return None


def _was_replaced(package: str, path: str) -> bool:
    """Say whether somebody has put another file in the place of a package's: its changelog says nothing of that."""
    try:
        said = spawn.run(["dpkg", "--verify", package], timeout=10).stdout.decode(errors="replace")
    except (PodkeepError, OSError):
        return True  # which is not known then
    return any(os.path.realpath(name) == os.path.realpath(path) for name in changed_files(said))


def changed_files(said: str) -> list[str]:
    """Return the files that have another content than in their package, as ``dpkg --verify`` tells them."""
    # Nine letters, of which the third is of the digest, then c for a configuration file, and the path.
    return [line[12:] for line in said.splitlines() if line[2:3] == "5"]


def _changelog(package: str) -> str | None:
    for name in ("changelog.Debian.gz", "changelog.gz"):
        try:
            with gzip.open(_DOCUMENTS / package / name) as file:
                return file.read(_MOST_BYTES).decode(errors="replace")
        except (OSError, EOFError, zlib.error):
            continue
    return None


def _signature() -> str:
    try:
        return _UBUNTU_SIGNATURE.read_text(errors="replace")
    except OSError:
        return ""
