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

log = logging.getLogger(__name__)

FILE = "rdt-groups.json"
"""In the runtime's persistent directory."""


class _Content(msgspec.Struct, frozen=True, kw_only=True):
    boot: str
    resctrl: str
    """Where the file system is mounted."""
    groups: dict[str, str] = {}
    """Names to :meth:`podkeep.kernel.resctrl.Resctrl.identity`; empty: about to be made."""
    default_changed: bool = False
    """The default group does not have everything any more."""


class Notes:
    """The notes about one resctrl file system. One thread at a time changes them."""

    def __init__(self, root: Path, resctrl: Path) -> None:
        """Read the notes in ``root``; what cannot be read makes every group somebody else's."""
        self._file = root / FILE
        self._content = self._read(_Content(boot=procfs.boot_id(), resctrl=str(resctrl)))

    @property
    def groups(self) -> dict[str, str]:
        """Names of groups to their identities; empty: not known, because making it was not finished."""
        return dict(self._content.groups)

    @property
    def default_changed(self) -> bool:
        """Whether the default group was changed."""
        return self._content.default_changed

    def __bool__(self) -> bool:
        return bool(self._content.groups) or self._content.default_changed

    def note(self, name: str, identity: str = "") -> None:
        """Note a group: before it is made, and again when its identity is known.

        :raises KernelCallError: if the file cannot be written.
        """
        self._write(groups={**self._content.groups, name: identity})

    def forget(self, name: str) -> None:
        """Forget a group.

        :raises KernelCallError: if the file cannot be written.
        """
        if name in self._content.groups:
            self._write(groups={key: value for key, value in self._content.groups.items() if key != name})

    def note_default(self, changed: bool) -> None:
        """Note whether the default group is changed.

        :raises KernelCallError: if the file cannot be written.
        """
        if changed != self._content.default_changed:
            self._write(default_changed=changed)

    def _write(self, **changes: object) -> None:
        content = msgspec.structs.replace(self._content, **changes)
        try:
            atomicfile.write(self._file, msgspec.json.encode(content))
        except OSError as error:
            raise KernelCallError(f"write({self._file})", error.errno or 0) from error
        self._content = content

    def _read(self, empty: _Content) -> _Content:
        try:
            found = msgspec.json.decode(self._file.read_bytes(), type=_Content)
        except FileNotFoundError:
            return empty
        except (OSError, msgspec.DecodeError) as error:
            log.warning("%s cannot be read, so no group of resctrl is taken for podkeep's own: %s", self._file, error)
            return empty
        return found if (found.boot, found.resctrl) == (empty.boot, empty.resctrl) else empty
