"""What the configuration's values must be for the runtime, beyond what ``base.config`` can know of them.

Owns: asking each part of the runtime whether it could work with its settings, without making anything. Does not own:
the rules, which are those parts' own, nor whether files and programs are there (``cli/diagnosis/programs.py``). Called
when the daemon starts, before a new configuration takes effect, and by ``podkeep config check``.
"""

from __future__ import annotations

from pathlib import Path

from podkeep.base.config import Config
from podkeep.cri import transport
from podkeep.images import credentials, endpoints, referrer_names
from podkeep.kernel import systemd
from podkeep.runtime.cgroup_driver import slices
from podkeep.runtime.class_resources import loading
from podkeep.runtime.network.bridge import Bridge
from podkeep.runtime.oci import rlimits
from podkeep.runtime.sysctls import check_defaults


def check(config: Config) -> None:
    """Check every value that a part of the runtime reads.

    :raises InvalidArgument: naming the key of the first that cannot work.
    """
    transport.socket_path(config.runtime.socket)
    cgroup_parent(config)
    check_defaults(config.runtime.default_sysctls)
    rlimits.parse(config.runtime.default_rlimits)
    Bridge.from_config(config.network, Path(config.runtime.run))
    endpoints.check(config.registries, config.images.allowed_registries)
    credentials.check(config.images)
    referrer_names.check(config.images.referrers)
    loading.check(config.class_resources)


def cgroup_parent(config: Config) -> str:
    """Return the parent of sandboxes whose request names none, in the form of the driver that makes cgroups.

    :raises InvalidArgument: if systemd can have no such slice.
    """
    parent = config.runtime.cgroup_parent
    if config.runtime.cgroup_driver != "systemd":
        return parent
    return slices.check_slice("runtime.cgroup_parent", systemd.slice_of_path(parent))
