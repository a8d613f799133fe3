"""ConfigMaps, Secrets and service accounts."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from podkeep.api import names
from podkeep.apiserver.kinds.access import service_accounts
from podkeep.apiserver.kinds.cluster import configuration
from support import kinds

CONFIG_MAPS, SECRETS = configuration.RESOURCES
(ACCOUNTS,) = service_accounts.RESOURCES
FIXED = "field is immutable when `immutable` is set"


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"data": {"a": "x"}, "binaryData": {"b": "eA=="}}, []),
        (
            {"data": {"a b": "x"}, "binaryData": {"..": "eA=="}},
            [
                f'data[a b]: Invalid value: "a b": {names.config_key("a b")}',
                "binaryData[..]: Invalid value: \"..\": must not be '..'",
            ],
        ),
        (
            {"data": {"a": "x"}, "binaryData": {"a": "eA=="}},
            ['data[a]: Invalid value: "a": duplicate of key present in binaryData'],
        ),
        ({"data": {"a": "ä" * (1 << 19)}}, []),
        (
            {"data": {"a": "ä" * (1 << 19)}, "binaryData": {"b": "eA=="}},
            ["[]: Too long: may not be more than 1048576 bytes"],
        ),
    ],
)
def test_what_is_wrong_with_a_config_map(value: dict[str, Any], expected: list[str]) -> None:
    assert kinds.problems(CONFIG_MAPS, value) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"metadata": {"labels": {"a": "b"}}}, []),
        ({"immutable": None}, [f"immutable: Forbidden: {FIXED}"]),
        ({"immutable": False, "data": {"c": "y"}}, [f"immutable: Forbidden: {FIXED}", f"data: Forbidden: {FIXED}"]),
        ({"binaryData": {"b": "eQ=="}}, [f"binaryData: Forbidden: {FIXED}"]),
    ],
)
def test_an_immutable_config_map(changes: dict[str, Any], expected: list[str]) -> None:
    old = {"immutable": True, "data": {"a": "x"}, "binaryData": {"b": "eA=="}}
    assert kinds.update_problems(CONFIG_MAPS, old, changes) == expected
    assert kinds.update_problems(CONFIG_MAPS, old | {"immutable": False}, changes) == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({}, []),
        ({"data": {"a b": ""}}, [f'data[a b]: Invalid value: "a b": {names.config_key("a b")}']),
        ({"data": {"a": encoded("x" * (1 << 20))}}, []),
        ({"data": {"a": encoded("x" * ((1 << 20) + 1))}}, ["data: Too long: may not be more than 1048576 bytes"]),
        ({"type": "mine"}, []),
        (
            {"type": "kubernetes.io/service-account-token"},
            ["metadata.annotations[kubernetes.io/service-account.name]: Required value"],
        ),
        ({"type": "kubernetes.io/dockercfg"}, ["data[.dockercfg]: Required value"]),
        ({"type": "kubernetes.io/dockerconfigjson"}, ["data[.dockerconfigjson]: Required value"]),
        (
            {"type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": "{"}},
            ['data[.dockerconfigjson]: Invalid value: "<secret contents redacted>": must be JSON'],
        ),
        (
            {"type": "kubernetes.io/dockercfg", "stringData": {".dockercfg": "[]"}},
            ['data[.dockercfg]: Invalid value: "<secret contents redacted>": must be a JSON object'],
        ),
        ({"type": "kubernetes.io/dockercfg", "stringData": {".dockercfg": "{}"}}, []),
        (
            {"type": "kubernetes.io/basic-auth"},
            ["data[username]: Required value", "data[password]: Required value"],
        ),
        ({"type": "kubernetes.io/basic-auth", "stringData": {"username": ""}}, []),
        ({"type": "kubernetes.io/ssh-auth"}, ["data[ssh-privatekey]: Required value"]),
        (
            {"type": "kubernetes.io/ssh-auth", "data": {"ssh-privatekey": ""}},
            ["data[ssh-privatekey]: Required value"],
        ),
        ({"type": "kubernetes.io/tls"}, ["data[tls.crt]: Required value", "data[tls.key]: Required value"]),
        ({"type": "kubernetes.io/tls", "data": {"tls.crt": "", "tls.key": ""}}, []),
    ],
)
def test_what_is_wrong_with_a_secret(value: dict[str, Any], expected: list[str]) -> None:
    assert kinds.problems(SECRETS, value) == expected


def test_texts_of_a_secret_become_data() -> None:
    value = {"data": {"a": "eA==", "b": "eQ=="}, "stringData": {"b": "z"}}
    secret = kinds.defaulted(SECRETS, value)
    assert secret["data"] == {"a": "eA==", "b": "eg=="}
    assert secret["type"] == "Opaque"
    assert "stringData" not in secret
    assert SECRETS.strategy.selectable(secret) == {"type": "Opaque"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"type": "mine"}, ['type: Invalid value: "mine": field is immutable']),
        ({"immutable": None}, [f"immutable: Forbidden: {FIXED}"]),
        ({"stringData": {"a": "y"}}, [f"data: Forbidden: {FIXED}"]),
        ({"stringData": {"a": "x"}}, []),
    ],
)
def test_an_immutable_secret(changes: dict[str, Any], expected: list[str]) -> None:
    old = {"immutable": True, "stringData": {"a": "x"}}
    assert kinds.update_problems(SECRETS, old, changes) == expected


@pytest.mark.parametrize(
    ("certificate", "key", "expected"),
    [
        ("", "", ["tls: failed to find any PEM data in certificate input"]),
        ("-----BEGIN CERTIFICATE-----", "", ["tls: failed to find any PEM data in key input"]),
        ("-----BEGIN CERTIFICATE-----", "-----BEGIN PRIVATE KEY-----", []),
    ],
)
def test_certificates_that_are_none_are_told_of(certificate: str, key: str, expected: list[str]) -> None:
    value = {"type": "kubernetes.io/tls", "stringData": {"tls.crt": certificate, "tls.key": key}}
    assert kinds.warnings(SECRETS, value) == expected
    assert kinds.warnings(SECRETS, value | {"type": "Opaque"}) == []


def test_rows() -> None:
    value = kinds.created(CONFIG_MAPS, {"data": {"a": "x"}, "binaryData": {"b": "eA=="}})
    assert kinds.table(CONFIG_MAPS, value) == {"Name": "a", "Data": 2, "Age": "60m"}
    value = kinds.created(SECRETS, {"data": {"a": "eA=="}})
    assert kinds.table(SECRETS, value) == {"Name": "a", "Type": "Opaque", "Data": 1, "Age": "60m"}


def test_a_service_account_keeps_the_names_of_its_secrets_alone() -> None:
    given = {"secrets": [{"name": "a", "namespace": "b", "uid": "c"}]}
    account = kinds.created(ACCOUNTS, given)
    assert account["secrets"] == [{"name": "a"}]
    new, _ = kinds.updated(ACCOUNTS, {}, given)
    assert new["secrets"] == [{"name": "a"}]
    assert kinds.table(ACCOUNTS, account) == {"Name": "a", "Age": "60m"}


def test_an_annotation_of_service_accounts_that_is_deprecated() -> None:
    key = "kubernetes.io/enforce-mountable-secrets"
    value = {"metadata": {"annotations": {key: "true"}}}
    assert kinds.warnings(ACCOUNTS, value) == [
        f"metadata.annotations[{key}]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted"
        " secrets"
    ]
    assert kinds.warnings(ACCOUNTS, value, value) == []
    assert kinds.warnings(ACCOUNTS, {}) == []
