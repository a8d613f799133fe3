"""Which registries images may come from: every image that a pod names, or a template of pods.

The plugin ``ImagePolicy`` stands where kube-apiserver has ``ImagePolicyWebhook``, which asks somebody else and does not
look at image volumes (KEP-4639, Risks).
"""

from __future__ import annotations

from collections.abc import Sequence

from podkeep.apiserver.admission.attributes import AdmitAll, Attributes
from podkeep.apiserver.admission.pod_specs import images, template
from podkeep.apiserver.meta.status import forbidden
from podkeep.base.errors import InvalidArgument
from podkeep.base.registries import reference

_SHOWN = 5
"""Images that a refusal names at most."""


class ImagePolicy(AdmitAll):
    """The plugin ``ImagePolicy``.

    :param allowed: ``host[:port][/prefix]`` as in an image's full name; ``*`` stands for one part of a host. Empty:
        from anywhere.
    :raises InvalidArgument: if one of them matches nothing.
    """

    def __init__(self, allowed: Sequence[str] = ()) -> None:
        for pattern in allowed:
            if not reference.is_pattern(pattern):
                raise InvalidArgument(
                    f"{pattern!r} is not host[:port][/prefix]",
                    hint="write it like registry.example, docker.io/library or *.example.com, without http://",
                )
        self._allowed = tuple(allowed)

    def validate(self, attributes: Attributes) -> None:
        """Refuse images of other registries, but those that the object has already.

        :raises StatusError: 403.
        """
        target = attributes.target
        if not self._allowed or attributes.value is None:
            return
        found = template(target.resource.storage_name, attributes.value)
        if found is None:
            return
        path = f"{found.path}.spec" if found.path else "spec"
        before = template(target.resource.storage_name, attributes.old) if attributes.old is not None else None
        kept = {image for _, image in images(before.spec)} if before is not None else set()
        refused = [
            f'{where}: "{image}"'
            for where, image in images(found.spec, path)
            if image not in kept and not self._allows(image)
        ]
        if refused:
            shown = ", ".join(refused[:_SHOWN]) + (f" and {len(refused) - _SHOWN} more" if refused[_SHOWN:] else "")
            why = f"image policy denied one or more images, which are not of an allowed registry: {shown}"
            raise forbidden(target.resource.plural, target.resource.group, target.name, why)

    def _allows(self, image: str) -> bool:
        if reference.is_id(image):
            return False  # it may be any image that a node has
        try:
            parsed = reference.parse(image)
        except InvalidArgument:
            return False  # nobody can tell where it would come from
        return any(reference.matches(pattern, parsed) for pattern in self._allowed)
