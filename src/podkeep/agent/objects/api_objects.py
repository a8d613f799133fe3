"""The objects that the node's pods refer to, read from the API: a frozen snapshot of them for each step of a worker.

ConfigMaps and Secrets are followed by one watch for each object, for as long as a pod refers to it (kubelet,
util/manager/watch_based_manager.go): a node may watch nothing else of them. Tokens of service accounts are asked for,
kept, and asked for again before they expire (kubelet, token/token_manager.go). Claims and their volumes are read.
RuntimeClasses and Services are followed as a whole, once the first pod needs them.

Owns: reading, keeping, telling workers that something changed. Does not own: which objects a pod refers to
(``references``), or what their absence means (``Sources`` and its users).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from podkeep.agent.objects import references
from podkeep.agent.objects.references import References
from podkeep.agent.objects.runtime_classes import RuntimeClasses
from podkeep.agent.objects.services_file import ServicesFile
from podkeep.agent.objects.sources import Claim, Key, Sources, TokenKey, failure_key
from podkeep.api.configuration import ConfigMap, Secret
from podkeep.api.meta import ObjectMeta
from podkeep.api.pod import Pod
from podkeep.base.concurrency.tasks import Tasks
from podkeep.base.errors import FailedPrecondition, PodkeepError
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text import rfc3339
from podkeep.client.client import Client, Keep
from podkeep.client.errors import ApiError
from podkeep.client.reflector import Reflector
from podkeep.client.resources import (
    CONFIG_MAPS,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    RUNTIME_CLASSES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Resource,
)

log = logging.getLogger(__name__)

SYNC_S = 1.0
"""For which a snapshot waits for an object that has not been read yet (kubelet, as above)."""
NOT_SYNCED = "failed to sync {} cache: timed out waiting for the condition"
"""In a kubelet's words; with the resource in the singular."""
MAX_TOKEN_S = 24 * 3600.0
"""After which a token is asked for again, however long it is good."""
TOKEN_SHARE = 0.8
"""Of a token's life, after which it is asked for again."""
TOKEN_JITTER_S = 10.0
_TOKEN_RETRY_S = 30.0
_TOKEN_LOOK_S = 60.0
"""How often the time of day is looked at for tokens: the clock may be set."""
_TOKEN_LEEWAY_S = 60.0
"""By so much a token may have been issued in the future (the default leeway of the API's JWTs)."""
CLAIM_S = 60.0
"""For which a bound claim and its volume are not read again."""
ROOT_CA = "kube-root-ca.crt"
"""The ConfigMap that each pod of a namespace refers to."""
LINGER_S = 10.0
"""For which that is followed after the last pod: the next one needs no list and no connection for a watch."""
MOST_OF_POD = 256
"""ConfigMaps and Secrets, claims, or tokens that a pod refers to. Each is a request, of which the agent has 16 at a
time for all pods, and one of the first a connection for as long as the pod is there."""
MOST_OF_NAMESPACE = 512
MOST_OF_ALL = 1536
"""ConfigMaps and Secrets that are followed. The API lets a node have 2,048 watches: without one of its pods it would
learn of none."""
FEW_OF_NAMESPACE = 32
"""Which a namespace has when there are as many of all: others must not keep its pods from starting."""
_WATCH_S = 1800.0
"""Least time of a watch of one object; others begin anew each five minutes (kubelet, as above)."""

Value = TypeVar("Value")
Ref = tuple[str, str, str]
"""Resource, namespace and name."""


class _WatchedObject(Generic[Value]):
    """One object that pods refer to; a handler of its reflector. ``users``: UIDs of the pods."""

    def __init__(self, decode: Callable[[Mapping[str, Any]], Value], changed: Callable[[Iterable[str]], None]) -> None:
        self._decode, self._changed = decode, changed
        self.users: set[str] = set()
        self.value: Value | None = None
        self.immutable = False
        self.synced = asyncio.Event()
        self.settled = asyncio.Event()
        """Is set when it cannot change any more."""

    def replaced(self, items: Sequence[Mapping[str, Any]]) -> None:
        """See :class:`podkeep.client.reflector.Handler`."""
        self._set(items[0] if items else None)

    def changed(self, item: Mapping[str, Any]) -> None:
        """See :class:`podkeep.client.reflector.Handler`."""
        self._set(item)

    def deleted(self, item: Mapping[str, Any]) -> None:
        """See :class:`podkeep.client.reflector.Handler`."""
        self._set(None)

    def _set(self, item: Mapping[str, Any] | None) -> None:
        value = None if item is None else self._decode(item)
        # The first value is no news: whoever reads waits for it.
        news = self.synced.is_set() and value != self.value
        self.value = value
        self.synced.set()
        if item is not None and item.get("immutable"):
            self.settled.set()
        if news:
            self._changed(tuple(self.users))


class _WatchedList:
    """All objects of a resource, by namespace and name; a handler of its reflector."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self.items: dict[Key, Mapping[str, Any]] = {}
        self.synced = asyncio.Event()

    def replaced(self, items: Sequence[Mapping[str, Any]]) -> None:
        """See :class:`podkeep.client.reflector.Handler`."""
        self.items = {_key(item): item for item in items}
        self.synced.set()
        self._changed()

    def changed(self, item: Mapping[str, Any]) -> None:
        """See :class:`podkeep.client.reflector.Handler`."""
        key = _key(item)
        if self.items.get(key) != item:
            self.items[key] = item
            self._changed()

    def deleted(self, item: Mapping[str, Any]) -> None:
        """See :class:`podkeep.client.reflector.Handler`."""
        if self.items.pop(_key(item), None) is not None:
            self._changed()


class _Watch(FrozenStruct):
    """An object that is followed, and who does."""

    one: _WatchedObject[Any]
    reflector: Reflector
    task: asyncio.Task[None]

    def is_whole(self) -> bool:
        """Return whether what is known of the object is as new as a list would be: then nobody needs to ask again."""
        return self.one.synced.is_set() and self.reflector.error is None and not self.one.settled.is_set()


class _Token(FrozenStruct, kw_only=True):
    """A token; times in seconds since 1970."""

    text: str
    obtained: float
    refresh: float
    expires: float

    def is_new(self, now: float) -> bool:
        """Return whether it need not be replaced: one that seems to be of the future is not good yet.

        The clock was set back since. It is our own one that counts: the API's may be ahead of it all the time.
        """
        return self.obtained - _TOKEN_LEEWAY_S <= now < self.refresh


@dataclass(kw_only=True)
class _PodObjects:
    """What was read for one pod: the objects that it refers to, its tokens and claims."""

    refs: frozenset[Ref] = frozenset()
    tokens: dict[TokenKey, _Token] = field(default_factory=dict)
    claims: dict[str, tuple[float, Claim]] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class ApiObjects:
    """Reads for the pods of a node. ``on_change`` is called with the UID of a pod whose snapshot would be another one.

    :param on_change: wakes the pod's worker; must not block.
    :param services: keeps the Services that the API has, for a start while it is away.
    :param runtime_classes: is told the classes that the API has, from :meth:`start` or the first pod on that names one.
    """

    def __init__(
        self,
        client: Client,
        on_change: Callable[[str], None] = lambda _: None,
        *,
        runtime_classes: RuntimeClasses | None = None,
        services: ServicesFile | None = None,
    ) -> None:
        self._client = client
        self.on_change = on_change
        self._tasks = Tasks("reading objects of pods")
        self._watched: dict[Ref, _Watch] = {}
        self._pods: dict[str, _PodObjects] = {}
        self._services_file = services
        self._services_changed = asyncio.Event()
        self._services = _WatchedList(self._services_changed.set)
        self._runtime_classes = _WatchedList(self._know_classes)
        self.runtime_classes = runtime_classes or RuntimeClasses()
        self._following: set[str] = set()

    def start(self) -> None:
        """Follow RuntimeClasses from now on: they are asked for before a pod is taken on."""
        self._follow(RUNTIME_CLASSES, self._runtime_classes)
        if self._services_file is not None:
            self._tasks.keep(partial(self._keep_services, self._services_file))

    async def _keep_services(self, file: ServicesFile) -> None:
        while True:
            await self._services_changed.wait()
            self._services_changed.clear()
            await asyncio.to_thread(file.write, tuple(self._services.items.values()))

    async def read(self, pod: Pod) -> Sources:
        """Return a snapshot of what ``pod`` refers to. What cannot be read now is in its ``failures``, with the reason.

        It takes a second at most for ConfigMaps and Secrets, and a request's deadline for tokens and claims.

        :raises FailedPrecondition: if the pod refers to too many objects, or those of its namespace do.
        """
        wanted = references.of(pod)
        _require_few(wanted)
        user = self._pods.setdefault(pod.metadata.uid, _PodObjects())
        self._refer(pod, user, wanted)
        failures: dict[str, str] = {}
        # Two reads for one pod would ask for the same token twice, and forget what the other one has just read.
        async with user.lock:
            await asyncio.gather(
                self._synced(user, failures),
                self._tokens(pod, user, wanted.tokens, failures),
                self._claims(pod, user, wanted.claims, failures),
                self._services_of(pod, failures),
                self._runtime_class_of(pod),
            )
        if self._pods.get(pod.metadata.uid) is not user:
            # Released meanwhile: nothing is kept of it.
            self._forget(pod.metadata.uid, user)
        return self._snapshot(pod, user, wanted, failures)

    def release(self, pod: Pod) -> None:
        """Forget a pod that is gone; what no other pod refers to is not watched any more."""
        user = self._pods.pop(pod.metadata.uid, None)
        if user is not None:
            self._forget(pod.metadata.uid, user)

    async def close(self) -> None:
        for user in self._pods.values():
            if user.timer is not None:
                user.timer.cancel()
        self._pods.clear()
        self._watched.clear()
        await self._tasks.close()

    # -- ConfigMaps and Secrets

    def _refer(self, pod: Pod, user: _PodObjects, wanted: References) -> None:
        namespace, uid = pod.metadata.namespace, pod.metadata.uid
        refs = frozenset(
            [(CONFIG_MAPS.name, namespace, name) for name in wanted.config_maps]
            + [(SECRETS.name, namespace, name) for name in wanted.secrets]
        )
        self._require_room(refs, namespace)
        for ref in refs - user.refs:
            self._watch(ref).users.add(uid)
        for ref in user.refs - refs:
            self._drop(ref, uid)
        user.refs = refs

    def _require_room(self, refs: Set[Ref], namespace: str) -> None:
        """Check that what is followed anew is not too much.

        :raises FailedPrecondition: if it is.
        """
        new = len(refs - self._watched.keys())
        if not new:
            return
        followed = [ref for ref, known in self._watched.items() if not known.one.settled.is_set()]
        of_namespace = new + sum(ref[1] == namespace for ref in followed)
        if of_namespace > MOST_OF_NAMESPACE:
            raise FailedPrecondition(
                f"the pods of namespace {namespace} on this node refer to {of_namespace} ConfigMaps and Secrets that"
                f" are not immutable; at most {MOST_OF_NAMESPACE} are possible"
            )
        if len(followed) + new > MOST_OF_ALL and of_namespace > FEW_OF_NAMESPACE:
            raise FailedPrecondition(
                f"the pods of this node refer to {len(followed) + new} ConfigMaps and Secrets that are not immutable;"
                f" at most {MOST_OF_ALL} are possible"
            )

    def _watch(self, ref: Ref) -> _WatchedObject[Any]:
        known = self._watched.get(ref)
        if known is not None:
            # What was followed on for nobody is taken over only if no change of it can have been missed.
            if known.one.users or known.is_whole():
                return known.one
            self._end(ref, known)
        resource, namespace, name = ref
        one: _WatchedObject[Any] = (
            _WatchedObject(_config_map, self._tell)
            if resource == CONFIG_MAPS.name
            else _WatchedObject(_secret, self._tell)
        )
        of = CONFIG_MAPS if resource == CONFIG_MAPS.name else SECRETS
        reflector = Reflector(self._client, of, namespace, fields=f"metadata.name={name}", watch_s=_WATCH_S)
        self._watched[ref] = _Watch(one, reflector, self._tasks.start(_until_settled(reflector, one)))
        return one

    def _drop(self, ref: Ref, uid: str) -> None:
        known = self._watched.get(ref)
        if known is None:
            return
        known.one.users.discard(uid)
        if known.one.users:
            return
        if ref[0] == CONFIG_MAPS.name and ref[2] == ROOT_CA and known.is_whole():
            asyncio.get_running_loop().call_later(LINGER_S, self._end, ref, known)
        else:
            self._end(ref, known)

    def _end(self, ref: Ref, known: _Watch) -> None:
        """Follow an object no longer, unless a pod refers to it again."""
        if self._watched.get(ref) is known and not known.one.users:
            del self._watched[ref]
            known.task.cancel()

    def _forget(self, uid: str, user: _PodObjects) -> None:
        if user.timer is not None:
            user.timer.cancel()
            user.timer = None
        for ref in user.refs:
            self._drop(ref, uid)
        user.refs = frozenset()

    def _tell(self, uids: Iterable[str]) -> None:
        for uid in uids:
            self.on_change(uid)

    async def _synced(self, user: _PodObjects, failures: dict[str, str]) -> None:
        waiting = {ref: self._watched[ref].one.synced for ref in user.refs}
        await _all_set(waiting.values())
        for (resource, _, name), synced in waiting.items():
            if not synced.is_set():
                kind = resource.removesuffix("s")
                failures[failure_key(kind, name)] = NOT_SYNCED.format(kind)

    # -- tokens

    async def _tokens(self, pod: Pod, user: _PodObjects, wanted: Iterable[TokenKey], failures: dict[str, str]) -> None:
        for key in user.tokens.keys() - set(wanted):
            del user.tokens[key]
        await asyncio.gather(*(self._token(pod, user, key, failures) for key in wanted))
        self._wake_for_token(pod.metadata.uid, user)

    async def _token(self, pod: Pod, user: _PodObjects, key: TokenKey, failures: dict[str, str]) -> None:
        """Ask for a token if there is none, or it is old; the old one does while it is good."""
        known, now = user.tokens.get(key), time.time()
        if known is not None and known.is_new(now):
            return
        try:
            user.tokens[key] = await request_token(self._client, pod, key)
        except PodkeepError as error:
            if known is not None and now < known.expires:
                log.warning("token of pod %s/%s: %s", pod.metadata.namespace, pod.metadata.name, error)
                return
            user.tokens.pop(key, None)
            failures[failure_key("token", key[0])] = error.message

    def _wake_for_token(self, uid: str, user: _PodObjects) -> None:
        """Have the worker read again when the first of the pod's tokens is to be replaced."""
        if user.timer is not None:
            user.timer.cancel()
            user.timer = None
        if user.tokens and self._pods.get(uid) is user:
            now = time.time()
            wait = min(token.refresh for token in user.tokens.values()) - now
            # One that is due already could not be had: the next attempt is not at once.
            is_due = not all(token.is_new(now) for token in user.tokens.values())
            delay = _TOKEN_RETRY_S if is_due else min(wait + 0.1, _TOKEN_LOOK_S)
            user.timer = asyncio.get_running_loop().call_later(delay, self._look_at_tokens, uid, user)

    def _look_at_tokens(self, uid: str, user: _PodObjects) -> None:
        """Wake the worker if a token is to be replaced, and look again later if not."""
        user.timer, now = None, time.time()
        if all(token.is_new(now) for token in user.tokens.values()):
            self._wake_for_token(uid, user)
        else:
            self.on_change(uid)

    # -- claims

    async def _claims(self, pod: Pod, user: _PodObjects, names: Iterable[str], failures: dict[str, str]) -> None:
        for name in user.claims.keys() - set(names):
            del user.claims[name]
        await asyncio.gather(*(self._claim(pod, user, name, failures) for name in names))

    async def _claim(self, pod: Pod, user: _PodObjects, name: str, failures: dict[str, str]) -> None:
        known = user.claims.get(name)
        if known is not None and time.monotonic() < known[0]:
            return
        try:
            claim = await _found(self._client.get(PERSISTENT_VOLUME_CLAIMS, name, pod.metadata.namespace))
            bound = claim is not None and claim.get("status", {}).get("phase") == "Bound"
            volume = None
            if claim is not None and bound and (volume_name := claim["spec"].get("volumeName")):
                volume = await _found(self._client.get(PERSISTENT_VOLUMES, volume_name))
        except PodkeepError as error:
            user.claims.pop(name, None)
            failures[failure_key("persistentvolumeclaim", name)] = error.message
            return
        # One that is not bound yet is looked at each time.
        good = CLAIM_S if bound and volume is not None else 0.0
        user.claims[name] = time.monotonic() + good, Claim(claim=claim, volume=volume)

    # -- Services and RuntimeClasses

    async def _services_of(self, pod: Pod, failures: dict[str, str]) -> None:
        if pod.metadata.annotations.get(_SOURCE, "api") != "api":
            # A static pod starts without the API.
            return
        self._follow(SERVICES, self._services)
        await _all_set([self._services.synced])
        if not self._services.synced.is_set() and self._services_file is not None:
            # The API is away since before this process: those that it had last are the best that is known.
            known = await asyncio.to_thread(self._services_file.read)
            if known is not None and not self._services.synced.is_set():
                self._services.replaced(known)
        if not self._services.synced.is_set():
            failures[failure_key("service", "")] = (
                "services have not yet been read at least once, cannot construct envvars"
            )

    async def _runtime_class_of(self, pod: Pod) -> None:
        """Have the RuntimeClass of a pod known, if it names one; that takes a second at most."""
        if pod.spec.runtime_class_name:
            self._follow(RUNTIME_CLASSES, self._runtime_classes)
            await _all_set([self._runtime_classes.synced])

    def _know_classes(self) -> None:
        found = self._runtime_classes.items
        self.runtime_classes.know({name: str(item.get("handler", "")) for (_, name), item in found.items()})

    def _follow(self, resource: Resource, into: _WatchedList) -> None:
        if resource.name not in self._following:
            self._following.add(resource.name)
            keep = _KEPT[resource.name]
            self._tasks.keep(partial(Reflector(self._client, resource, keep=keep).run, into))

    # -- the snapshot

    def _snapshot(self, pod: Pod, user: _PodObjects, wanted: References, failures: Mapping[str, str]) -> Sources:
        namespace = pod.metadata.namespace
        services = {
            key: item for key, item in self._services.items.items() if key[0] == namespace or key == _KUBERNETES
        }
        return Sources(
            config_maps=self._values(CONFIG_MAPS, namespace, wanted.config_maps),
            secrets=self._values(SECRETS, namespace, wanted.secrets),
            tokens={key: token.text for key, token in user.tokens.items()},
            claims={(namespace, name): claim for name, (_, claim) in user.claims.items()},
            services=services,
            failures=failures,
        )

    def _values(self, resource: Resource, namespace: str, names: Iterable[str]) -> dict[Key, Any]:
        found = {}
        for name in names:
            known = self._watched.get((resource.name, namespace, name))
            if known is not None and known.one.value is not None:
                found[namespace, name] = known.one.value
        return found


def _require_few(wanted: References) -> None:
    """Check that a pod does not refer to more than can be read for it.

    :raises FailedPrecondition: if it does.
    """
    for what, count in (
        ("ConfigMaps and Secrets", len(wanted.config_maps) + len(wanted.secrets)),
        ("claims", len(wanted.claims)),
        ("tokens", len(wanted.tokens)),
    ):
        if count > MOST_OF_POD:
            raise FailedPrecondition(f"the pod refers to {count} {what}; at most {MOST_OF_POD} are possible")


_SOURCE = "kubernetes.io/config.source"
_KUBERNETES: Key = ("default", "kubernetes")
"""The service of the API, whose variables every pod gets."""


async def request_token(client: Client, pod: Pod, key: TokenKey) -> _Token:
    """Ask for a token of the pod's service account, bound to the pod.

    :raises PodkeepError: if it is not to be had.
    """
    audience, seconds = key
    namespace, account = pod.metadata.namespace, pod.spec.service_account_name or "default"
    bound = {"apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid}
    spec: dict[str, Any] = {"audiences": [audience] if audience else [], "expirationSeconds": seconds}
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {**spec, "boundObjectRef": bound},
    }
    made = await client.create(SERVICE_ACCOUNTS, request, namespace, name=account, subresource="token")
    return token_of(made, seconds, random.random(), time.time())


def token_of(made: Mapping[str, Any], asked: int, jitter: float, now: float) -> _Token:
    """Return the token of a TokenRequest.

    :param asked: seconds, for an answer that does not say for how long the token is.
    :param jitter: 0 to 1: how much of the ten seconds it is renewed earlier, so that not all are at once.
    :param now: when it came.
    """
    seconds = made.get("spec", {}).get("expirationSeconds") or asked
    status = made["status"]
    expires = rfc3339.seconds(status["expirationTimestamp"])
    issued = expires - seconds
    refresh = min(issued + MAX_TOKEN_S, expires - (1 - TOKEN_SHARE) * seconds) - jitter * TOKEN_JITTER_S
    return _Token(text=status["token"], obtained=now, refresh=refresh, expires=expires)


async def _until_settled(reflector: Reflector, one: _WatchedObject[Any]) -> None:
    """Follow an object until it cannot change any more."""
    async with Tasks(f"following {reflector}") as tasks:
        tasks.keep(partial(reflector.run, one))
        await one.settled.wait()


async def _all_set(events: Iterable[asyncio.Event]) -> None:
    """Wait until all are set; no longer than a second."""
    left = [event for event in events if not event.is_set()]
    if left:
        try:
            async with asyncio.timeout(SYNC_S):
                for event in left:
                    await event.wait()
        except TimeoutError:
            return


async def _found(asked: Awaitable[dict[str, Any]]) -> dict[str, Any] | None:
    try:
        return await asked
    except ApiError as error:
        if error.not_found:
            return None
        raise


def _key(item: Mapping[str, Any]) -> Key:
    metadata = item["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _kept_service(item: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what pods are told of a Service; None: nothing.

    All of the cluster are followed, and each namespace may have 200,000 without an address, or some with 256 KiB of
    annotations.
    """
    spec = item.get("spec") or {}
    if spec.get("clusterIP", "") in ("", "None"):
        return None
    ports = [{name: port[name] for name in _PORT if name in port} for port in spec.get("ports") or ()]
    return {"metadata": _named(item), "spec": {"clusterIP": spec["clusterIP"], "ports": ports}}


def _kept_class(item: Mapping[str, Any]) -> dict[str, Any]:
    return {"metadata": _named(item), "handler": item.get("handler", "")}


def _named(item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: item["metadata"][name] for name in ("namespace", "name") if name in item["metadata"]}


_PORT = ("name", "port", "protocol")
_KEPT: Mapping[str, Keep] = {SERVICES.name: _kept_service, RUNTIME_CLASSES.name: _kept_class}


def _meta(item: Mapping[str, Any]) -> ObjectMeta:
    metadata = item["metadata"]
    return ObjectMeta(
        name=metadata["name"],
        namespace=metadata.get("namespace", ""),
        uid=metadata.get("uid", ""),
        resource_version=metadata.get("resourceVersion", ""),
    )


def _config_map(item: Mapping[str, Any]) -> ConfigMap:
    """Return a ConfigMap; fields that a newer API has are left out."""
    return ConfigMap(
        metadata=_meta(item),
        immutable=bool(item.get("immutable")),
        data=dict(item.get("data") or {}),
        binary_data=_decoded(item.get("binaryData")),
    )


def _secret(item: Mapping[str, Any]) -> Secret:
    """Return a Secret; fields that a newer API has are left out."""
    return Secret(
        metadata=_meta(item),
        immutable=bool(item.get("immutable")),
        data=_decoded(item.get("data")),
        type=item.get("type") or "",
    )


def _decoded(data: Mapping[str, str | None] | None) -> dict[str, bytes]:
    try:
        return {key: base64.b64decode(text or "", validate=True) for key, text in (data or {}).items()}
    except (binascii.Error, ValueError):
        log.warning("the API has data that is no base64")
        return {}
