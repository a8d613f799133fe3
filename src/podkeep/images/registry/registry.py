"""The registry's side of the wire: one endpoint, its manifests and its blobs.

OCI distribution-spec ("Pulling manifests", "Pulling blobs"). Runs in the worker only. Owns: which answer means what,
which connection that broke is made again. Answers that say "later" are ``retry.py``'s, where requests may go is
``client.py``'s, logging in ``authorization.py``'s.
"""

from __future__ import annotations

import json
import re
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from podkeep.base.errors import (
    FailedPrecondition,
    NotFound,
    PermissionDenied,
    PodkeepError,
    RegistryUnavailable,
)
from podkeep.base.text.redaction import redacted
from podkeep.images.formats import manifest
from podkeep.images.registry import challenges
from podkeep.images.registry.authorization import Authorizer, Grant, credentials_of
from podkeep.images.registry.client import Body, Client, Url, parse_url
from podkeep.images.registry.dialing import TlsFailed
from podkeep.images.registry.endpoint import Endpoint
from podkeep.images.registry.http1 import Answer, BadAnswer, BrokenOff, TransferError
from podkeep.images.registry.retry import LATER, TRIES, OnWait, RetryPolicy, pause

if TYPE_CHECKING:
    from podkeep.base.ids import Digest

_BREAKS = 4
"""Connections that may break before a blob is given up; what arrives in between makes up for them."""
_FORGIVEN = 16 << 20
"""Bytes after which a connection that broke is forgotten."""
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)")


class Registry:
    """One endpoint and one repository on it; used by several threads.

    ``actions`` are what a token is asked for: ``pull``, or ``pull,push``. ``on_wait`` is told of each answer after
    which a request is sent again.
    """

    def __init__(
        self, endpoint: Endpoint, repository: str, *, actions: str = "pull", on_wait: OnWait | None = None
    ) -> None:
        self._host = endpoint.host
        prefix = f"{endpoint.prefix}/" if endpoint.prefix else ""
        self._repository = f"{prefix}{repository}"
        self._schemes = endpoint.schemes
        # There is another place to ask after a mirror: that is faster than waiting for it.
        tries = TRIES if endpoint.own else 1
        self._retry = RetryPolicy(tries=tries, on_wait=on_wait) if on_wait else RetryPolicy(tries=tries)
        self._client = Client(
            self._host,
            tls=endpoint.other_tls | {self._host: endpoint.tls},
            trusted=endpoint.configured,
            timeout=endpoint.progress_timeout,
        )
        self._authorizer = Authorizer(
            str(self),
            f"repository:{self._repository}:{actions}",
            [credentials_of(auth) for auth in endpoint.credentials],
            self._client,
            self._retry,
        )
        self.on_break: Callable[[Digest, int, int], None] = lambda digest, done, size: None
        """Called with a blob that broke off, the bytes that were had and its size, before it connects again.

        Set for pulls only: neither for the question whether an image has changed, nor for searches of referrers.
        """

    def __str__(self) -> str:
        return f"{self._host}/{self._repository}"

    def close(self) -> None:
        self._client.close()

    def fetch_manifest(self, target: str) -> tuple[bytes, str]:
        """Return a manifest or index and its media type; ``target`` is a tag or digest. The caller verifies it.

        :raises NotFound: if the registry does not have it.
        :raises RegistryUnavailable: if the registry does not answer, or with an error of its own.
        """
        answer = self._get(f"manifests/{target}", _ACCEPT)
        data = self.whole(answer, manifest.MAX_MANIFEST_BYTES, f"manifest {target}")
        return data, _media_type(answer)

    def manifest_digest(self, target: str) -> str:
        """Return the digest that the registry says it would serve; nothing if it does not say.

        :raises PodkeepError: as :meth:`fetch_manifest`.
        """
        answer = self.exchange("HEAD", f"manifests/{target}", headers=_ACCEPT, accept=(200, 400, 405, 501))
        answer.close()
        return answer.headers.get("Docker-Content-Digest", "") if answer.status == 200 else ""

    def document(self, described: manifest.Descriptor) -> bytes:
        """Return a small blob whole, verified.

        :raises FailedPrecondition: if it does not match its digest.
        """
        answer = self._get(f"blobs/{described.digest}", {})
        data = self.whole(answer, described.size, f"blob {described.digest}")
        manifest.verify(data, described.digest, f"{self}: blob")
        return data

    def blob(self, digest: Digest, size: int) -> Iterator[bytes]:
        """Yield a blob of ``size`` bytes; a connection that breaks is made again and goes on where it was.

        :raises FailedPrecondition: if there is more than the manifest says; the caller compares digests.
        :raises RegistryUnavailable: if it breaks off again and again.
        """
        done, breaks, since, ranges = 0, 0, 0, True
        while True:
            before = done
            try:
                for piece in self._blob_from(digest, size, done, ranges):
                    done += len(piece)
                    yield piece
            except TransferError as error:
                if done - since >= _FORGIVEN:
                    breaks, since = 0, done
                breaks += 1
                if breaks >= _BREAKS:
                    said = f"blob {digest} broke off after {done} of {size} bytes: {error}"
                    raise self._down(said, hint=error.hint) from error
                # A server that does wrong with ranges is asked for the whole blob, whose beginning is dropped here.
                ranges = ranges and not isinstance(error, BadAnswer)
                self.on_break(digest, done, size)
                if done == before:
                    time.sleep(pause(breaks))
                continue
            # A part may be shorter than it was asked for; a whole blob that is too short is what the registry has.
            breaks += 1
            if done >= size or done == before or not before or not ranges or breaks >= _BREAKS:
                return

    def _blob_from(self, digest: Digest, size: int, start: int, ranges: bool) -> Iterator[bytes]:
        partial = start > 0 and ranges
        headers = {"Range": f"bytes={start}-"} if partial else {}
        # A registry that cannot find the end of a range says 416, also when there is nothing left (RFC 9110, 15.5.17).
        answer = self.exchange("GET", f"blobs/{digest}", headers=headers, accept=(200, 206, 416), dropped=True)
        try:
            position = 0
            if answer.status == 416:
                raise BadAnswer("it refuses a part of the blob (416)")
            if answer.status == 206:
                position = _range_start(answer, digest, size, str(self))
                # An earlier start is fine: what is here already is cut off below.
                if not partial or position > start:
                    raise BadAnswer(f"it sends a part of the blob that nobody asked for, from byte {position}")
            while piece := answer.piece():
                fresh = piece[start - position :] if position < start else piece
                position += len(piece)
                if position > size:
                    raise FailedPrecondition(f"{self}: blob {digest} has more than the {size} bytes its manifest says")
                if fresh:
                    yield fresh
            # Without a length the end of a body and a broken connection look the same.
            if position < size and not answer.delimited:
                raise BrokenOff("the connection was closed early")
        finally:
            answer.close()

    def _get(self, path: str, headers: Mapping[str, str]) -> Answer:
        return self.exchange("GET", path, headers=headers, accept=(200,))

    def exchange(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        accept: Collection[int],
        body: Body | None = None,
        what: str = "",
        dropped: bool = False,
    ) -> Answer:
        """Send any request of the protocol, log in if asked to, and return an answer with a status of ``accept``.

        :param path: below ``/v2/<repository>/``, or a URL that this registry handed out (``Location``).
        :param body: its length is in the headers, if it is not in one piece.
        :param what: how errors call it, instead of by its path.
        :param dropped: raise a TransferError as it is, for a caller that tries again.
        :raises PodkeepError: for any other answer, and if none comes; the caller closes the answer it gets.
        """
        what = what or self._shown(path)
        logins = attempt = 0
        while True:
            attempt += 1
            answer, grant = self._send(method, path, headers, body, dropped)
            # 403 as well: some registries answer so where other credentials would do.
            while answer.status in (401, 403) and logins < self._authorizer.most:
                logins += 1
                if not self._renew(answer, grant):
                    break
                answer.close()
                answer, grant = self._send(method, path, headers, body, dropped)
            if answer.status not in (401, 403):
                self._authorizer.accept(grant)
            if answer.status in accept:
                return answer
            if not self._retry.wait(answer, attempt, what):
                raise self._error(answer, what)

    def _renew(self, answer: Answer, grant: Grant) -> bool:
        """Try to log in, or in another way; return whether there is something new to send."""
        registry = parse_url(self._url(self._schemes[0], ""))
        # Whoever a redirect leads to has no business with our credentials.
        if answer.origin != registry.origin:
            return False
        asked = challenges.parse(answer.headers.every("WWW-Authenticate")) if answer.status == 401 else []
        try:
            return self._authorizer.renew(grant, asked, registry)
        except PermissionDenied:
            if answer.status == 403:
                return False  # what it says now is worth more than why something before did not work
            answer.close()
            raise
        except PodkeepError:
            answer.close()
            raise

    def _error(self, answer: Answer, what: str) -> PodkeepError:
        status = answer.status
        said = _said(answer)
        if status == 404:
            return NotFound(f"{what}: not found{said}", hint="check the name and the tag")
        if status in (401, 403):
            return PermissionDenied(f"{what}: the registry refuses access ({status}){said}", hint=self._authorizer.hint)
        if status >= 500 or status in LATER:
            later = answer.headers.get("Retry-After", "")[:40]
            hint = f"it asks to try again after {later}" if later else ""
            return self._down(f"answered {status} for {what}{said}", hint=hint)
        return FailedPrecondition(f"{what}: the registry answered {status}{said}")

    def _send(
        self, method: str, path: str, headers: Mapping[str, str], body: Body | None, dropped: bool
    ) -> tuple[Answer, Grant]:
        failures: dict[str, str] = {}
        hint = ""
        for scheme in self._schemes:
            grant = self._authorizer.current()
            # An absolute URL stays what it is, and credentials go with it only to the registry's own host.
            url, owner = self._parsed(self._url(scheme, ""), path), parse_url(self._url(scheme, ""))
            if scheme == "https" and url.scheme != "https":
                raise FailedPrecondition(f"{self._host} sends from TLS to {url}, which is refused")
            try:
                answer = self._client.follow(
                    method, url, headers, authorization=grant.header, owner=owner.origin, body=body
                )
            except TransferError as error:
                # As long as the scheme is not settled, a failure may only mean that it is the other one.
                if dropped and len(self._schemes) == 1:
                    raise
                failures.setdefault(str(error), scheme)
                hint = _tls_hint(self._host, str(error)) if isinstance(error, TlsFailed) else error.hint
            else:
                self._schemes = (scheme,)  # what worked once is what it speaks
                return answer, grant
        several = len(failures) > 1
        raise self._down(
            "; ".join(f"over {scheme}: {text}" if several else text for text, scheme in failures.items()), hint=hint
        )

    def _parsed(self, base: str, path: str) -> Url:
        try:
            return parse_url(urljoin(base, path))
        except ValueError as error:
            raise FailedPrecondition(f"{self._host} refers to {path.partition('?')[0][:200]!r}: no URL") from error

    def _url(self, scheme: str, path: str) -> str:
        return f"{scheme}://{self._host}/v2/{self._repository}/{path}"

    def whole(self, answer: Answer, most: int, what: str) -> bytes:
        """Return an answer's body and let go of its connection.

        :raises FailedPrecondition: if it has more than ``most`` bytes.
        :raises RegistryUnavailable: if it breaks off.
        """
        pieces, size = [], 0
        try:
            while size <= most and (piece := answer.piece()):
                pieces.append(piece)
                size += len(piece)
        except TransferError as error:
            raise self._down(f"{what} broke off: {error}", hint=error.hint) from error
        finally:
            answer.close()
        if size <= most:
            data = _decoded(b"".join(pieces), answer.headers.get("Content-Encoding", ""), most, f"{self}: {what}")
            if len(data) <= most:
                return data
        raise FailedPrecondition(f"{self}: {what} has more than the {most} bytes allowed")

    def _shown(self, path: str) -> str:
        kind, _, target = path.partition("?")[0].partition("/")
        if kind == "blobs":
            return f"blob {target} of {self}"
        return f"{self}@{target}" if ":" in target else f"{self}:{target}"

    def _down(self, why: str, *, hint: str = "") -> RegistryUnavailable:
        return RegistryUnavailable(f"RegistryUnavailable: {self._host}: {why}", hint=hint)


_ACCEPT = {"Accept": ", ".join(manifest.ACCEPTED)}


def _media_type(answer: Answer) -> str:
    return answer.headers.get("Content-Type", "").partition(";")[0].strip()


def _range_start(answer: Answer, digest: Digest, size: int, who: str) -> int:
    match = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", "").strip())
    if match is None:
        raise BadAnswer("it does not say which part of the blob it sends")
    if match[3] not in ("*", str(size)):
        raise FailedPrecondition(f"{who}: blob {digest} has {match[3]} bytes there, and its manifest says {size}")
    return int(match[1])


def _decoded(data: bytes, coding: str, most: int, what: str) -> bytes:
    """Return a document as it was before it was compressed for the way; nobody asked for that, but some do."""
    coding = coding.strip().lower()
    if coding in ("", "identity"):
        return data
    if coding not in ("gzip", "x-gzip"):
        raise FailedPrecondition(f"{what} came with the Content-Encoding {coding[:40]!r}, which nobody asked for")
    # 31: gzip's header and trailer (16), with the largest window (15).
    unzip = zlib.decompressobj(31)
    try:
        # Bounded: a few KiB can decompress to gibibytes.
        plain = unzip.decompress(data, most + 1)
    except zlib.error as error:
        raise FailedPrecondition(f"{what} is damaged: {error}") from error
    if len(plain) <= most and not unzip.eof:
        raise FailedPrecondition(f"{what} is damaged: its compressed form ends too early")
    return plain


def _said(answer: Answer) -> str:
    """Return the registry's own words, shortened to a line (distribution-spec, "Error Codes")."""
    data = b""
    try:
        while len(data) < 4096 and (piece := answer.piece()):
            data += piece
        error = json.loads(data)["errors"][0]
        # Before it is cut: half a secret has another form.
        text = redacted(f": {error['code']}: {error.get('message', '')}")[:200]
        return "".join(char if char.isprintable() else " " for char in text)
    except (TransferError, ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return ""
    finally:
        answer.close()


def _tls_hint(host: str, text: str) -> str:
    if "WRONG_VERSION_NUMBER" in text or "record layer failure" in text:
        return f'it seems to speak plain HTTP: set insecure = true under [registries."{host}"]'
    if "not valid for" in text:
        return f"its certificate must name {host.rpartition(':')[0] or host} as a subjectAltName"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return f'set ca_file under [registries."{host}"] to the authority that signed its certificate'
    if "CERTIFICATE_REQUIRED" in text or "HANDSHAKE_FAILURE" in text:
        return f'it may want a certificate of ours: set cert_file and key_file under [registries."{host}"]'
    return ""
