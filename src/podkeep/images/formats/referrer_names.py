"""Naming an artifact by the image that it refers to: whether that is allowed, and where to look. Pure.

The form is ``IMAGE?artifactType=TYPE`` (``base/registries/reference.py``). Called by the store before it
starts a worker, and when the configuration is checked.
"""

from __future__ import annotations

from podkeep.base.config import ReferrersConfig
from podkeep.base.errors import FailedPrecondition, InvalidArgument
from podkeep.base.registries.reference import Reference, parse


def check(config: ReferrersConfig) -> None:
    """Check ``[images.referrers]`` before an image is asked for.

    :raises InvalidArgument: if something in ``repositories`` is no ``host/repository``.
    """
    for text in (*config.repositories, *config.repositories.values()):
        _repository(text)


def check_allowed(name: Reference, config: ReferrersConfig) -> None:
    """Return if ``name`` may be asked for.

    :raises FailedPrecondition: if it names an artifact by its subject, and the configuration does not allow that.
    """
    if name.artifact_type and not config.enabled:
        raise FailedPrecondition(
            f"{name}: naming an artifact by the image it refers to is turned off",
            hint="set enabled = true under [images.referrers], or name the artifact by its own tag or digest",
        )


def elsewhere(name: Reference, config: ReferrersConfig) -> Reference | None:
    """Return the other repository where referrers of ``name`` may be (its tag means nothing); None: only beside it."""
    for image, artifacts in config.repositories.items():
        if _repository(image).name == name.name:
            return _repository(artifacts)
    return None


def _repository(text: str) -> Reference:
    try:
        found = parse(text)
    except InvalidArgument as error:
        raise InvalidArgument(f"images.referrers.repositories: {error.message}", hint=error.hint) from error
    if found.digest or found.artifact_type or text.endswith(f":{found.tag}"):
        raise InvalidArgument(
            f"images.referrers.repositories: {text!r} is more than a repository", hint="write host/repository"
        )
    return found
