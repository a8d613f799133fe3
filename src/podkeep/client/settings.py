"""How a server is reached and who the client is, as values: what a kubeconfig says of one context."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Pem:
    """A certificate or key: in a file, which is read again when it was replaced, or as it is; empty: none."""

    path: str = ""
    data: bytes = field(default=b"", repr=False)

    def __bool__(self) -> bool:
        return bool(self.path or self.data)


@dataclass(frozen=True, kw_only=True)
class ExecPlugin:
    """A program that prints credentials (client.authentication.k8s.io)."""

    command: str
    arguments: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    api_version: str = "client.authentication.k8s.io/v1"
    install_hint: str = ""
    interactive: bool = False
    """It wants a terminal (``interactiveMode: Always``)."""
    cluster: dict[str, Any] | None = field(default=None, hash=False)
    """``spec.cluster`` of what it is told; None: it is not told."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A server and a user of it.

    ``server`` is ``https://...``, ``http://...`` or ``unix:///PATH``.
    """

    server: str
    authority: Pem = Pem()
    """Whose certificates are believed; none: those of the system's authorities."""
    insecure: bool = False
    """Do not verify the server's certificate."""
    server_name: str = ""
    """What the server's certificate must have; empty: the host of ``server``."""
    certificate: Pem = Pem()
    key: Pem = Pem()
    token: str = field(default="", repr=False)
    token_file: str = ""
    """Is read again each minute; goes before ``token``."""
    username: str = ""
    password: str = field(default="", repr=False)
    exec_plugin: ExecPlugin | None = None
    impersonate: tuple[tuple[str, str], ...] = ()
    """Headers with which the user acts as another one."""
    namespace: str = "default"
    """What the context names."""
    context: str = ""
    files: tuple[str, ...] = field(default=(), compare=False)
    """The kubeconfigs that it was read in; certificates and keys in them are read again when one was replaced."""
