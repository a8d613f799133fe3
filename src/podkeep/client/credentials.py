"""Who a client is: tokens, client certificates and credentials of programs, read again when they change.

Owns: the TLS context and the headers of requests. Files are looked at when a connection is made, so a renewed
certificate counts for the next one.
"""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from podkeep.base.errors import FailedPrecondition, PodkeepError
from podkeep.base.text import rfc3339
from podkeep.client import kubeconfig
from podkeep.client.settings import ExecPlugin, Pem, Settings
from podkeep.http.tls import limit_buffers

TOKEN_S = 60.0
"""For which a token's file is not read again (client-go, transport/token_source.go)."""
EXEC_TIMEOUT_S = 60.0
_EXEC_BYTES = 1 << 20
_PEM_BYTES = 1 << 20
_Stamp = tuple[tuple[int, int, int], ...]


class _ExecStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: str | None = None


class _ExecCredential(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    status: _ExecStatus | None = None


class Credentials:
    """Of one client; not for several threads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._context: ssl.SSLContext | None = None
        self._stamp: _Stamp = ()
        self._files = _stamps(settings.files)
        self._token, self._token_read = "", float("-inf")
        self._granted: _ExecStatus | None = None
        self._granted_until = float("inf")
        self._asking = asyncio.Lock()
        self._fixed = _fixed(settings)

    async def headers(self) -> list[tuple[str, str]]:
        """Return the headers that say who the client is.

        :raises FailedPrecondition: if a token's file cannot be read, or a program gives no credentials.
        """
        token = await self._bearer()
        return [*self._fixed, ("authorization", f"Bearer {token}")] if token else self._fixed

    async def _bearer(self) -> str:
        settings = self._settings
        if settings.exec_plugin is not None:
            return (await self._granting(settings.exec_plugin)).token
        if settings.token_file:
            return self._token_of_file(settings.token_file)
        return settings.token

    def _token_of_file(self, path: str) -> str:
        now = time.monotonic()
        if now - self._token_read >= TOKEN_S:
            try:
                with Path(path).open("rb") as file:
                    token = file.read(_PEM_BYTES).decode().strip()
            except (OSError, UnicodeDecodeError) as error:
                # The old one may still be good: the server says so.
                if not self._token:
                    raise FailedPrecondition(f"token {path} cannot be read: {error}") from error
            else:
                if not token and not self._token:
                    raise FailedPrecondition(f"token {path} is empty")
                self._token = token or self._token
            self._token_read = now
        return self._token

    async def _granting(self, plugin: ExecPlugin) -> _ExecStatus:
        # Requests that find no credentials at the same time run the program once.
        async with self._asking:
            if self._granted is None or time.time() >= self._granted_until:
                # In a thread: the program may take up to EXEC_TIMEOUT_S.
                granted = await asyncio.to_thread(_ask, plugin)
                self._granted, self._granted_until = granted, _until(granted)
                # The context was made with the certificate before.
                if granted.client_certificate_data:
                    self._context = None
            return self._granted

    def refused(self) -> bool:
        """Forget what the server does not accept (401); return whether there may be something newer."""
        again = bool(self._granted or self._token)
        self._granted = None
        self._token_read = float("-inf")
        return again

    async def context(self) -> ssl.SSLContext | None:
        """Return how a connection is secured; None: it is not.

        :raises FailedPrecondition: if a certificate or key cannot be used.
        """
        if not self._settings.server.startswith("https:"):
            return None
        if (files := _stamps(self._settings.files)) != self._files:
            self._take(kubeconfig.renewed(self._settings), files)
        settings = self._settings
        if settings.exec_plugin is not None:
            await self._granting(settings.exec_plugin)
        stamp = _stamps(pem.path for pem in (settings.authority, settings.certificate, settings.key))
        if self._context is None or stamp != self._stamp:
            self._context, self._stamp = self._made(settings), stamp
        return self._context

    def _take(self, settings: Settings, files: _Stamp) -> None:
        """Go by what a kubeconfig has now, if it can be used: half a key may be there while it is written.

        If not, it is read again next time: a file that it names may come later.
        """
        with suppress(FailedPrecondition):
            self._context = self._made(settings)
            self._settings, self._files = settings, files

    def _made(self, settings: Settings) -> ssl.SSLContext:
        granted = self._granted
        certificate, key = settings.certificate, settings.key
        if granted is not None and granted.client_certificate_data:
            certificate = Pem(data=granted.client_certificate_data.encode())
            key = Pem(data=granted.client_key_data.encode())
        limit_buffers()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            if settings.insecure:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            elif settings.authority:
                context.load_verify_locations(cadata=_content(settings.authority).decode("ascii"))
            else:
                context.load_default_certs()
            if certificate:
                with _as_file(certificate) as first, _as_file(key or certificate) as second:
                    # Without a password at hand OpenSSL would ask for it on the terminal, and wait.
                    context.load_cert_chain(first, second, password="")
        except (OSError, ValueError) as error:
            names = [item.path for item in (settings.authority, certificate, key) if item.path]
            what = " or ".join(names) or "the kubeconfig's certificates"
            raise FailedPrecondition(f"{what} cannot be used: {error}") from error
        return context


def _fixed(settings: Settings) -> list[tuple[str, str]]:
    headers = list(settings.impersonate)
    if settings.username and not (settings.token or settings.token_file or settings.exec_plugin):
        pair = base64.b64encode(f"{settings.username}:{settings.password}".encode()).decode()
        headers.append(("authorization", f"Basic {pair}"))
    return headers


def _stamps(paths: Iterable[str]) -> _Stamp:
    """Return what tells whether files were replaced since."""
    return tuple(_stamp(path) for path in paths)


def _stamp(path: str) -> tuple[int, int, int]:
    if not path:
        return 0, 0, 0
    try:
        info = Path(path).stat()
    except OSError:
        return 0, 0, 0
    return info.st_ino, info.st_mtime_ns, info.st_size


def _content(pem: Pem) -> bytes:
    if not pem.path:
        return pem.data
    with Path(pem.path).open("rb") as file:
        return file.read(_PEM_BYTES)


@contextmanager
def _as_file(pem: Pem) -> Iterator[str]:
    """Yield the path of a certificate or key: OpenSSL reads files only, and a key is to reach no disk."""
    if pem.path:
        yield pem.path
        return
    fd = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        os.pwrite(fd, pem.data, 0)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def _until(granted: _ExecStatus) -> float:
    if granted.expiration_timestamp is None:
        return float("inf")
    try:
        return rfc3339.seconds(granted.expiration_timestamp)
    except ValueError:
        return float("inf")


def _ask(plugin: ExecPlugin) -> _ExecStatus:
    """Run a program for credentials; blocks.

    :raises FailedPrecondition: if it gives none.
    """
    from podkeep.base import spawn  # on a node there is no such program

    name = f"exec credentials: `{plugin.command}`"
    hint = plugin.install_hint
    if plugin.interactive:
        raise FailedPrecondition(f"{name} wants a terminal (interactiveMode: Always)", hint="use IfAvailable or Never")
    spec: dict[str, Any] = {"interactive": False}
    if plugin.cluster is not None:
        spec["cluster"] = {
            key: base64.b64encode(value).decode() if isinstance(value, bytes) else value
            for key, value in plugin.cluster.items()
        }
    request = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    environment = {**os.environ, **dict(plugin.environment)}
    environment["KUBERNETES_EXEC_INFO"] = msgspec.json.encode(request).decode()
    try:
        done = spawn.run_foreign(
            [plugin.command, *plugin.arguments],
            stdin=b"",
            timeout=EXEC_TIMEOUT_S,
            env=environment,
            output_limit=_EXEC_BYTES,
        )
        done.check()
        credential = msgspec.json.decode(done.stdout, type=_ExecCredential)
    except (PodkeepError, OSError) as error:
        raise FailedPrecondition(f"{name} failed: {error}", hint=hint) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FailedPrecondition(f"{name} printed no ExecCredential: {error}") from error
    if credential.api_version != plugin.api_version or credential.kind != "ExecCredential":
        printed = f"{credential.kind} of {credential.api_version!r}"
        raise FailedPrecondition(f"{name} printed {printed}, not ExecCredential of {plugin.api_version!r}")
    status = credential.status
    if status is None or not (status.token or status.client_certificate_data):
        raise FailedPrecondition(f"{name} printed an ExecCredential without token and client certificate")
    if bool(status.client_certificate_data) != bool(status.client_key_data):
        raise FailedPrecondition(f"{name} printed a client certificate or key without the other")
    return status
