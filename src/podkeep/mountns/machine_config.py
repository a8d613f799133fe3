"""The same files as an OpenShift MachineConfig object. Pure.

Owns: the object: which keys, how a file's content is written in it (Ignition configuration specification 3.2). Called
by ``podkeep mountns machine-config``. Does not own: the files' texts (``units``).

It is an object of its own, ``02-<role>-container-mount-namespace``, not a part of ``00-<role>``: that one is the
machine-config operator's, and this one can be deleted alone, which is the switch that turns the hiding off.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping

from podkeep.base.errors import FailedPrecondition, InvalidArgument
from podkeep.mountns import execstart, units
from podkeep.mountns.execstart import Entry
from podkeep.mountns.namespace_ref import UNIT

IGNITION = "3.2.0"
ROLE_LABEL = "machineconfiguration.openshift.io/role"
_ROLE = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")


def render(role: str, entry: Entry, daemons: Mapping[str, str], *, keep: bool = False) -> dict[str, object]:
    """Return the object as plain data, to be written as YAML or JSON.

    :param role: the machine config pool: ``worker``, ``master`` or one of the cluster's own.
    :param daemons: by the name of its service, each unit's text as the nodes have it: what ``systemctl cat`` prints.
    :param keep: stopping the service leaves the namespace.
    :raises InvalidArgument: if the role cannot be a pool's name, or nothing can be pinned at that path by a unit.
    :raises FailedPrecondition: if there is no daemon, or one cannot be wrapped.
    """
    if not _ROLE.fullmatch(role):
        raise InvalidArgument(f"role {role!r} is no name of a machine config pool", hint="such as worker or master")
    service = units.service_of(entry.pin)
    rendered: list[dict[str, object]] = []
    if service == UNIT:
        text = units.service(entry.pin, podkeep=None, keep=keep, enabled=True)
        rendered.append({"name": service, "enabled": True, "contents": text})
    else:
        # The operator brings this one, and leaves it off.
        rendered.append({"name": service, "enabled": True})
    for name, printed in sorted(daemons.items()):
        # A node that has the object already prints our drop-in, too: it would be wrapped once more.
        theirs = [part for part in execstart.split(printed, name) if not part.path.endswith(f"/{units.DROP_IN}")]
        text = units.drop_in(execstart.read(name, theirs), entry)
        if text:
            rendered.append({"name": name, "dropins": [{"name": units.DROP_IN, "contents": text}]})
    if not daemons:
        raise FailedPrecondition(
            "a MachineConfig needs the daemons' units as the nodes have them",
            hint="on a node: systemctl cat kubelet.service >kubelet.service, the same with crio.service, "
            "then name the files",
        )
    return {
        "apiVersion": "machineconfiguration.openshift.io/v1",
        "kind": "MachineConfig",
        "metadata": {"name": f"02-{role}-container-mount-namespace", "labels": {ROLE_LABEL: role}},
        "spec": {
            "config": {
                "ignition": {"version": IGNITION},
                "storage": {"files": [_file(str(units.HELPER), units.helper(entry.pin), 0o755)]},
                "systemd": {"units": rendered},
            }
        },
    }


def _file(path: str, text: str, mode: int) -> dict[str, object]:
    content = base64.b64encode(text.encode()).decode()
    return {
        "path": path,
        "mode": mode,
        "overwrite": True,
        "contents": {"source": f"data:text/plain;charset=utf-8;base64,{content}"},
    }
