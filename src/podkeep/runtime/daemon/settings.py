"""What the configuration's values must be for the runtime, beyond what ``base.config`` can know of them.

Owns: asking each part of the runtime whether it could work with its settings, without making anything. Does not own:
the rules, which are those parts' own, nor whether files and programs are there (``cli/diagnosis/programs.py``). Called
when the daemon starts, before a new configuration takes effect, and by ``podkeep config check``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from podkeep.base.config import Config, problems_of
from podkeep.base.errors import InvalidArgument, InvalidConfiguration
from podkeep.cri import transport
from podkeep.images.formats import referrer_names
from podkeep.images.registry import credentials, endpoints
from podkeep.kernel.cgroup import systemd
from podkeep.runtime.cgroup_driver import slices
from podkeep.runtime.class_resources import loading
from podkeep.runtime.network.bridge import Bridge
from podkeep.runtime.oci import rlimits
from podkeep.runtime.oci.sysctls import check_defaults


def check(config: Config) -> None:
    """Check every value that a part of the runtime reads.

    :raises InvalidConfiguration: naming the key of the first that cannot work.
    """
    for problem in problems(config):
        raise InvalidConfiguration.of(problem)


def problems(config: Config) -> Iterator[InvalidArgument]:
    """Yield what cannot work of the values that a part of the runtime reads, each naming its key."""
    runtime, images = config.runtime, config.images
    # That the path is absolute is checked for every process.
    is_absolute = os.path.isabs(runtime.socket)
    checks: list[Callable[[], object]] = [
        *([partial(transport.socket_path, runtime.socket)] if is_absolute else []),
        partial(cgroup_parent, config),
        *(partial(check_defaults, {name: value}) for name, value in runtime.default_sysctls.items()),
        *(partial(rlimits.parse, {name: value}) for name, value in runtime.default_rlimits.items()),
        partial(Bridge.from_config, config.network, Path(runtime.run)),
        *(partial(endpoints.check, {host: registry}, ()) for host, registry in config.registries.items()),
        *(partial(endpoints.check, {}, (name,)) for name in images.allowed_registries),
        partial(credentials.check, images),
        partial(referrer_names.check, images.referrers),
        partial(loading.check, config.class_resources),
    ]
    for item in checks:
        yield from problems_of(item)


def cgroup_parent(config: Config) -> str:
    """Return the parent of sandboxes whose request names none, in the form of the driver that makes cgroups.

    :raises InvalidArgument: if systemd can have no such slice.
    """
    parent = config.runtime.cgroup_parent
    if config.runtime.cgroup_driver != "systemd":
        return parent
    return slices.check_slice("runtime.cgroup_parent", systemd.slice_of_path(parent))
