"""The registry's HTTP side: one endpoint, its authentication, its manifests and its blobs.

OCI distribution-spec ("Pulling manifests", "Pulling blobs"); docker's token authentication. Runs in the worker only.
Connections are urllib3's; redirects, retries and credentials are decided here, because who may see a token is a
question of the registry protocol.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlencode, urljoin, urlsplit

import urllib3
from urllib3.exceptions import HTTPError, SSLError

from podkeep.base.errors import DataLoss, FailedPrecondition, NotFound, PermissionDenied, PodkeepError, Unavailable
from podkeep.images import manifest
from podkeep.images.layers import LayerJob

_TIMEOUT = urllib3.Timeout(connect=10.0, read=60.0)
_PIECE = 1 << 18
_ATTEMPTS = 4
"""Connections tried for one blob; each goes on where the one before broke off."""
_MAX_REDIRECTS = 5
_MAX_TOKEN_BYTES = 1 << 20
_CHALLENGE = re.compile(r'([a-zA-Z_]+)="([^"]*)"')
_DOWN = (408, 425, 429)


Body = Callable[[], bytes | Iterable[bytes]]
"""Opens what is to be sent, anew for each attempt."""


class Registry:
    """One endpoint and one repository on it; used by several threads.

    ``actions`` are what a token is asked for: ``pull``, or ``pull,push``.
    """

    def __init__(
        self, endpoint: Mapping[str, Any], repository: str, auth: Mapping[str, str], *, actions: str = "pull"
    ) -> None:
        self._host: str = endpoint["host"]
        prefix = f"{endpoint['prefix']}/" if endpoint["prefix"] else ""
        self._repository = f"{prefix}{repository}"
        self._schemes: tuple[str, ...] = tuple(endpoint["schemes"])
        self._auth = auth if endpoint["own"] else {}
        self._actions = actions
        self._authorization = ""
        self._lock = threading.Lock()
        tls: dict[str, Any] = {}
        if not endpoint["verify"]:
            tls = {"cert_reqs": "CERT_NONE", "assert_hostname": False}
            urllib3.disable_warnings()
        elif endpoint["ca_file"]:
            tls = {"ca_certs": endpoint["ca_file"]}
        self._pool = urllib3.PoolManager(timeout=_TIMEOUT, retries=False, maxsize=8, **tls)

    def __str__(self) -> str:
        return f"{self._host}/{self._repository}"

    def fetch_manifest(self, target: str) -> tuple[bytes, str]:
        """Return a manifest or index and its media type; ``target`` is a tag or digest. The caller verifies it.

        :raises NotFound: if the registry does not have it.
        :raises Unavailable: if the registry does not answer, or with an error of its own.
        """
        response = self._get(f"manifests/{target}", {"Accept": ", ".join(manifest.ACCEPTED)})
        data = self.whole(response, manifest.MAX_MANIFEST_BYTES, f"manifest {target}")
        return data, response.headers.get("Content-Type", "").partition(";")[0].strip()

    def document(self, described: manifest.Descriptor) -> bytes:
        """Return a small blob whole, verified.

        :raises DataLoss: if it does not match its digest.
        """
        response = self._get(f"blobs/{described.digest}", {})
        data = self.whole(response, described.size, f"blob {described.digest}")
        manifest.verify(data, described.digest, f"{self}: blob")
        return data

    def blob(self, job: LayerJob) -> Iterator[bytes]:
        """Yield a layer's bytes; a connection that breaks is made again and goes on where it was."""
        done = 0
        for attempt in range(1, _ATTEMPTS + 1):
            before = done
            try:
                for piece in self._blob_from(job, done):
                    done += len(piece)
                    yield piece
            except HTTPError as error:
                # Going on makes sense as long as something arrives.
                if attempt == _ATTEMPTS or (done == before and attempt > 1):
                    raise self._down(f"blob {job.shown} broke off after {done} of {job.size} bytes: {error}") from error
                continue
            if done >= job.size or done == before:
                return

    def _blob_from(self, job: LayerJob, start: int) -> Iterator[bytes]:
        headers = {"Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        response = self._get(f"blobs/{job.shown}", headers)
        try:
            position = start if response.status == 206 else 0
            for piece in response.stream(_PIECE, decode_content=False):
                fresh = piece[max(0, start - position) :]
                position += len(piece)
                if position > job.size:
                    raise DataLoss(f"{self}: blob {job.shown} has more than the {job.size} bytes its manifest says")
                if fresh:
                    yield fresh
        finally:
            response.close()

    def _get(self, path: str, headers: Mapping[str, str]) -> urllib3.BaseHTTPResponse:
        """Send a request, log in if asked to, and return an answer with status 200 or 206."""
        return self.exchange("GET", path, headers=headers, accept=(200, 206))

    def exchange(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        accept: Collection[int],
        body: Body | None = None,
        what: str = "",
    ) -> urllib3.BaseHTTPResponse:
        """Send any request of the protocol, log in if asked to, and return an answer with a status of ``accept``.

        :param path: below ``/v2/<repository>/``, or a URL that this registry handed out (``Location``).
        :param body: its length is in the headers.
        :param what: how errors call it, instead of by its path.
        :raises PodkeepError: for any other answer, and if none comes; the caller closes the answer it gets.
        """
        what = what or self._shown(path)
        response = self._send(method, path, headers, body)
        if response.status == 401:
            challenge = response.headers.get("WWW-Authenticate", "")
            response.close()
            self._log_in(challenge)
            response = self._send(method, path, headers, body)
        if response.status in accept:
            return response
        status = response.status
        said = _said(response)
        if status == 404:
            raise NotFound(f"{what}: not found{said}", hint="check the name and the tag")
        if status in (401, 403):
            raise PermissionDenied(
                f"{what}: the registry refuses access ({status}){said}", hint="check the credentials"
            )
        if status >= 500 or status in _DOWN:
            raise self._down(f"answered {status} for {what}{said}")
        raise FailedPrecondition(f"{what}: the registry answered {status}{said}")

    def _send(self, method: str, path: str, headers: Mapping[str, str], body: Body | None) -> urllib3.BaseHTTPResponse:
        last: PodkeepError | None = None
        for scheme in self._schemes:
            # An absolute URL stays what it is, and credentials go with it only to the registry's own host.
            url = urljoin(f"{scheme}://{self._host}/v2/{self._repository}/", path)
            try:
                response = self._follow(method, url, headers, body, own=f"{scheme}://{self._host}")
            except SSLError as error:
                last = self._down(f"{_tls_reason(error)}", hint=_tls_hint(self._host, str(error)))
            except HTTPError as error:
                last = self._down(_reason(error))
            else:
                self._schemes = (scheme,)  # what worked once is what it speaks
                return response
        raise last or self._down("no way to reach it is configured")

    def _follow(
        self, method: str, url: str, headers: Mapping[str, str], body: Body | None, *, own: str
    ) -> urllib3.BaseHTTPResponse:
        """Follow redirects; credentials stay with the host they are for, and TLS is never left."""
        first = urlsplit(own)
        for _ in range(_MAX_REDIRECTS + 1):
            here = urlsplit(url)
            if here.scheme not in (("https",) if first.scheme == "https" else ("http", "https")):
                raise FailedPrecondition(f"{self._host} redirects from TLS to {url}, which is refused")
            sent = dict(headers)
            if self._authorization and (here.scheme, here.netloc) == (first.scheme, first.netloc):
                sent["Authorization"] = self._authorization
            response = self._pool.request(
                method, url, body=body() if body else None, headers=sent, redirect=False, preload_content=False
            )
            location = response.headers.get("Location", "")
            # Of the rest, clients make a GET, which is no way to send something.
            followed = (301, 302, 303, 307, 308) if method in ("GET", "HEAD") else (307, 308)
            if response.status not in followed or not location:
                return response
            response.close()
            url = urljoin(url, location)
        raise self._down(f"more than {_MAX_REDIRECTS} redirects")

    def _log_in(self, challenge: str) -> None:
        """Answer a WWW-Authenticate challenge: basic, or a bearer token from the server it names."""
        kind, _, rest = challenge.partition(" ")
        if self._auth.get("registry_token"):
            self._authorization = f"Bearer {self._auth['registry_token']}"
        elif kind.lower() == "bearer":
            self._authorization = f"Bearer {self._token(dict(_CHALLENGE.findall(rest)))}"
        elif kind.lower() == "basic" and (basic := _basic(self._auth)):
            self._authorization = basic
        else:
            raise PermissionDenied(f"{self}: the registry asks for credentials", hint="give an image pull secret")

    def _token(self, fields: Mapping[str, str]) -> str:
        realm = fields.get("realm", "")
        scheme = urlsplit(realm).scheme
        if scheme != "https" and not (scheme == "http" and self._schemes == ("http",)):
            raise PermissionDenied(f"{self}: the registry sends credentials to {realm!r}, which is refused")
        query = {"service": fields.get("service", ""), "scope": f"repository:{self._repository}:{self._actions}"}
        try:
            if self._auth.get("identity_token"):
                form = query | {
                    "grant_type": "refresh_token",
                    "refresh_token": self._auth["identity_token"],
                    "client_id": "podkeep",
                }
                response = self._pool.request(
                    "POST",
                    realm,
                    body=urlencode(form),
                    headers={"Content-Type": "application/x-www-form-urlencoded"},
                    redirect=False,
                    preload_content=False,
                )
            else:
                basic = _basic(self._auth)
                url = f"{realm}{'&' if '?' in realm else '?'}{urlencode(query)}"
                response = self._pool.request(
                    "GET",
                    url,
                    headers={"Authorization": basic} if basic else {},
                    redirect=False,
                    preload_content=False,
                )
        except HTTPError as error:
            raise self._down(f"its token server {realm} does not answer: {_reason(error)}") from error
        if response.status >= 500 or response.status in _DOWN:
            raise self._down(f"its token server {realm} answered {response.status}")
        if response.status != 200:
            raise PermissionDenied(f"{self}: {realm} refuses a token ({response.status})", hint="check the credentials")
        answer = self.whole(response, _MAX_TOKEN_BYTES, "token")
        try:
            fields = json.loads(answer)
            return str(fields.get("token") or fields["access_token"])
        except (ValueError, KeyError, AttributeError) as error:
            raise self._down(f"its token server {realm} answered without a token") from error

    def whole(self, response: urllib3.BaseHTTPResponse, most: int, what: str) -> bytes:
        """Return an answer's body and release its connection.

        :raises DataLoss: if it has more than ``most`` bytes.
        """
        try:
            data = response.read(most + 1, decode_content=True)
        except HTTPError as error:
            raise self._down(f"{what} broke off: {_reason(error)}") from error
        finally:
            response.release_conn()
        if len(data) > most:
            raise DataLoss(f"{self}: {what} has more than the {most} bytes allowed")
        return data

    def _shown(self, path: str) -> str:
        kind, _, target = path.partition("/")
        if kind == "blobs":
            return f"blob {target} of {self}"
        return f"{self}@{target}" if ":" in target else f"{self}:{target}"

    def _down(self, why: str, *, hint: str = "") -> Unavailable:
        return Unavailable(f"RegistryUnavailable: {self._host}: {why}", hint=hint)


def _basic(auth: Mapping[str, str]) -> str:
    if auth.get("username") or auth.get("password"):
        pair = f"{auth.get('username', '')}:{auth.get('password', '')}"
        return f"Basic {base64.b64encode(pair.encode()).decode()}"
    return f"Basic {auth['auth']}" if auth.get("auth") else ""


def _said(response: urllib3.BaseHTTPResponse) -> str:
    """Return the registry's own words, shortened to a line (distribution-spec, "Error Codes")."""
    try:
        errors = json.loads(response.read(4096))["errors"]
        return f": {errors[0]['code']}: {errors[0].get('message', '')}"[:200].replace("\n", " ")
    except (HTTPError, ValueError, KeyError, IndexError, TypeError, AttributeError):
        return ""
    finally:
        response.close()


def _reason(error: BaseException) -> str:
    """Return the innermost cause of a connection error, without the objects urllib3 prints with it."""
    text = str(getattr(error, "reason", None) or error)
    return re.sub(r"^<?[\w.]*(?:Connection|Pool)[^>]*>?(?:\([^)]*\))?: ", "", text)


def _tls_reason(error: SSLError) -> str:
    return f"TLS: {str(error).strip()}"


def _tls_hint(host: str, text: str) -> str:
    if "WRONG_VERSION_NUMBER" in text or "record layer failure" in text:
        return f'it seems to speak plain HTTP: set insecure = true under [registries."{host}"]'
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return f'set ca_file under [registries."{host}"] to the authority that signed its certificate'
    return ""
