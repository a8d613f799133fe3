"""Names of images: parsing, normalisation and the forms shown to people.

Owns the grammar (distribution-spec, "Pulling manifests"; the `docker.io` defaults every Kubernetes manifest relies
on). Knows nothing of registries or of what is stored. Called by the image store and its worker, the agent and the
command line.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from podkeep.base.errors import InvalidArgument
from podkeep.base.frozen import FrozenStruct
from podkeep.base.ids import Digest, parse_digest
from podkeep.base.text.printable import shortened

DEFAULT_HOST = "docker.io"
_DEFAULT_PREFIX = "library/"
_MAX_NAME = 255
_MAX_TEXT = 1024
"""Characters of a name with its tag, its digest and its condition; the longest right one has 789. What follows looks at
each of them several times, and keeps a state for each part of a path."""
_MOST_SHOWN = 400
"""Characters of a wrong name that an error shows; a right one with its tag has fewer."""

_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(?::[0-9]{1,5})?")
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}")
_FILTER = "artifactType="
_BARE_ID = re.compile(r"[0-9a-f]{64}")


class Reference(FrozenStruct, kw_only=True):
    """A whole image name: ``digest`` wins over ``tag`` where both are given; at least one of them is set.

    With ``artifact_type`` (media type) it does not name that image, but an artifact of this type that refers to it.
    """

    host: str
    repository: str
    tag: str = ""
    digest: Digest | None = None
    artifact_type: str = ""

    @property
    def name(self) -> str:
        """``host/repository``."""
        return f"{self.host}/{self.repository}"

    @property
    def target(self) -> str:
        """What to ask the registry for: the digest if there is one, else the tag."""
        return self.digest or self.tag

    def with_digest(self, digest: Digest) -> str:
        """Return ``host/repository@digest`` (CRI: Image.repo_digests)."""
        return f"{self.name}@{digest}"

    def familiar(self) -> str:
        """Return the short form people type: ``busybox:latest`` for ``docker.io/library/busybox:latest``."""
        text = str(self)
        if self.host == DEFAULT_HOST:
            text = text.removeprefix(f"{DEFAULT_HOST}/").removeprefix(_DEFAULT_PREFIX)
        return text

    def __str__(self) -> str:
        text = self.with_digest(self.digest) if self.digest else f"{self.name}:{self.tag}"
        return f"{text}?{_FILTER}{self.artifact_type}" if self.artifact_type else text


def is_media_type(text: str) -> bool:
    """Return whether ``text`` is a media type without parameters (RFC 6838, section 4.2)."""
    return _MEDIA_TYPE.fullmatch(text) is not None


def is_host(text: str) -> bool:
    """Return whether ``text`` can stand before the first slash of an image's name."""
    return _HOST.fullmatch(text) is not None


def is_id(text: str) -> bool:
    """Return whether runtimes take ``text`` for the ID of an image that is here, or for the beginning of one.

    It has the form of a name, too: that of a tag of docker.io/library/sha256.
    """
    return text.startswith("sha256:")


def is_pattern(text: str) -> bool:
    """Return whether ``text`` can match images: ``host[:port][/prefix]``, ``*`` for one part of the host."""
    return is_host(text.partition("/")[0].replace("*", "x")) and "//" not in text


def matches(pattern: str, reference: Reference) -> bool:
    """Return whether an image is of the registry, and below the path, that a pattern names."""
    host, _, prefix = pattern.partition("/")
    # The brackets of an IPv6 address are no pattern.
    wanted, found = host.lower().replace("[", "[[]").split("."), reference.host.lower().split(".")
    prefix = prefix.strip("/")
    return (
        len(wanted) == len(found)
        and all(fnmatchcase(part, glob) for part, glob in zip(found, wanted, strict=True))
        and (not prefix or f"{reference.repository}/".startswith(f"{prefix}/"))
    )


def parse(text: str) -> Reference:
    """Return ``text`` as a whole name: host ``docker.io``, prefix ``library/`` and tag ``latest`` are filled in.

    ``?artifactType=TYPE`` at its end is podkeep's own way to name an artifact that refers to the image.

    :raises InvalidArgument: naming the part that is wrong.
    """
    # First of all: a name of 8 MiB took 1.18 GB and 6 s in the expressions below.
    if len(text) > _MAX_TEXT:
        raise _invalid(text, f"it is longer than {_MAX_TEXT} characters", "shorten it")
    rest, mark, condition = text.partition("?")
    artifact_type = condition.removeprefix(_FILTER)
    if mark and not (condition.startswith(_FILTER) and is_media_type(artifact_type)):
        raise _invalid(text, f"{_shown(condition)} is no condition", f"after '?' comes {_FILTER} and a media type")
    rest, at, digest_text = rest.partition("@")
    digest = parse_digest(digest_text) if at else None
    name, colon, tag = rest.rpartition(":")
    if not colon or "/" in tag:
        name, tag = rest, ""
    elif not _TAG.fullmatch(tag):
        raise _invalid(text, f"{_shown(tag)} is not a tag", "a tag is up to 128 letters, digits, '_', '.' and '-'")
    host, repository = _split_host(name)
    if not is_host(host):
        raise _invalid(text, f"{_shown(host)} is not a host", "write host[:port]/repository[:tag]")
    if _BARE_ID.fullmatch(name):
        raise _invalid(text, "64 hex digits name an image ID, not a repository", "pull by name")
    if not _REPOSITORY.fullmatch(repository):
        hint = "repositories are lower case" if repository != repository.lower() else "write host/repository:tag"
        raise _invalid(text, f"{_shown(repository)} is not a repository", hint)
    if len(host) + 1 + len(repository) > _MAX_NAME:
        raise _invalid(text[:40] + "...", f"the name is longer than {_MAX_NAME} characters", "shorten it")
    tag = tag or ("" if digest else "latest")
    return Reference(host=host, repository=repository, tag=tag, digest=digest, artifact_type=artifact_type)


def _split_host(name: str) -> tuple[str, str]:
    """Tell a host from the first part of a repository as every runtime does: a dot, a colon or ``localhost``."""
    first, slash, rest = name.partition("/")
    if slash and (first == "localhost" or any(mark in first for mark in ".:[") or first != first.lower()):
        host, repository = first, rest
    else:
        host, repository = DEFAULT_HOST, name
    # Docker's old name for the same registry.
    if host == "index.docker.io":
        host = DEFAULT_HOST
    if host == DEFAULT_HOST and repository and "/" not in repository:
        repository = _DEFAULT_PREFIX + repository
    return host, repository


def _invalid(text: str, why: str, hint: str) -> InvalidArgument:
    return InvalidArgument(f"invalid image reference {_shown(text)}: {why}", hint=hint)


def _shown(text: str) -> str:
    """Return a text that may be far longer than any name, as it may stand in a message."""
    return repr(shortened(text, _MOST_SHOWN))
