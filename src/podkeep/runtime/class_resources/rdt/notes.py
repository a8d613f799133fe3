"""What this runtime has made or changed in resctrl, so that it takes back that and nothing else.

Owns: the file ``<root>/rdt-groups.json``. Does not own: the groups (``groups.py``). Nothing of resctrl outlives a boot,
so a note of another boot says nothing; nor does one of a group whose place somebody else's has taken since.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from podkeep.base import atomicfile
from podkeep.base.errors import KernelCallError
from podkeep.kernel import procfs
from podkeep.runtime.class_resources.model import RDT_NOTES

log = logging.getLogger(__name__)


class _Content(msgspec.Struct, frozen=True, kw_only=True):
    boot: str
    resctrl: str
    """Where the file system is mounted."""
    groups: dict[str, str] = {}
    """Names to :meth:`podkeep.kernel.resctrl.Resctrl.identity`; empty: about to be made."""
    default_changed: bool = False
    """The default group does not have everything any more."""


class Notes:
    """The notes about one resctrl file system. One thread at a time changes them.

    Nothing of the file is kept in memory: during a reload there are two of these. What changes it raises
    :class:`KernelCallError` if the file cannot be written.
    """

    def __init__(self, root: Path, resctrl: Path) -> None:
        """Use the file in ``root``; while it cannot be read, every group is somebody else's."""
        self._file = root / RDT_NOTES
        self._empty = _Content(boot=procfs.boot_id(), resctrl=str(resctrl))

    @property
    def groups(self) -> dict[str, str]:
        """Names of groups to their identities; empty: not known, because making it was not finished."""
        return self._read().groups

    @property
    def default_changed(self) -> bool:
        """Whether the default group was changed."""
        return self._read().default_changed

    def __bool__(self) -> bool:
        return self._read() != self._empty

    def note(self, name: str, identity: str = "") -> None:
        """Note a group: before it is made, and again when its identity is known."""
        self._change(groups={**self.groups, name: identity})

    def forget(self, name: str) -> None:
        """Forget a group."""
        groups = self.groups
        if groups.pop(name, None) is not None:
            self._change(groups=groups)

    def note_default(self, changed: bool) -> None:
        """Note whether the default group is changed."""
        if changed != self.default_changed:
            self._change(default_changed=changed)

    def _change(self, **changes: object) -> None:
        content = msgspec.structs.replace(self._read(), **changes)
        try:
            if content == self._empty:
                self._file.unlink(missing_ok=True)
            else:
                atomicfile.write(self._file, msgspec.json.encode(content))
        except OSError as error:
            raise KernelCallError(f"write({self._file})", error.errno or 0) from error

    def _read(self) -> _Content:
        try:
            found = msgspec.json.decode(self._file.read_bytes(), type=_Content)
        except FileNotFoundError:
            return self._empty
        except (OSError, msgspec.DecodeError) as error:
            log.warning("%s cannot be read, so no group of resctrl is taken for podkeep's own: %s", self._file, error)
            return self._empty
        return found if (found.boot, found.resctrl) == (self._empty.boot, self._empty.resctrl) else self._empty
