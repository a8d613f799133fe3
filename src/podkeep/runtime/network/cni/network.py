"""The network that CNI plugins make (CNI specification 1.1.0, section 3, execution of network configurations).

Owns: the order in which a list's plugins are called and what each is given. Does not own: where the result is kept
(``networks.py`` puts it into the sandbox's record), or a single run (``plugin.py``). Blocks, except for :meth:`plan`.

A sandbox is disconnected with the list and the result that it was connected with, whatever the directory says by then.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import structs

from podkeep.base import failpoints
from podkeep.base.errors import PodkeepError, Unavailable
from podkeep.base.frozen import FrozenStruct
from podkeep.base.ids import SandboxID
from podkeep.runtime.model.records import SandboxConfig
from podkeep.runtime.network.cni import plugin, result
from podkeep.runtime.network.cni.capabilities import arguments, capabilities
from podkeep.runtime.network.cni.conflist import VERSIONS, ConfDirectory, Json, NetworkList, parse
from podkeep.runtime.network.cni.plugin import Call, PluginFailed

log = logging.getLogger(__name__)

IFNAME = "eth0"
_CHAIN, _CHECK, _STATUS = "0.3.0", "0.4.0", "1.1.0"
"""The versions that brought prevResult, CHECK with prevResult for DEL, and STATUS with GC."""


class Pod(FrozenStruct, kw_only=True):
    """What plugins are told of a sandbox; ``netns`` is empty when it is gone."""

    id: SandboxID
    config: SandboxConfig
    netns: str
    cgroup: str


class CniNetwork:
    """The plugins of one configuration directory. Any thread may call anything, for different sandboxes at a time."""

    def __init__(self, directory: Path, plugin_dirs: Sequence[Path], timeout: float) -> None:
        self._directory = ConfDirectory(directory)
        self._plugin_dirs = tuple(plugin_dirs)
        self._timeout = timeout
        self._lock = threading.Lock()
        self._spoken: dict[tuple[Path, int], frozenset[str]] = {}

    def has_files(self) -> bool:
        """Return whether the directory has a file that looks like a configuration, valid or not."""
        return bool(self._directory.files())

    def describe(self) -> dict[str, object]:
        """Return which file is used and what is wrong with others."""
        with self._lock:
            loaded = self._directory.load()
        return {
            "confDir": str(self._directory.path),
            "file": str(loaded.path or ""),
            "network": loaded.network.name if loaded.network else "",
            "problems": list(loaded.problems),
        }

    def _network(self) -> NetworkList:
        with self._lock:
            loaded = self._directory.load()
        if loaded.network is None:
            why = f": {'; '.join(loaded.problems)}" if loaded.problems else ""
            raise Unavailable(
                f"no CNI configuration in {self._directory.path}{why}",
                hint="has your network provider started? network.mode = 'bridge' needs none",
            )
        return loaded.network

    def require_ready(self) -> None:
        """Check that there is a configuration and, from CNI 1.1.0 on, that its plugins say they can serve (STATUS).

        :raises PodkeepError: saying why not.
        """
        network = self._negotiated(self._network())
        if _at_least(network, _STATUS):
            for conf in network.plugins:
                self._run(network, conf, Call(command="STATUS"), {})

    def plan(self, config: SandboxConfig) -> str:
        """Return the list that a new sandbox is to be connected with, as JSON; runs no plugin.

        :raises Unavailable: if there is none.
        :raises InvalidArgument: if the sandbox asks for what plugins cannot be told.
        """
        arguments("", config)
        capabilities(config, "")
        return self._network().text()

    def attach(self, network_list: str, pod: Pod) -> tuple[str, tuple[str, ...]]:
        """Connect a sandbox (ADD, plugin after plugin), and return the last result as JSON and the addresses in it.

        :raises PodkeepError: if a plugin fails; :meth:`detach` removes what the others made.
        """
        network = self._negotiated(_list(network_list))
        previous: Json = {}
        for conf in network.plugins:
            more: Json = {"prevResult": previous} if previous and _at_least(network, _CHAIN) else {}
            answer = self._run(network, conf, self._call("ADD", pod), self._runtime_config(conf, pod) | more)
            if not answer:
                raise PluginFailed(f"CNI plugin {conf['type']} (ADD) printed no result")
            previous = {"cniVersion": network.versions[-1], **answer}
            failpoints.reach("network.cni.add")
        try:
            found = result.addresses(previous, IFNAME)
        except ValueError as error:
            raise PluginFailed(f"CNI network {network.name}: the result of ADD is not valid: {error}") from error
        if not found:
            raise PluginFailed(
                f"CNI network {network.name}: the result of ADD has no address of {IFNAME}",
                hint="its plugins need an ipam section, or one of them must return addresses",
            )
        return json.dumps(previous), found

    def detach(self, network_list: str, last_result: str, pod: Pod) -> None:
        """Disconnect a sandbox (DEL, in reverse order); safe to repeat.

        :param last_result: what :meth:`attach` returned; empty if it did not come that far.
        :raises PodkeepError: if a plugin fails; those before it are not called then.
        """
        network = self._negotiated(_list(network_list))
        for conf in reversed(network.plugins):
            more = _previous(network, last_result)
            self._run(network, conf, self._call("DEL", pod), self._runtime_config(conf, pod) | more)

    def check(self, network_list: str, last_result: str, pod: Pod) -> None:
        """Let the plugins look whether a sandbox is connected as they made it (CHECK); before 0.4.0 there is no such.

        :raises PodkeepError: saying what is missing.
        """
        network = self._negotiated(_list(network_list))
        if not last_result or network.disable_check or not _at_least(network, _CHECK):
            return
        for conf in network.plugins:
            more = _previous(network, last_result)
            self._run(network, conf, self._call("CHECK", pod), self._runtime_config(conf, pod) | more)

    def collect_garbage(self, attached: Iterable[tuple[SandboxID, str]]) -> None:
        """Let the plugins of every list in use remove what belongs to no sandbox (GC, from CNI 1.1.0 on).

        Failures are logged: what plugins leave behind keeps nobody from being served.

        :param attached: every sandbox that has a network, with its list.
        """
        valid: defaultdict[str, list[Json]] = defaultdict(list)
        networks: dict[str, NetworkList] = {}
        for sandbox, text in attached:
            network = _list(text)
            networks[network.name] = network
            valid[network.name].append({"containerID": sandbox, "ifname": IFNAME})
        try:
            current = self._network()
        except Unavailable:
            return
        # What a list in use had is decided by the list in the directory if that is of the same network.
        for network in {**networks, current.name: current}.values():
            try:
                self._collect(network, valid[network.name])
            except PodkeepError as error:
                log.warning("CNI network %s: %s", network.name, error)

    def _collect(self, network: NetworkList, valid: list[Json]) -> None:
        network = self._negotiated(network)
        if network.disable_gc or not _at_least(network, _STATUS):
            return
        # The specification's name of the key, and the one that older plugins were written for.
        more: Json = {"cni.dev/valid-attachments": valid, "cni.dev/attachments": valid}
        for conf in network.plugins:
            try:
                self._run(network, conf, Call(command="GC"), more)
            except PodkeepError as error:
                log.warning("CNI network %s: %s", network.name, error)

    # one plugin

    def _call(self, command: str, pod: Pod) -> Call:
        return Call(
            command=command,
            container=pod.id,
            netns=pod.netns,
            ifname=IFNAME,
            arguments=arguments(pod.id, pod.config),
        )

    def _runtime_config(self, conf: Json, pod: Pod) -> Json:
        wanted = {name for name, on in conf.get("capabilities", {}).items() if on}
        given = {name: value for name, value in capabilities(pod.config, pod.cgroup).items() if name in wanted}
        return {"runtimeConfig": given} if given else {}

    def _run(self, network: NetworkList, conf: Json, call: Call, more: Json) -> Json:
        full = {**conf, "name": network.name, "cniVersion": network.versions[-1], **more}
        return plugin.run(self._plugin_dirs, conf["type"], call, full, self._timeout)

    # versions

    def _negotiated(self, network: NetworkList) -> NetworkList:
        """Return the list with the newest of its versions that every plugin speaks as its only one (VERSION)."""
        if len(network.versions) == 1:
            return network
        spoken = [self._speaks(conf["type"]) for conf in network.plugins]
        common = [version for version in network.versions if all(version in item for item in spoken)]
        if not common:
            raise PluginFailed(
                f"CNI network {network.name}: its plugins speak none of its versions {', '.join(network.versions)}"
            )
        return structs.replace(network, versions=(common[-1],))

    def _speaks(self, kind: str) -> frozenset[str]:
        program = plugin.find(self._plugin_dirs, kind)
        # VERSION costs a process: it is asked once for each version of the program.
        key = (program, program.stat().st_mtime_ns)
        if key not in self._spoken:
            given = {"cniVersion": VERSIONS[-1]}
            answer = plugin.run(self._plugin_dirs, kind, Call(command="VERSION"), given, self._timeout)
            # A plugin of before 0.2.0 does not know the key.
            versions = answer.get("supportedVersions") or ["0.1.0"]
            self._spoken[key] = frozenset(item for item in versions if isinstance(item, str))
        return self._spoken[key]


def _list(text: str) -> NetworkList:
    return parse(json.loads(text))


def _at_least(network: NetworkList, version: str) -> bool:
    return VERSIONS.index(network.versions[-1]) >= VERSIONS.index(version)


def _previous(network: NetworkList, last_result: str) -> Json:
    return {"prevResult": json.loads(last_result)} if last_result and _at_least(network, _CHECK) else {}
