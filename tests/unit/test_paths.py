"""Which modules of the agent and the runtime may reach files by their paths.

A path that a container, an image or another user of a volume can write to leads where they want, at the very moment it
is used. ``kernel/files/openat.py`` and ``kernel/files/removal.py`` are for such places. A module that works on paths is
listed here, with the reason why it may. If this test names a module of yours: use descriptors, or argue for the module
here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import podkeep

SOURCE = Path(podkeep.__file__).parent

ALLOWED = {
    "Below the agent's root or the runtime's two directories, beside what containers have of them: they have single"
    " files and directories there mounted, and can exchange none of these for another.": (
        "agent/volumes/container_files.py",
        "agent/eviction/containers.py",
        "agent/eviction/statistics.py",
        "agent/resources/allocations.py",
        "agent/objects/services_file.py",
        "agent/pod/checkpoint.py",
        "agent/pod/last_decision.py",
        "agent/poddirs.py",
        "agent/pod/teardown.py",
        "agent/server/collector.py",
        "agent/server/disk.py",
        "agent/user_namespaces/blocks.py",
        "agent/images/pull_records.py",
        "agent/volumes/empty_dir.py",
        "agent/volumes/setup.py",
        "agent/sub_path.py",
        "runtime/bundle/anonymous_volumes.py",
        "runtime/lifecycle/checkpoint.py",
        "runtime/class_resources/loading.py",
        "runtime/class_resources/rdt/groups.py",
        "runtime/lifecycle/container_executor.py",
        "runtime/lifecycle/containers.py",
        "runtime/daemon/daemon.py",
        "runtime/lifecycle/handlers.py",
        "runtime/bundle/changed_trees.py",
        "runtime/bundle/image_volumes.py",
        "runtime/bundle/leftovers.py",
        "runtime/bundle/rootfs_variants.py",
        "runtime/oci/driver.py",
        "runtime/oci/exec.py",
        "runtime/lifecycle/orphans.py",
        "runtime/lifecycle/sandbox_executor.py",
        "runtime/bundle/staging.py",
        "runtime/model/state.py",
        "runtime/stats/collector.py",
        "runtime/streaming/attach.py",
        "runtime/streaming/sessions.py",
    ),
    "What is in a directory of logs that is open, and a file that is: no path leads there.": (
        "agent/logs/rotation.py",
        "agent/server/system_logs.py",
    ),
    "The directory above a pod's logs, with the links that the machine has; from there on by descriptor.": (
        "runtime/bundle/container_log.py",
    ),
    "The kernel's files, the machine's devices, and what its administrator installs and configures.": (
        "agent/eviction/logind.py",
        "agent/manager/static_files.py",
        "agent/resources/machine.py",
        "agent/certificates/bootstrap.py",
        "agent/certificates/store.py",
        "agent/kubelet_configuration.py",
        "agent/kubelets.py",
        "agent/mount_namespace.py",
        "agent/node_status/system.py",
        "agent/node.py",
        "agent/server/node_usage.py",
        "agent/server/server.py",
        "agent/user_namespaces/subordinate_ids.py",
        "runtime/profiles/apparmor_loader.py",
        "runtime/oci/cdi/nodes.py",
        "runtime/oci/cdi/registry.py",
        "runtime/class_resources/blockio/devices.py",
        "runtime/class_resources/blockio/patterns.py",
        "runtime/class_resources/commands.py",
        "runtime/class_resources/custom/hook.py",
        "runtime/class_resources/yamlfile.py",
        "runtime/oci/confinement.py",
        "runtime/network/bridge.py",
        "runtime/network/cni/conflist.py",
        "runtime/network/cni/network.py",
        "runtime/network/cni/plugin.py",
        "runtime/oci/sealed.py",
        "runtime/oci/working_directory.py",
        "runtime/daemon/pods_elsewhere.py",
    ),
    "A path of the machine that a pod or a client names, to have what is there: links in it are followed as the machine"
    " has them. It is looked at, never opened, and a file that is made is new.": (
        "agent/volumes/host_path.py",
        "runtime/oci/devices.py",
        "runtime/rpc/convert/mounts.py",
    ),
    "Paths of descriptors, /proc/self/fd, for calls that take no descriptor.": (
        "runtime/bundle/copy_up.py",
        "runtime/bundle/relabel.py",
    ),
}
"""Why no container can have a say in where the paths lead, and the modules of which that holds."""

_OF_OS = frozenset(
    "access chmod chown getxattr lchown link listdir listxattr lstat makedirs mkdir mkfifo mknod open readlink remove"
    " removexattr rename renames replace rmdir scandir setxattr stat symlink truncate unlink utime walk".split()
)
_OF_OS_PATH = frozenset("exists getmtime getsize isdir isfile islink ismount lexists realpath samefile".split())
_OF_PATHS = frozenset(
    "chmod glob hardlink_to is_block_device is_char_device is_dir is_fifo is_file is_mount is_socket is_symlink iterdir"
    " lchmod lstat mkdir read_bytes read_text readlink rglob rmdir samefile symlink_to touch unlink write_bytes"
    " write_text".split()
)
_WITHOUT_ARGUMENTS = frozenset({"exists", "resolve", "stat"})
"""Methods of paths whose names other things have as well, but with arguments."""


def path_calls(tree: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls that take a path to a file of theirs.

    A call relative to a descriptor (``dir_fd``) is none, nor is one whose argument is a parameter that is an integer.
    """
    for function, call in _calls(tree, None):
        if not _is_by_descriptor(function, call) and _takes_path(call):
            yield call


def _calls(node: ast.AST, function: ast.AST | None) -> Iterator[tuple[ast.AST | None, ast.Call]]:
    if isinstance(node, ast.Call):
        yield function, node
    inner = node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
    for child in ast.iter_child_nodes(node):
        yield from _calls(child, inner)


def _is_by_descriptor(function: ast.AST | None, call: ast.Call) -> bool:
    if any(keyword.arg in {"dir_fd", "src_dir_fd"} for keyword in call.keywords):
        return True
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) or not call.args:
        return False
    integers = {
        argument.arg
        for argument in (*function.args.args, *function.args.kwonlyargs)
        if isinstance(argument.annotation, ast.Name) and argument.annotation.id == "int"
    }
    return isinstance(call.args[0], ast.Name) and call.args[0].id in integers


def _takes_path(call: ast.Call) -> bool:
    function = call.func
    if isinstance(function, ast.Name):
        return function.id == "open"
    if not isinstance(function, ast.Attribute):
        return False
    owner, name = ast.unparse(function.value), function.attr
    if owner == "os":
        return name in _OF_OS
    if owner == "os.path":
        return name in _OF_OS_PATH
    if owner == "shutil":
        return name != "which"
    if owner == "tempfile":
        return True
    if owner == "openat":
        return name in {"make_directories", "open_named", "open_named_regular", "resolved"}  # these follow links
    if name in _WITHOUT_ARGUMENTS:
        return not call.args
    if name == "open":
        return not call.args or (isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str))
    if name in {"rename", "replace"}:
        return len(call.args) == 1 and not call.keywords
    return name in _OF_PATHS


def modules() -> list[str]:
    return sorted(
        str(path.relative_to(SOURCE)) for package in ("agent", "runtime") for path in (SOURCE / package).rglob("*.py")
    )


def test_files_are_reached_by_their_paths_only_where_no_container_can_write() -> None:
    allowed = {module for listed in ALLOWED.values() for module in listed}
    found = {}
    for module in modules():
        calls = [f"{call.lineno}: {ast.unparse(call)}" for call in path_calls(ast.parse((SOURCE / module).read_text()))]
        if calls:
            found[module] = calls
    assert {module: calls for module, calls in found.items() if module not in allowed} == {}
    assert sorted(allowed - set(found)) == [], "these are listed for nothing"


def test_each_module_is_listed_once() -> None:
    listed = [module for group in ALLOWED.values() for module in group]
    assert sorted(listed) == sorted(set(listed))


@pytest.mark.parametrize(
    "text",
    [
        "os.stat(path)", "os.path.realpath(path)", "open(path)", "path.open('rb')", "path.read_text()", "path.exists()",
        "path.resolve()", "shutil.copyfile(a, b)", "path.rename(other)", "os.walk(path)", "openat.resolved(path)",
        "path.stat(follow_symlinks=False)", "(a / b).unlink(missing_ok=True)",
        "os.chown(path, 0, 0, follow_symlinks=False)",
    ],
)  # fmt: skip
def test_what_takes_a_path(text: str) -> None:
    assert len(list(path_calls(ast.parse(text)))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "os.stat(name, dir_fd=fd)", "os.fstat(fd)", "text.replace('a', 'b')", "cgroups.exists(name)",
        "store.open(name)", "def f(fd: int): os.listdir(fd)", "openat.walk(fd)", "classes.resolve(level)",
        "shutil.which(name)",
    ],
)  # fmt: skip
def test_what_takes_none(text: str) -> None:
    assert list(path_calls(ast.parse(text))) == []
