"""Reviews: questions that are posted, and answered in the status of what was posted."""

from __future__ import annotations

from datetime import UTC, datetime

from podkeep.api.fields import FieldErrors
from podkeep.apiserver.auth import reviews
from podkeep.apiserver.auth.interfaces import Authorizer
from podkeep.apiserver.auth.reviews import RuleResolver, TokenReviewer
from podkeep.apiserver.discovery.catalog import Entry
from podkeep.apiserver.endpoints.handler import Answer
from podkeep.apiserver.kinds.access.reviews import VIRTUAL
from podkeep.apiserver.kinds.resources import Resource
from podkeep.apiserver.meta.objects import Object
from podkeep.apiserver.meta.status import bad_request, invalid
from podkeep.apiserver.requests import options
from podkeep.apiserver.requests.bodies import decode_object
from podkeep.apiserver.requests.call import Call
from podkeep.base.frozen import FrozenStruct
from podkeep.http.messages import Response

_RESOURCES = {resource.plural: resource for resource in VIRTUAL}


class Reviews(FrozenStruct):
    """Answers them."""

    authorizer: Authorizer
    resolver: RuleResolver
    reviewer: TokenReviewer

    def answers(self) -> dict[str, Answer]:
        """Return what answers, by name in discovery."""
        return dict.fromkeys(_RESOURCES, self.review)

    async def review(self, call: Call, entry: Entry) -> Response:
        body, media_type = await call.body()
        asked = options.write_options(call.query, "CreateOptions")
        value = decode_object(body, media_type, entry.kind, asked.validation, call.warnings)
        value |= {"kind": entry.kind.kind, "apiVersion": entry.kind.api_version}
        if entry.namespaced:
            _require_namespace(value, call.info.namespace)
        _validate(value, _RESOURCES[entry.plural])
        found = self._answered(call, entry.plural, value)
        return call.answer({**found, "metadata": found.get("metadata", {})}, status=201)

    def _answered(self, call: Call, plural: str, value: Object) -> Object:
        match plural:
            case "tokenreviews":
                return reviews.token_review(value, self.reviewer)
            case "selfsubjectreviews":
                return reviews.self_subject_review(value, call.user, f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}")
            case "subjectaccessreviews" | "localsubjectaccessreviews":
                return reviews.subject_access_review(value, self.authorizer)
            case "selfsubjectaccessreviews":
                return reviews.self_subject_access_review(value, call.user, self.authorizer)
        return reviews.self_subject_rules_review(value, call.user, self.resolver)


def _require_namespace(value: Object, namespace: str) -> None:
    """Fill in the namespace of the request.

    :raises StatusError: 400, if the review names another one.
    """
    if value.setdefault("metadata", {}).setdefault("namespace", namespace) != namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")


def _validate(value: Object, resource: Resource) -> None:
    """Raise what is wrong with a review.

    :raises StatusError: 400 or 422.
    """
    errors = FieldErrors()
    resource.strategy.validate(value, errors)
    if errors.found:
        raise invalid(resource.kind.kind, resource.group, "", errors.found)
