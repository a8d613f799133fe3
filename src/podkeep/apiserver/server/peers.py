"""Who connects to the unix socket: root, who may do everything there (the file's mode keeps everybody else out)."""

from __future__ import annotations

from podkeep.apiserver.auth.user import AUTHENTICATED, MASTERS, User
from podkeep.http.messages import Request

ROOT = User(name="system:admin", groups=(MASTERS, AUTHENTICATED))


class UnixPeers:
    """Authenticates by the credentials of the process at the other end (SO_PEERCRED, unix(7))."""

    def authenticate(self, request: Request) -> User | None:
        """Return root; None for anybody else, and on other sockets."""
        credentials = request.peer.credentials
        return ROOT if credentials is not None and credentials.uid == 0 else None
