"""What a request asks for, and in which form it wants its answer."""

from __future__ import annotations

from typing import Any

import pytest

from podkeep.apiserver.kinds.cluster.configuration import RESOURCES
from podkeep.apiserver.kinds.pods.pod import RESOURCES as PODS
from podkeep.apiserver.meta.status import StatusError
from podkeep.apiserver.requests import media_types, options, request_info
from podkeep.apiserver.requests.media_types import JSON, YAML, Form
from podkeep.apiserver.requests.query import Query

CONFIG_MAPS = RESOURCES[0]


def _info(method: str, target: str) -> dict[str, Any]:
    info = request_info.parse(method, target, Query(target.partition("?")[2]))
    names = ("verb", "group", "version", "namespace", "resource", "subresource", "name")
    return {name: getattr(info, name) for name in names if getattr(info, name)}


@pytest.mark.parametrize(
    ("method", "target", "expected"),
    [
        ("GET", "/", {"verb": "get"}),
        ("GET", "/api/v1", {"verb": "get"}),
        ("GET", "/apis/apps/v1", {"verb": "get"}),
        ("POST", "/version", {"verb": "post"}),
        ("GET", "/api/v1/pods", {"verb": "list", "version": "v1", "resource": "pods"}),
        ("HEAD", "/api/v1/pods", {"verb": "list", "version": "v1", "resource": "pods"}),
        ("GET", "/api/v1/pods?watch=true", {"verb": "watch", "version": "v1", "resource": "pods"}),
        ("GET", "/api/v1/pods?watch", {"verb": "watch", "version": "v1", "resource": "pods"}),
        ("GET", "/api/v1/pods?watch=0", {"verb": "list", "version": "v1", "resource": "pods"}),
        ("GET", "/api/v1/watch/pods", {"verb": "watch", "version": "v1", "resource": "pods"}),
        (
            "GET",
            "/api/v1/watch/namespaces/a/pods/b",
            {"verb": "watch", "version": "v1", "resource": "pods", "namespace": "a", "name": "b"},
        ),
        (
            "GET",
            "/api/v1/pods?fieldSelector=metadata.name%3Dx",
            {"verb": "list", "version": "v1", "resource": "pods", "name": "x"},
        ),
        (
            "PATCH",
            "/apis/apps/v1/namespaces/default/deployments/web",
            {
                "verb": "patch",
                "group": "apps",
                "version": "v1",
                "namespace": "default",
                "resource": "deployments",
                "name": "web",
            },
        ),
        (
            "PUT",
            "/api/v1/namespaces/a/finalize",
            {
                "verb": "update",
                "version": "v1",
                "namespace": "a",
                "resource": "namespaces",
                "name": "a",
                "subresource": "finalize",
            },
        ),
        ("DELETE", "/api/v1/nodes/n", {"verb": "delete", "version": "v1", "resource": "nodes", "name": "n"}),
        ("DELETE", "/api/v1/nodes", {"verb": "deletecollection", "version": "v1", "resource": "nodes"}),
        (
            "POST",
            "/api/v1/namespaces/a/pods/b/eviction",
            {
                "verb": "create",
                "version": "v1",
                "namespace": "a",
                "resource": "pods",
                "name": "b",
                "subresource": "eviction",
            },
        ),
        (
            "GET",
            "/api/v1/namespaces/a%62",
            {"verb": "get", "version": "v1", "namespace": "ab", "resource": "namespaces", "name": "ab"},
        ),
    ],
)
def test_a_request_is_understood_by_its_method_and_path(method: str, target: str, expected: dict[str, str]) -> None:
    assert _info(method, target) == expected


def test_a_proxied_path_is_kept() -> None:
    info = request_info.parse("GET", "/api/v1/namespaces/a/pods/b/proxy/x/y", Query(""))
    assert (info.subresource, info.rest, info.is_long_running) == ("proxy", ("x", "y"), True)


def test_a_watch_of_nothing_is_refused() -> None:
    with pytest.raises(StatusError, match="unable to determine kind and namespace from url"):
        request_info.parse("GET", "/api/v1/watch", Query(""))


TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", Form()),
        ("*/*", Form()),
        ("application/json", Form()),
        ("application/*", Form()),
        ("application/yaml", Form(media_type=YAML)),
        (f"{TABLE},application/json", Form(as_="Table")),
        ("application/json;as=Table;v=v1beta1;g=meta.k8s.io", Form(as_="Table", version="v1beta1")),
        ("application/json;as=Table;v=v2;g=meta.k8s.io,application/json", Form()),
        ("application/vnd.kubernetes.protobuf,application/json", Form()),
        ("application/vnd.kubernetes.protobuf;stream=watch,application/json;stream=watch", Form()),
        ("application/json;q=0.1,application/yaml;q=0.9", Form(media_type=YAML)),
        ("application/json;pretty=1", Form(pretty=True)),
        ("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1", Form(as_="PartialObjectMetadata")),
    ],
)
def test_the_form_of_an_answer_is_what_the_client_likes_best(accept: str, expected: Form) -> None:
    assert media_types.negotiate(accept) == expected


@pytest.mark.parametrize("accept", ["application/vnd.kubernetes.protobuf", "text/html", "application/json;stream=x"])
def test_a_client_that_takes_nothing_of_it_is_told_what_there_is(accept: str) -> None:
    with pytest.raises(StatusError) as refused:
        media_types.negotiate(accept)
    assert refused.value.code == 406
    assert refused.value.message == "only the following media types are accepted: application/json, application/yaml"


def test_a_body_of_another_type_is_refused_in_upstreams_words() -> None:
    assert media_types.of_body("application/json; charset=utf-8") == JSON
    with pytest.raises(StatusError) as refused:
        media_types.of_body("text/plain")
    assert refused.value.code == 415
    assert refused.value.message.startswith(
        "the body of the request was in an unknown format - accepted media types include: application/json"
    )


@pytest.mark.parametrize(
    ("text", "watch", "expected"),
    [
        (
            "resourceVersionMatch=Exact",
            False,
            'ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden'
            " unless resourceVersion is provided",
        ),
        (
            "resourceVersion=0&resourceVersionMatch=Exact",
            False,
            'ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch "exact" is'
            ' forbidden for resourceVersion "0"',
        ),
        (
            "sendInitialEvents=true",
            False,
            'ListOptions.meta.k8s.io "" is invalid: sendInitialEvents: Forbidden: sendInitialEvents is forbidden for'
            " list",
        ),
        (
            "sendInitialEvents=true",
            True,
            'ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: sendInitialEvents requires setting'
            " resourceVersionMatch to NotOlderThan",
        ),
        (
            "resourceVersion=5&resourceVersionMatch=NotOlderThan",
            True,
            'ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden'
            " for watch unless sendInitialEvents is provided",
        ),
        ("continue=abc&resourceVersion=5", False, "specifying resource version is not allowed when using continue"),
        ("limit=abc", False, 'strconv.ParseInt: parsing "abc": invalid syntax'),
        ("limit=99999999999999999999", False, 'strconv.ParseInt: parsing "99999999999999999999": invalid syntax'),
        (
            "timeoutSeconds=9999999999999999999",
            True,
            'strconv.ParseInt: parsing "9999999999999999999": value out of range',
        ),
        (
            "resourceVersion=abc",
            False,
            ' "" is invalid: resourceVersion: Invalid value: "abc": strconv.ParseUint: parsing "abc": invalid syntax',
        ),
        (
            "fieldSelector=spec.x%3Dy",
            False,
            '"spec.x" is not a known field selector: only "metadata.name", "metadata.namespace"',
        ),
    ],
)
def test_options_of_lists_that_make_no_sense_are_refused(text: str, watch: bool, expected: str) -> None:
    with pytest.raises(StatusError) as refused:
        options.list_options(Query(text), CONFIG_MAPS, "", watch=watch)
    assert refused.value.message == expected


def test_a_kind_with_fields_of_its_own_names_the_unknown_one() -> None:
    (pods,) = PODS
    assert options.list_options(Query("fieldSelector=spec.nodeName%3Dn"), pods, "", watch=False).selects
    with pytest.raises(StatusError, match=r"field label not supported: spec\.x"):
        options.list_options(Query("fieldSelector=spec.x%3Dn"), pods, "", watch=False)


def test_a_watch_from_no_revision_begins_with_what_there_is() -> None:
    found = options.list_options(Query("watch=1&allowWatchBookmarks=true"), CONFIG_MAPS, "x", watch=True)
    assert (found.initial_events, found.match, found.bookmarks) == (True, "NotOlderThan", True)
    assert found.fields.value("metadata.name") == "x"


@pytest.mark.parametrize(
    ("text", "kind", "applies", "expected"),
    [
        ("", "PatchOptions", True, "fieldManager: Required value: is required for apply patch"),
        ("force=1", "PatchOptions", False, "force: Forbidden: may not be specified for non-apply patch"),
        ("dryRun=Some", "CreateOptions", False, 'dryRun: Unsupported value: "Some": supported values: "All"'),
        (
            "fieldValidation=Loud",
            "UpdateOptions",
            False,
            'fieldValidation: Unsupported value: "Loud": supported values: "", "Ignore", "Strict", "Warn"',
        ),
        (f"fieldManager={'x' * 129}", "CreateOptions", False, "fieldManager: Too long: may not be more than 128 bytes"),
        (
            "fieldManager=a%0Ab",
            "CreateOptions",
            False,
            'fieldManager: Invalid value: "a\\nb": invalid character U+000A (at position 1)',
        ),
    ],
)
def test_options_of_writes_are_validated(text: str, kind: str, applies: bool, expected: str) -> None:
    with pytest.raises(StatusError) as refused:
        options.write_options(Query(text), kind, applies=applies)
    assert refused.value.code == 422
    assert refused.value.message == f'{kind}.meta.k8s.io "" is invalid: {expected}'


@pytest.mark.parametrize(
    ("agent", "expected"),
    [("kubectl/v1.36 (linux)", "kubectl"), ("", "unknown"), ("a\x07b", "ab"), ("ä" * 100, "ä" * 64)],
)
def test_a_write_without_a_field_manager_is_its_clients(agent: str, expected: str) -> None:
    assert options.manager_of(options.WriteOptions(), agent) == expected
