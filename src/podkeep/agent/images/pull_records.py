"""Who may use an image that somebody else pulled: records of how images came to this node (KEP-2535).

A pod that may not pull an image itself must not get it because another one pulled it with a secret. A record says, for
each image and each repository it was pulled from, whether that took credentials, and which. Without a record the image
was not pulled by an agent: it is preloaded.

    pulling/<hash of the repository>.<hash of the name>.<pull>   a pull began of which it is not known what came of it
    pulled/<hash of the image ID>   by repository: for every pod of the node, or for who has one of these credentials

Each pull has a file of its own, with a lock as long as it is under way, for there may be several of one name: what one
of them fails with says nothing of the others. It goes when the pull has failed or what it brought is noted. It stays if
the agent crashed, or never heard how the pull ended, as ``left``: until an image of that name is pulled, what is here
under the name may be what that pull brought, by whatever other tag, digest or ID a pod asks for it. If nothing is here
under the name when all images are looked at, a day later or more, it brought nothing.

The file says which image had the name before, if that was preloaded: it stays so, or whoever may run a pod could take
it away from all others by pulls that have no end. Other images of the repository are no matter of that pull. Nor is an
image in doubt that has a name which no such pull can have given it, and no record: it was here by that name. What a
pull that was left may have brought stays in doubt under its digest when the next pull of the name begins, as that may
have the name lead elsewhere. An image that was preloaded stays so, too, when an agent pulls it under whatever name; not
if a pull had to bring it again, as it was removed.

Credentials are kept as keyed hashes, with the Secret that they were from: who refers to that Secret may use the image
also when it holds others by now (KEP-2535: credentials that were rotated). Files are written whole or not at all; one
that cannot be read counts as a pull that may not be relied on. Blocking; several agents may share the directory.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import logging
import os
import secrets
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from podkeep.base import atomicfile, lockfile
from podkeep.base.frozen import FrozenStruct
from podkeep.base.registries.docker_config import Credentials
from podkeep.base.registries.reference import Reference

log = logging.getLogger(__name__)

Policy: TypeAlias = Literal["NeverVerify", "NeverVerifyPreloadedImages", "NeverVerifyAllowlistedImages", "AlwaysVerify"]
MOST_CREDENTIALS = 100
"""That are kept of one image and repository, and as many Secrets; the oldest go first."""
MOST_REPOSITORIES = 100
"""That are kept of one image; those that it was not pulled from for longest go first."""
LEFT_S = 24 * 3600.0
"""After which a pull whose end was not heard has ended, whatever the runtime."""
_LEFT = "left"
_KEY = "key"
_KEY_BYTES = 32


class _Access(msgspec.Struct, kw_only=True):
    """Who may use what came from one repository: everybody on the node, or who has one of these credentials, or one of
    these Secrets."""

    everybody: bool = False
    credentials: list[str] = []
    secrets: list[str] = []


class _Record(msgspec.Struct, kw_only=True):
    """What is known of one image; ``preloaded``: it was here before an agent pulled it."""

    image: str
    preloaded: bool = False
    repositories: dict[str, _Access] = {}


class Verification(FrozenStruct, kw_only=True):
    """Which images must be asked for at their registry though they are here, unless the pod is known to have access.

    ``allowed``: repositories, with ``/*`` at the end also those below, of ``NeverVerifyAllowlistedImages``.
    """

    policy: Policy = "NeverVerifyPreloadedImages"
    allowed: tuple[str, ...] = ()

    def applies(self, repository: str | None, *, pulled: bool) -> bool:
        """Return whether access to an image must be known.

        :param repository: that it is from; None if that is not known.
        :param pulled: whether an agent of this node pulled it.
        """
        if self.policy == "NeverVerifyPreloadedImages":
            return pulled
        if self.policy == "NeverVerifyAllowlistedImages":
            return repository is None or not any(_is_below(repository, pattern) for pattern in self.allowed)
        return self.policy == "AlwaysVerify"


class Pull(FrozenStruct, kw_only=True):
    """One pull that has begun: its file, and a descriptor of it with the lock. Ended once, in one of three ways."""

    name: Reference
    path: Path
    lock: int


def _is_below(repository: str, pattern: str) -> bool:
    return repository.startswith(pattern[:-1]) if pattern.endswith("/*") else repository == pattern


class PullRecords:
    """The records in one directory, which is made if it is missing."""

    def __init__(self, directory: Path, verification: Verification) -> None:
        self._pulling, self._pulled = directory / "pulling", directory / "pulled"
        self._directory = directory
        self._verification = verification
        self._key = b""
        self._writing = threading.Lock()

    def may_use(
        self, name: Reference, image: str, credentials: Iterable[Credentials], names: Collection[Reference]
    ) -> bool:
        """Return whether a pod may use ``image``, an ID, that is here under ``name``, without asking the registry.

        :param credentials: those of the pod for the name.
        :param names: all that the image has. An ID can be read as a name, too, and then is none of them.
        """
        # In this order: of a pull that ends meanwhile, the record is there before its file goes.
        doubts = self._doubts((image,), (name, *names))
        in_doubt = bool(doubts) and not _was_here(doubts, names)
        record = self._read(image)
        known = name.name if any(name.name == other.name for other in names) else None
        pulled = in_doubt if record is None else not record.preloaded
        if not self._verification.applies(known, pulled=pulled):
            return True
        access = None if record is None else record.repositories.get(name.name)
        if access is None:
            return False
        return access.everybody or any(
            item.origin in access.secrets or self._hash(item) in access.credentials for item in credentials
        )

    def _doubts(self, images: Collection[str], names: Iterable[Reference]) -> list[Path]:
        """Return the files of pulls of one of its names that may have brought an image, as far as is known.

        :param images: its ID, and what else the runtime calls it.
        """
        markers = {_marker(name) for name in names}
        return [path for path in self._begun() if _marker_in(path) in markers and _before(path) not in images]

    def begin(self, name: Reference, image: str = "", names: Collection[Reference] = ()) -> Pull:
        """Note that a pull begins; the caller ends it.

        :param image: the ID of what is here under the name now, if there is something, with all its ``names``.
        :raises OSError: if that cannot be noted; then nothing may be pulled.
        """
        self._make()
        doubts = self._doubts((image,), (name, *names)) if image else []
        was_here = not doubts or _was_here(doubts, names)
        before = ""
        record = self._read(image) if image else None  # last, as in may_use
        if image and (record is None or record.preloaded):
            if was_here:
                before = image
            elif record is None and not all(map(lockfile.is_held, doubts)):
                self._keep_in_doubt(names)
        path = self._pulling / f"{_marker(name)}.{secrets.token_hex(8)}"
        new = self._pulling / f".{path.name}"
        lock = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # Under its name it is locked and whole: else it could be taken for one that a crashed agent left.
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.write(lock, before.encode())
            new.rename(path)
        except BaseException:
            os.close(lock)
            new.unlink(missing_ok=True)
            raise
        return Pull(name=name, path=path, lock=lock)

    def _keep_in_doubt(self, names: Iterable[Reference]) -> None:
        """Keep an image in doubt by its digests, which lead nowhere else."""
        for name in names:
            if name.digest is not None:
                (self._pulling / f"{_marker(name)}.{_LEFT}").write_bytes(b"")

    def failed(self, pull: Pull) -> None:
        """Note that a pull came to nothing."""
        with suppress(FileNotFoundError):
            pull.path.unlink()
        os.close(pull.lock)

    def unknown(self, pull: Pull) -> None:
        """Note that a pull ended with an unknown result."""
        # One file for all that ended so: there is an end to how many there are.
        with suppress(FileNotFoundError):
            pull.path.replace(self._pulling / f"{_marker(pull.name)}.{_LEFT}")
        os.close(pull.lock)

    def succeeded(
        self, pull: Pull, images: Iterable[str], credentials: Credentials | None, names: Iterable[Reference] = ()
    ) -> None:
        """Note that a pull brought an image.

        :param images: its ID, and what else the runtime calls it.
        :param credentials: with which the registry gave it; None: with none of a pod's own.
        :param names: that it has now.
        :raises OSError: if that cannot be noted; then it is not known what came of the pull.
        """
        found, all_names = tuple(dict.fromkeys(images)), (pull.name, *names)
        try:
            self._make()
            preloaded = _was_here(self._doubts(found, all_names), all_names)
            for image in found:
                self._note(pull.name, image, credentials, preloaded=preloaded)
        except BaseException:
            # The image is here and nothing says who may use it: the file that stays keeps it from being taken for
            # preloaded.
            self.unknown(pull)
            raise
        over = {_marker(name) for name in all_names if name == pull.name or name.digest}
        for path in self._begun():
            if _marker_in(path) in over and not lockfile.is_held(path):  # it ended without a word
                path.unlink(missing_ok=True)
        self.failed(pull)

    def _note(self, name: Reference, image: str, credentials: Credentials | None, *, preloaded: bool) -> None:
        with self._writing:
            record = self._read(image) or _Record(image=image, preloaded=True)
            # It may have been removed meanwhile, and by others, so that the record stayed.
            record.preloaded = record.preloaded and preloaded
            access = record.repositories.pop(name.name, None) or _Access()
            record.repositories[name.name] = access
            for other in list(record.repositories)[:-MOST_REPOSITORIES]:
                del record.repositories[other]
            if credentials is None:
                # Once a registry gave it to everybody, no list of credentials says more.
                access.everybody, access.credentials, access.secrets = True, [], []
            elif not access.everybody:
                access.credentials = _with_newest(access.credentials, self._hash(credentials))
                if credentials.origin:
                    access.secrets = _with_newest(access.secrets, credentials.origin)
            atomicfile.write(self._pulled / _hashed(image), msgspec.json.encode(record))

    def _begun(self) -> list[Path]:
        """Return the files of pulls."""
        try:
            return [self._pulling / name for name in os.listdir(self._pulling)]
        except FileNotFoundError:
            return []

    def removing(self, image: str) -> Callable[[], None]:
        """Note that an image is about to be removed; return what forgets it when it was.

        What a pull that ended meanwhile has noted stays: it brought the image once more.
        """
        path = self._pulled / _hashed(image)
        before = _identity(path)

        def forget() -> None:
            with self._writing:
                if before is not None and _identity(path) == before:
                    path.unlink(missing_ok=True)

        return forget

    def prune(self, names: Iterable[Reference], now: float) -> None:
        """Forget the pulls that brought nothing, though nobody heard so.

        :param names: of all images that are here; asked for only if there are such pulls.
        :param now: seconds since 1970.
        """
        over = [path for path in self._begun() if _age(path, now) > LEFT_S and not lockfile.is_held(path)]
        if over:
            here = {_marker(name) for name in names}
            for path in over:
                if _marker_in(path) not in here:
                    path.unlink(missing_ok=True)

    def _make(self) -> None:
        for directory in (self._pulling, self._pulled):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _read(self, image: str) -> _Record | None:
        try:
            record = msgspec.json.decode((self._pulled / _hashed(image)).read_bytes(), type=_Record)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            log.warning("the record of image %s cannot be read: %s", image, error)
            # Not None: an image without a record counts as preloaded, which is for everybody by default.
            return _Record(image=image)
        return record

    # Keyed, since a plain hash of a short password could be guessed by whoever gets a copy of the records.
    def _hash(self, credentials: Credentials) -> str:
        if not self._key:
            self._key = self._secret()
        parts = (credentials.username, credentials.password, credentials.identity_token, credentials.registry_token)
        return hmac.new(self._key, msgspec.json.encode(parts), hashlib.sha256).hexdigest()

    def _secret(self) -> bytes:
        """Return the key of the hashes; two agents that make one at the same time use the same."""
        self._make()
        path = self._directory / _KEY
        with suppress(FileNotFoundError):
            if len(found := path.read_bytes()) == _KEY_BYTES:
                return found
        new = self._directory / f".{_KEY}.{secrets.token_hex(8)}"
        atomicfile.write(new, secrets.token_bytes(_KEY_BYTES))
        # link(2) and not rename(2): whoever comes second must use the key that the first one's hashes are made with.
        with suppress(FileExistsError):
            os.link(new, path)
        new.unlink()
        return path.read_bytes()


def _with_newest(known: Iterable[str], new: str) -> list[str]:
    """Return what is known with ``new`` as the last of it, and not more than is kept."""
    return [*(other for other in known if other != new), new][-MOST_CREDENTIALS:]


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what is another one for each time that a file is written; None if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def _age(path: Path, now: float) -> float:
    """Return seconds since a file was made or got its name; 0 if it has gone."""
    try:
        return now - path.stat().st_ctime
    except FileNotFoundError:
        return 0.0


def _marker(name: Reference) -> str:
    return f"{_hashed(name.name)}.{_hashed(str(name))}"


def _was_here(doubts: Iterable[Path], names: Collection[Reference]) -> bool:
    """Return whether an image that no pull is known to have brought has a name that none can have given it.

    A pull gives it the name of the pull, and a digest of that repository.

    :param doubts: the files of pulls of its names that may have brought it.
    """
    markers = {_marker_in(path) for path in doubts}
    pulled = {name for name in names if _marker(name) in markers}
    repositories = {name.name for name in pulled}
    return any(name not in pulled and not (name.digest and name.name in repositories) for name in names)


def _marker_in(pull: Path) -> str:
    return pull.name.rpartition(".")[0]


def _before(pull: Path) -> str:
    """Return the preloaded image that had the name of a pull when that began; nothing if there was none, or if the pull
    has ended meanwhile."""
    try:
        return pull.read_bytes().decode(errors="replace")
    except FileNotFoundError:
        return ""


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
