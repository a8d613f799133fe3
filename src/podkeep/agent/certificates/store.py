"""Where a certificate and its key are kept, with a kubelet's names: ``<prefix>-<time>.pem``, ``<prefix>-current.pem``.

The current one is a link that is replaced at once: whoever opens it has the old pair or the new. Blocking.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from podkeep.base import atomicfile
from podkeep.base.errors import refused

_BYTES = 1 << 20


class CertificateStore:
    """Of one kind of certificate.

    :param prefix: ``kubelet-client`` or ``kubelet-server``.
    """

    def __init__(self, directory: Path, prefix: str) -> None:
        self._directory, self._prefix = directory, prefix
        self.current = directory / f"{prefix}-current.pem"

    def read(self) -> str:
        """Return the current certificate and its key as one PEM text; empty if there is none.

        :raises FailedPrecondition: if it cannot be read.
        """
        return self._read(self.current)

    def pending_key(self) -> str:
        """Return the key for which a certificate has been asked and has not come; empty if there is none."""
        return self._read(self._pending)

    def keep_pending_key(self, key: str) -> None:
        """Keep the key for which a certificate is asked, so that it is not asked for twice.

        :raises FailedPrecondition: if it cannot be written.
        """
        self._write(self._pending, key)

    def replace(self, certificate: str, key: str) -> None:
        """Make a certificate the current one, and remove those before the last.

        :raises FailedPrecondition: if it cannot be written.
        """
        # Names have the time in them and so sort by age. The last one stays: connections may be about to open it.
        before = sorted(self._directory.glob(f"{self._prefix}-2*.pem"))
        name = self._directory / f"{self._prefix}-{time.strftime('%Y-%m-%d-%H-%M-%S', time.gmtime())}.pem"
        self._write(name, f"{certificate.strip()}\n{key.strip()}\n")
        link = self._directory / f".{self._prefix}-current.pem"
        try:
            link.unlink(missing_ok=True)
            link.symlink_to(name.name)
            link.rename(self.current)
            # Before the pending key goes: after a loss of power there must be the new pair or the key to ask with.
            atomicfile.sync_directory(self._directory)
        except OSError as error:
            raise refused(f"{self.current} cannot be replaced", error) from error
        for path in [*before[:-1], self._pending]:
            if path != name:
                with suppress(OSError):
                    path.unlink()

    @property
    def _pending(self) -> Path:
        return self._directory / f"{self._prefix}.key.tmp"

    def _read(self, path: Path) -> str:
        try:
            with path.open("rb") as file:
                return file.read(_BYTES).decode("ascii", errors="replace")
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise refused(f"{path} cannot be read", error) from error

    def _write(self, path: Path, text: str) -> None:
        try:
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
            atomicfile.write(path, text.encode())
        except OSError as error:
            raise refused(f"{path} cannot be written", error) from error
