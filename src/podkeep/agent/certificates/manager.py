"""Asking a cluster for a certificate, and renewing it before it expires, without a restart.

The rules are a kubelet's (client-go, util/certificate): a key of the node's own that never leaves it; a request whose
name follows from the key, so that a restart waits for the answer to the first one; renewal after 70 to 90 percent of
the certificate's life.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import random
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any

from podkeep.agent.certificates import orders
from podkeep.agent.certificates.orders import Delivery, Order, Subject
from podkeep.agent.certificates.store import CertificateStore
from podkeep.base.backoff import Backoff
from podkeep.base.errors import DeadlineExceeded, FailedPrecondition, PermissionDenied, PodkeepError
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text.printable import printable
from podkeep.client.client import Client
from podkeep.client.errors import ApiError
from podkeep.client.resources import CERTIFICATE_SIGNING_REQUESTS

log = logging.getLogger(__name__)

CLIENT_SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"
SERVING_SIGNER = "kubernetes.io/kubelet-serving"
WAIT_S = 900.0
"""For a request to be approved and signed; after that there is a new one."""
_RENEW_AFTER, _RENEW_UNTIL = 0.7, 0.9
"""Parts of a certificate's life between which it is renewed."""
_FIRST_WAIT_S, _MAX_WAIT_S = 2.0, 120.0
_SHORT_S = 1.0
"""A watch that ends earlier is waited for like a failure."""
_LEAST_S = 60.0
"""Between renewals, however short a certificate's life is."""
_LONGEST_SLEEP_S = 60.0
"""The clock may be set: the time of day is looked at once a minute."""


class Kind(FrozenStruct, kw_only=True):
    """A kind of certificate: its signer, its usages and its subject."""

    signer: str
    usages: tuple[str, ...]
    subject: Subject


def client_certificate(node: str) -> Kind:
    return Kind(
        signer=CLIENT_SIGNER,
        usages=("digital signature", "client auth"),
        subject=Subject(common_name=f"system:node:{node}", organizations=("system:nodes",)),
    )


def serving_certificate(node: str, dns_names: tuple[str, ...], addresses: tuple[str, ...]) -> Kind:
    return Kind(
        signer=SERVING_SIGNER,
        usages=("digital signature", "server auth"),
        subject=Subject(
            common_name=f"system:node:{node}",
            organizations=("system:nodes",),
            dns_names=dns_names,
            addresses=addresses,
        ),
    )


def renew_at(not_before: int, not_after: int, chance: float) -> float:
    """Return when a certificate is to be renewed, in seconds since 1970.

    :param chance: 0 to 1, so that not all nodes ask at once.
    """
    life = not_after - not_before
    return not_before + life * (_RENEW_AFTER + (_RENEW_UNTIL - _RENEW_AFTER) * chance)


def request_name(kind: Kind, public_key: bytes) -> str:
    """Return the name of a request, which is the same for the same key and certificate."""
    digest = hashlib.sha256(public_key)
    for text in (kind.signer, *kind.usages, kind.subject.common_name, *kind.subject.organizations):
        digest.update(b"\0" + text.encode())
    return f"node-csr-{digest.hexdigest()[:43]}"


class CertificateManager:
    """Of one kind of certificate.

    :param on_new: is called when there is another one.
    """

    def __init__(self, store: CertificateStore, kind: Kind, on_new: Callable[[], None] = lambda: None) -> None:
        self._store, self._kind, self._on_new = store, kind, on_new

    async def current(self) -> Delivery | None:
        """Return from when to when the current certificate is good; None: there is none that can be used now."""
        pem = await asyncio.to_thread(self._store.read)
        if not pem:
            return None
        try:
            return await self._usable(pem, pem)
        except PodkeepError as error:
            log.warning("%s: %s", self._store.current, error)
            return None

    async def _usable(self, certificate: str, key: str) -> Delivery:
        """Return what a certificate is.

        :raises FailedPrecondition: if it cannot be used, with this key and now.
        """
        found = await orders.deliver(Order(certificate=certificate, key=key))
        if found.not_after <= time.time():
            raise FailedPrecondition("the certificate has expired", hint="see that the clocks are right")
        if found.common_name != self._kind.subject.common_name:
            raise FailedPrecondition(f"the certificate is of {printable(found.common_name)}")
        return found

    async def obtain(self, client: Client) -> None:
        """Ask for a certificate until there is one.

        :param client: of a user who may ask, and read the answer.
        """
        backoff, said = Backoff(_FIRST_WAIT_S, _MAX_WAIT_S), ""
        while True:
            try:
                await self._requested(client)
                return
            except PodkeepError as error:
                if error.message != said:
                    log.warning("there is no certificate yet: %s", error)
                    said = error.message
                await asyncio.sleep(backoff.next())

    async def run(self, client: Client) -> None:
        """Renew the certificate whenever it is time, until cancelled."""
        least = 0.0
        while True:
            current = await self.current()
            if current is not None:
                moment = renew_at(current.not_before, current.not_after, random.random())
                # A cluster that signs for minutes only is not asked more than once a minute, but before there is no
                # good one left.
                await _until(max(moment, min(least, current.not_after)))
                log.info("%s is renewed", self._store.current)
            await self.obtain(client)
            least = time.time() + _LEAST_S

    async def _requested(self, client: Client) -> None:
        key = await asyncio.to_thread(self._store.pending_key)
        try:
            made = await orders.deliver(Order(subject=self._kind.subject, key=key))
        # The key that was kept cannot be used: there is a new one, or no certificate would ever come.
        except FailedPrecondition:
            if not key:
                raise
            made = await orders.deliver(Order(subject=self._kind.subject))
        # Kept before it is asked for: a restart asks under the same name and gets the answer to the first request.
        if made.key != key:
            await asyncio.to_thread(self._store.keep_pending_key, made.key)
        name = request_name(self._kind, made.public_key)
        try:
            certificate = await self._signed(client, name, made.request)
            # The API is believed that it signed, but not that it signed this key, or what can be used now: a pair that
            # does not fit would end all connections, and another one would be asked for at once, again and again.
            await self._usable(certificate, made.key)
        except (PermissionDenied, DeadlineExceeded, FailedPrecondition):
            # Nobody will sign this one any more: the next one has a new key.
            await asyncio.to_thread(self._store.keep_pending_key, "")
            raise
        await asyncio.to_thread(self._store.replace, certificate, made.key)
        log.info("%s: a certificate of %s", self._store.current, self._kind.subject.common_name)
        self._on_new()

    async def _signed(self, client: Client, name: str, request: str) -> str:
        """Return what the cluster signs.

        :raises PermissionDenied: if it refuses.
        :raises DeadlineExceeded: if nobody approves it.
        """
        body = {
            "apiVersion": CERTIFICATE_SIGNING_REQUESTS.api_version,
            "kind": CERTIFICATE_SIGNING_REQUESTS.kind,
            "metadata": {"name": name},
            "spec": {
                "request": base64.b64encode(request.encode()).decode(),
                "signerName": self._kind.signer,
                "usages": list(self._kind.usages),
            },
        }
        try:
            await client.create(CERTIFICATE_SIGNING_REQUESTS, body)
        except ApiError as error:
            # The request of an earlier process with this key: its answer is waited for.
            if not error.already_exists:
                raise
        try:
            async with asyncio.timeout(WAIT_S):
                return await self._answer(client, name)
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"certificate signing request {name} was not approved within {WAIT_S:g} s",
                hint=f"approve it with `kubectl certificate approve {name}`",
            ) from error

    async def _answer(self, client: Client, name: str) -> str:
        fields = f"metadata.name={name}"
        said = False
        waits = Backoff(_FIRST_WAIT_S, _MAX_WAIT_S)
        while True:
            found = await client.list(CERTIFICATE_SIGNING_REQUESTS, fields=fields)
            items = found.get("items") or ()
            if not items:
                raise FailedPrecondition(f"certificate signing request {name} was deleted")
            if certificate := certificate_of(items[0]):
                return certificate
            if not said:
                log.info("waiting for certificate signing request %s to be approved", name)
                said = True
            # From the list on, so that no answer falls between the two; when the watch ends, both begin anew.
            version = found["metadata"]["resourceVersion"]
            watch = client.watch(CERTIFICATE_SIGNING_REQUESTS, fields=fields, version=version)
            since = time.monotonic()
            async with aclosing(watch):
                async for event in watch:
                    if event.type == "DELETED":
                        raise FailedPrecondition(f"certificate signing request {name} was deleted")
                    if event.type == "MODIFIED" and (certificate := certificate_of(event.object)):
                        return certificate
            if time.monotonic() - since < _SHORT_S:
                await asyncio.sleep(waits.next())


def certificate_of(request: Mapping[str, Any]) -> str:
    """Return the certificate of a CertificateSigningRequest as PEM; empty if there is none yet.

    :raises PermissionDenied: if it is refused.
    :raises FailedPrecondition: if what there is is none.
    """
    status = request.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition.get("type") in ("Denied", "Failed"):
            name, kind = request["metadata"]["name"], condition["type"].lower()
            reason, message = condition.get("reason", ""), condition.get("message", "")
            raise PermissionDenied(
                f"certificate signing request {name} is {kind}, reason: {reason}, message: {message}"
            )
    data = status.get("certificate")
    try:
        return base64.b64decode(data, validate=True).decode("ascii") if data else ""
    except ValueError as error:
        name = request["metadata"]["name"]
        raise FailedPrecondition(f"what was signed of certificate signing request {name} is no PEM") from error


async def _until(moment: float) -> None:
    left = moment - time.time()
    while left > 0:
        await asyncio.sleep(min(left, _LONGEST_SLEEP_S))
        left = moment - time.time()
