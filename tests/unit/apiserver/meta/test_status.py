"""The texts that clients match on, as kube-apiserver writes them."""

from __future__ import annotations

import pytest

from podkeep.api.fields import FieldErrors
from podkeep.apiserver.meta import status
from podkeep.apiserver.meta.status import StatusError


@pytest.mark.parametrize(
    ("error", "code", "reason", "message"),
    [
        (status.not_found("pods", "", "web"), 404, "NotFound", 'pods "web" not found'),
        (status.not_found("deployments", "apps", "web"), 404, "NotFound", 'deployments.apps "web" not found'),
        (status.already_exists("pods", "", "web"), 409, "AlreadyExists", 'pods "web" already exists'),
        (
            status.conflict("pods", "", "web", status.MODIFIED),
            409,
            "Conflict",
            'Operation cannot be fulfilled on pods "web": the object has been modified; please apply your changes to'
            " the latest version and try again",
        ),
        (status.forbidden("pods", "", "web", "no"), 403, "Forbidden", 'pods "web" is forbidden: no'),
        (status.forbidden("pods", "", "", "no"), 403, "Forbidden", "pods is forbidden: no"),
        (status.forbidden("", "", "", "no"), 403, "Forbidden", "forbidden: no"),
        (
            status.too_large("limit is 3145728"),
            413,
            "RequestEntityTooLarge",
            "Request entity too large: limit is 3145728",
        ),
        (status.unauthorized(), 401, "Unauthorized", "Unauthorized"),
        (status.expired("too old"), 410, "Expired", "too old"),
        (status.internal("boom"), 500, "InternalError", "Internal error occurred: boom"),
    ],
)
def test_errors(error: StatusError, code: int, reason: str, message: str) -> None:
    answer = error.status()
    assert (answer["code"], answer["reason"], answer["message"]) == (code, reason, message)
    assert answer["status"] == "Failure"
    assert (answer["kind"], answer["apiVersion"], answer["metadata"]) == ("Status", "v1", {})


def test_details_name_the_object() -> None:
    assert status.not_found("deployments", "apps", "web").status()["details"] == {
        "name": "web",
        "group": "apps",
        "kind": "deployments",
    }
    assert "details" not in status.unauthorized().status()
    assert status.too_many_requests(3).status()["details"] == {"retryAfterSeconds": 3}


def test_errors_of_fields_become_causes() -> None:
    errors = FieldErrors()
    errors.required("spec.containers[0].image", "")
    errors.unsupported("spec.restartPolicy", "Maybe", ["Always", "Never"])
    errors.duplicate("spec.volumes[1].name", "a")
    errors.forbidden("spec", "pod updates may not change fields")
    errors.add("spec.x", "something else")
    answer = status.invalid("Pod", "", "web", errors.found).status()
    assert answer["message"] == (
        'Pod "web" is invalid: [spec.containers[0].image: Required value, spec.restartPolicy: Unsupported value:'
        ' "Maybe": supported values: "Always", "Never", spec.volumes[1].name: Duplicate value: "a", spec: Forbidden:'
        " pod updates may not change fields, spec.x: something else]"
    )
    assert [cause["reason"] for cause in answer["details"]["causes"]] == [
        "FieldValueRequired",
        "FieldValueNotSupported",
        "FieldValueDuplicate",
        "FieldValueForbidden",
        "FieldValueInvalid",
    ]
    assert answer["details"]["causes"][0] == {
        "reason": "FieldValueRequired",
        "message": "Required value",
        "field": "spec.containers[0].image",
    }


def test_one_error_of_a_field_is_not_a_list() -> None:
    errors = FieldErrors()
    errors.required("spec.a", "")
    errors.required("spec.a", "")
    answer = status.invalid("Deployment", "apps", "web", errors.found)
    assert answer.message == 'Deployment.apps "web" is invalid: spec.a: Required value'
