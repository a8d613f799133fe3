"""Having an image on the node before what needs it starts, by its pull policy, in the words of a kubelet.

Owns: the order of looking, pulling and trying again, with the credentials of the pod's pull secrets and of the plugins;
what each outcome is called; how many pulls there are at a time. A pull that failed is not tried again for the same pod
before its back-off is over. Does not own: what the node itself has of credentials (the runtime's), or when somebody
asks again (``worker``).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec

from podkeep.agent import durations
from podkeep.agent.backoff import PullBackOff
from podkeep.agent.convert.security import ImageUser
from podkeep.agent.events import Event, PullFailed
from podkeep.agent.images.pull_records import Pull, PullRecords
from podkeep.agent.metrics import ENSURE_IMAGE_REQUESTS, IMAGE_PULL_DURATION, AgentMetrics, size_bucket
from podkeep.base.concurrency.tasks import finished
from podkeep.base.errors import (
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    PodkeepError,
    RegistryUnavailable,
    ResourceExhausted,
    Unavailable,
)
from podkeep.base.frozen import FrozenStruct
from podkeep.base.registries import reference
from podkeep.base.registries.docker_config import Credentials, Keyring
from podkeep.base.registries.reference import Reference
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2

log = logging.getLogger(__name__)

ShowPull = Callable[[str, Awaitable[str]], Awaitable[str]]
"""Awaits a pull and shows its progress meanwhile: called with the image's name and the pull."""
Clock = Callable[[], float]
"""Seconds of a clock that only goes forward."""

SEEN_S = 1.0
"""Seconds for which ErrImagePull is a container's state before ImagePullBackOff is, so that it can be seen."""
ASK_AGAIN_S = 10.0
"""Seconds between looks at an image that no pull will bring, as a kubelet syncs its pods."""
_SPECIAL = {
    "RegistryUnavailable": "because the registry is unavailable",
    "SignatureValidationFailed": "because the signature validation failed",
}
"""Errors of PullImage that are told apart, by how their texts begin, and what a kubelet says of each (CRI, errors)."""
_UNANSWERED = (Cancelled, DeadlineExceeded, Unavailable)
"""What may come instead of the answer of a runtime that pulls nevertheless."""
_FINAL = (DeadlineExceeded, InvalidArgument, RegistryUnavailable, ResourceExhausted, Unavailable)
"""What other credentials would not change."""


class LocalImage(FrozenStruct, kw_only=True):
    """An image the runtime has: what to call it in requests, the user it runs as, and all its names. ``size`` in
    bytes."""

    ref: str
    user: ImageUser
    size: int = 0
    names: tuple[str, ...] = ()


class Wanted(FrozenStruct, kw_only=True):
    """An image to have, pulled when ``policy`` says so. ``container`` is empty for one of the pod's volumes."""

    image: str
    policy: str
    container: str = ""


class PodPull(FrozenStruct, kw_only=True):
    """For which pod images are had.

    ``handler`` is its runtime handler, ``report`` gets the events of its images.
    """

    uid: str
    sandbox: api_pb2.PodSandboxConfig
    report: Callable[[Event], None]
    handler: str = ""
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)
    keyring: Keyring = msgspec.field(default_factory=Keyring)

    def spec(self, image: str) -> api_pb2.ImageSpec:
        """Return how the runtime is asked for ``image``."""
        return api_pb2.ImageSpec(
            image=image, user_specified_image=image, runtime_handler=self.handler, annotations=self.annotations
        )


class PullLimits(FrozenStruct, kw_only=True):
    """Pulls at a time and per second, ``burst`` of them at once after a pause; 0: any number."""

    parallel: int = 0
    per_second: float = 0.0
    burst: int = 10


@dataclass(kw_only=True)
class _Recorded:
    """What a pull brought, by IDs and ``names``, and with which of the pod's credentials; None: with none of them.

    ``unknown``: the runtime may have an image of which it did not say so.
    """

    images: tuple[str, ...] = ()
    names: tuple[Reference, ...] = ()
    credentials: Credentials | None = None
    unknown: bool = False


class Plugins(Protocol):
    """Programs that have credentials for images (``plugins``)."""

    async def credentials(self, image: str, pod: PodPull) -> Sequence[Credentials]:
        """Return those for ``host/repository``, in the order in which to try them; nothing if none has any."""


async def _begun(records: PullRecords, name: Reference, here: LocalImage | None) -> Pull:
    """Note that a pull begins; a caller that is cancelled meanwhile leaves no file of it.

    :param here: what the name leads to now.
    """
    image, names = ("", ()) if here is None else (here.ref, tuple(_references(here.names)))
    beginning = asyncio.ensure_future(asyncio.to_thread(records.begin, name, image, names))
    try:
        await finished(beginning)
    except asyncio.CancelledError:
        if beginning.exception() is None:
            records.failed(beginning.result())
        raise
    return beginning.result()


async def _silently(image: str, pull: Awaitable[str]) -> str:
    return await pull


class Images:
    """The image service of one runtime.

    :param show: shows a pull while it runs.
    :param clock: times the back-offs.
    """

    def __init__(
        self,
        client: CriClient,
        show: ShowPull | None = None,
        clock: Clock = time.monotonic,
        *,
        limits: PullLimits | None = None,
        plugins: Plugins | None = None,
        records: PullRecords | None = None,
        metrics: AgentMetrics | None = None,
    ) -> None:
        self._client = client
        self._show = show or _silently
        self._clock = clock
        self._back_off = PullBackOff()
        self._plugins = plugins
        self._records = records
        self._limits = limits or PullLimits()
        self._slots = asyncio.Semaphore(self._limits.parallel) if self._limits.parallel else nullcontext()
        self._allowance, self._allowed_at = float(self._limits.burst), clock()
        self._wanted: Counter[str] = Counter()
        self.metrics = metrics or AgentMetrics()

    @property
    def wanted(self) -> frozenset[str]:
        """Names of images that somebody is having now: looked for, waiting for a pull, or pulled."""
        return frozenset(self._wanted)

    def removing(self, image: str) -> Callable[[], None]:
        """Return what forgets who may use an image, an ID, once it was removed; call this before. Both block."""
        forget = None
        with _kept_if_it_fails():
            forget = self._records.removing(image) if self._records is not None else None

        def forget_it() -> None:
            with _kept_if_it_fails():
                if forget is not None:
                    forget()

        return forget_it

    def prune(self, names: Iterable[str]) -> None:
        """Forget pulls that brought nothing; blocks.

        :param names: of all images that the runtime has.
        """
        with _kept_if_it_fails():
            if self._records is not None:
                self._records.prune(_references(names), time.time())

    async def ensure(self, wanted: Wanted, pod: PodPull) -> LocalImage:
        """Return the image, pulled if its policy says so.

        :raises PullFailed: with the kubelet's waiting reason, if there is no image to run.
        """
        # Before anything is looked up: garbage collection leaves alone what is named here (ImageUsers.pulling).
        self._wanted[wanted.image] += 1
        try:
            return await self._ensure(wanted, pod)
        finally:
            self._wanted[wanted.image] -= 1
            self._wanted += Counter()  # without those that are not wanted any more

    async def _ensure(self, wanted: Wanted, pod: PodPull) -> LocalImage:
        image = wanted.image
        try:
            name = reference.parse(image)
        except InvalidArgument as error:
            text = f'Failed to apply default image tag "{image}": couldn\'t parse image name "{image}": {error.message}'
            raise _without_pull(wanted, pod, "InvalidImageName", text, error.hint) from error
        spec = pod.spec(_tagged(image, name))
        try:
            present = None if wanted.policy == "Always" else await self._find(spec)
        except PodkeepError as error:
            text = f'Failed to inspect image "{image}": {error.message}'
            raise _without_pull(wanted, pod, "ImageInspectError", text, error.hint) from error
        usable = present is not None and await self._may_use(name, present, pod)
        self._count(wanted, None if wanted.policy == "Always" else present is not None, usable=usable)
        if present is not None and usable:
            accessible = "" if self._records is None else " and can be accessed by the pod"
            _report(wanted, pod, "Pulled", f'Container image "{image}" already present on machine{accessible}')
            return present
        if wanted.policy == "Never":
            text = f'Container image "{image}" is not present with pull policy of Never'
            hint = "load it with `podkeep image load`, or set another pull policy"
            raise _without_pull(wanted, pod, "ErrImageNeverPull", text, hint)
        return await self._pull(wanted, name, spec, pod)

    async def _pull(self, wanted: Wanted, name: Reference, spec: api_pb2.ImageSpec, pod: PodPull) -> LocalImage:
        image = wanted.image
        key = f"{pod.uid}_{image}"
        self._refuse_in_back_off(wanted, key, pod)
        _report(wanted, pod, "Pulling", f'Pulling image "{image}"')
        began = self._clock()
        try:
            plugins = () if self._plugins is None else await self._plugins.credentials(name.name, pod)
            own = await asyncio.to_thread(pod.keyring.lookup, name.name)
            credentials = tuple(dict.fromkeys((*own, *plugins)))
            # Plugins are asked before a place is taken: one that hangs must not hold up the pulls of others.
            async with self._slots, self._recorded(name, spec) as record:
                turn = self._clock()
                ref, used = await self._try_credentials(spec, pod, (*credentials, None), record)
                took = self._clock() - turn
                # PullImage answers with an ID or with a digest of the repository, as the runtime likes (CRI:
                # image_ref).
                found = await self._find(api_pb2.ImageSpec(image=ref)) or await self._find(spec)
                if found is None:
                    record.images = (ref,)
                else:
                    record.images, record.names = (ref, found.ref), tuple(_references(found.names))
                # Credentials of plugins and of the runtime are the node's: what they brought is for every pod of the
                # node (KEP-2535).
                record.credentials = used if used in own else None
        except PodkeepError as error:
            text = f'Failed to pull image "{image}": {error.message}'
            # With the hint, as a kubelet shows all that a runtime says: who looks at the pod is to see what to do.
            _report(wanted, pod, "Failed", f'Failed to pull image "{image}": {error}', warning=True)
            waiting, detail = _explain(image, str(error))
            self._back_off.failed(key, self._clock(), f"{waiting}: {detail}")
            failure = PullFailed(text, waiting=waiting, detail=detail, again=SEEN_S, hint=error.hint)
            raise failure.of(wanted.container) from error
        self._back_off.succeeded(key)
        local = LocalImage(ref=ref, user=ImageUser() if found is None else found.user, size=found.size if found else 0)
        waited = self._clock() - began
        self.metrics.observe(IMAGE_PULL_DURATION, waited, size_bucket(local.size))
        whole = durations.text(waited)
        message = (
            f'Successfully pulled image "{image}" in {durations.text(took)} ({whole} including waiting). '
            f"Image size: {local.size} bytes."
        )
        _report(wanted, pod, "Pulled", message)
        return local

    async def _may_use(self, name: Reference, present: LocalImage, pod: PodPull) -> bool:
        """Return whether the pod may have an image that is here: it is free for all, or the pod has its credentials."""
        records = self._records
        if records is None:
            return True
        names = tuple(_references(present.names))
        return await asyncio.to_thread(lambda: records.may_use(name, present.ref, pod.keyring.lookup(name.name), names))

    @asynccontextmanager
    async def _recorded(self, name: Reference, spec: api_pb2.ImageSpec) -> AsyncIterator[_Recorded]:
        """Note that a pull begins, and what the caller says came of it.

        :raises FailedPrecondition: if nothing can be noted; an image of which it is not known who may use it is worse.
        """
        record, records = _Recorded(), self._records
        if records is None:
            yield record
            return
        try:
            pull = await _begun(records, name, await self._find(spec))
            try:
                yield record
            except BaseException:
                (records.unknown if record.unknown else records.failed)(pull)
                raise
            await asyncio.to_thread(records.succeeded, pull, record.images, record.credentials, record.names)
        except OSError as error:
            raise FailedPrecondition(f"Failed to record image pull intent for container image: {error}") from error

    def _count(self, wanted: Wanted, present: bool | None, *, usable: bool) -> None:
        here = "unknown" if present is None else str(present).lower()
        never = wanted.policy == "Never" and not usable
        required = "unknown" if never else str(not usable).lower()
        self.metrics.add(ENSURE_IMAGE_REQUESTS, wanted.policy.lower(), here, required)

    def _refuse_in_back_off(self, wanted: Wanted, key: str, pod: PodPull) -> None:
        left = self._back_off.left(key, self._clock())
        if left <= 0:
            return
        text = f'Back-off pulling image "{wanted.image}"'
        _report(wanted, pod, "BackOff", text)
        text = f"{text}: {self._back_off.why(key)}"
        raise PullFailed(text, waiting="ImagePullBackOff", detail=text, again=left).of(wanted.container)

    async def _try_credentials(
        self, spec: api_pb2.ImageSpec, pod: PodPull, attempts: tuple[Credentials | None, ...], record: _Recorded
    ) -> tuple[str, Credentials | None]:
        """Pull with each of these in turn, ``None`` being whatever the runtime itself has for the registry.

        Return what was pulled, and the credentials that it took.

        :raises PodkeepError: with what every attempt came to.
        """
        errors: list[PodkeepError] = []
        for credentials in attempts:
            request = api_pb2.PullImageRequest(image=spec, sandbox_config=pod.sandbox, auth=_auth(credentials))
            before = record.unknown
            try:
                return await self._show(spec.image, self._request(request, record)), credentials
            except PodkeepError as error:
                errors.append(error)
                # An answer, though an error: the runtime has no image by this attempt. What an earlier one left open
                # stays open.
                if not isinstance(error, _UNANSWERED):
                    record.unknown = before
                if isinstance(error, _FINAL):
                    break
        texts = list(dict.fromkeys(error.message for error in errors))
        if len(texts) == 1:
            raise errors[0]
        raise FailedPrecondition(f"[{', '.join(texts)}]", hint=errors[0].hint) from errors[0]

    async def _request(self, request: api_pb2.PullImageRequest, record: _Recorded) -> str:
        self._take_allowance()
        # Until there is an answer: a caller that is cancelled now leaves a pull that the runtime may finish.
        record.unknown = True
        return (await self._client.images.PullImage(request)).image_ref

    def _take_allowance(self) -> None:
        """Count a request to a registry.

        :raises FailedPrecondition: if there were too many lately, in a kubelet's words.
        """
        rate, now = self._limits.per_second, self._clock()
        if not rate:
            return
        grown = self._allowance + (now - self._allowed_at) * rate
        self._allowance, self._allowed_at = min(grown, float(self._limits.burst)), now
        if self._allowance < 1:
            raise FailedPrecondition(
                "pull QPS exceeded", hint="agent.registry_pull_qps and agent.registry_burst say so"
            )
        self._allowance -= 1

    async def _find(self, spec: api_pb2.ImageSpec) -> LocalImage | None:
        answer = await self._client.images.ImageStatus(api_pb2.ImageStatusRequest(image=spec))
        if not answer.image.id:
            return None
        uid = answer.image.uid.value if answer.image.HasField("uid") else None
        user = ImageUser(uid=uid, name=answer.image.username)
        names = (*answer.image.repo_tags, *answer.image.repo_digests)
        return LocalImage(ref=answer.image.id, user=user, size=answer.image.size, names=names)


@contextmanager
def _kept_if_it_fails() -> Iterator[None]:
    # With a record too many a pod may have to ask the registry: no reason to collect no images any more.
    try:
        yield
    except OSError as error:
        log.warning("records of pulls are kept: %s", error)


def _references(names: Iterable[str]) -> Iterator[Reference]:
    for name in names:
        with suppress(InvalidArgument):  # of another runtime: no pull of this agent's brought it
            yield reference.parse(name)


def _tagged(image: str, name: Reference) -> str:
    """Return ``image`` with the tag it leaves out, but otherwise as it is: which registry is meant is the runtime's."""
    if name.digest or name.artifact_type or image.endswith(f":{name.tag}"):
        return image
    return f"{image}:{name.tag}"


def _auth(credentials: Credentials | None) -> api_pb2.AuthConfig | None:
    if credentials is None:
        return None
    return api_pb2.AuthConfig(
        username=credentials.username,
        password=credentials.password,
        identity_token=credentials.identity_token,
        registry_token=credentials.registry_token,
    )


def _explain(image: str, message: str) -> tuple[str, str]:
    """Return the waiting reason for an error of PullImage, and the message of that."""
    for reason, why in _SPECIAL.items():
        if message.startswith(reason):
            return reason, f"image pull failed for {image} {why}{message.removeprefix(reason)}"
    return "ErrImagePull", message


def _report(wanted: Wanted, pod: PodPull, reason: str, message: str, *, warning: bool = False) -> None:
    kind: Literal["Normal", "Warning"] = "Warning" if warning else "Normal"
    pod.report(Event(type=kind, reason=reason, message=message, container=wanted.container))


def _without_pull(wanted: Wanted, pod: PodPull, waiting: str, text: str, hint: str) -> PullFailed:
    """Return the failure of an image that no pull was tried for."""
    reason = waiting if waiting == "ErrImageNeverPull" else "InspectFailed"
    _report(wanted, pod, reason, text, warning=True)
    return PullFailed(text, waiting=waiting, detail=text, again=ASK_AGAIN_S, hint=hint).of(wanted.container)
