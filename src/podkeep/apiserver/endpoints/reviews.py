"""Reviews: questions that are posted, and answered in the status of what was posted."""

from __future__ import annotations

from dataclasses import dataclass

from podkeep.apiserver.auth import reviews
from podkeep.apiserver.auth.interfaces import Authorizer
from podkeep.apiserver.auth.reviews import RuleResolver, TokenReviewer
from podkeep.apiserver.endpoints import options
from podkeep.apiserver.endpoints.bodies import decode_object
from podkeep.apiserver.endpoints.call import Call
from podkeep.apiserver.endpoints.catalog import Entry
from podkeep.apiserver.endpoints.handler import Answer
from podkeep.apiserver.meta.objects import Object
from podkeep.http.messages import Response


@dataclass(frozen=True, slots=True)
class Reviews:
    """Answers them."""

    authorizer: Authorizer
    resolver: RuleResolver
    reviewer: TokenReviewer

    def answers(self) -> dict[str, Answer]:
        """Return what answers, by name in discovery."""
        names = (
            "tokenreviews",
            "selfsubjectreviews",
            "subjectaccessreviews",
            "localsubjectaccessreviews",
            "selfsubjectaccessreviews",
            "selfsubjectrulesreviews",
        )
        return dict.fromkeys(names, self.review)

    async def review(self, call: Call, entry: Entry) -> Response:
        """Answer a question."""
        body, media_type = await call.body()
        asked = options.write_options(call.query, "CreateOptions")
        value = decode_object(body, media_type, entry.kind, asked.validation, call.warnings)
        value |= {"kind": entry.kind.kind, "apiVersion": entry.kind.api_version}
        found = self._answered(call, entry.plural, value)
        return call.answer({**found, "metadata": found.get("metadata", {})}, status=201)

    def _answered(self, call: Call, plural: str, value: Object) -> Object:
        match plural:
            case "tokenreviews":
                return reviews.token_review(value, self.reviewer)
            case "selfsubjectreviews":
                return reviews.self_subject_review(value, call.user)
            case "subjectaccessreviews":
                return reviews.subject_access_review(value, self.authorizer)
            case "localsubjectaccessreviews":
                return reviews.local_subject_access_review(value, call.info.namespace, self.authorizer)
            case "selfsubjectaccessreviews":
                return reviews.self_subject_access_review(value, call.user, self.authorizer)
        return reviews.self_subject_rules_review(value, call.user, self.resolver)
