"""Validation of projected volumes (core/validation: ``validateProjectionSources``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from podkeep.api import names
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds import field_rules
from podkeep.apiserver.kinds.field_rules import named, required
from podkeep.apiserver.kinds.pods.validation import fields as pod_fields

_KEY_TYPES = ("RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519")
_LEAST_TOKEN_SECONDS = 10 * 60
_MOST_TOKEN_SECONDS = 1 << 32
_LEAST_CERTIFICATE_SECONDS = 3_600
_DAY = 24 * 60 * 60
_MAX_SIGNER = 571

Values = Mapping[str, Any]
Rule = Callable[[Values, str, FieldErrors], None]


def validate_projected(volume: Values, path: str, errors: FieldErrors, *, item: Rule, downward_file: Rule) -> None:
    """Note every rule that a projected volume breaks; ``item`` and ``downward_file`` are the rules of its files."""
    pod_fields.mode(f"{path}.defaultMode", volume.get("defaultMode"), errors)
    taken: set[str] = set()

    def take(target: str, shown: str) -> None:
        if target in taken:
            errors.invalid(path, shown, "conflicting duplicate paths")
        taken.add(target)

    for number, source in enumerate(volume.get("sources", ())):
        where = f"{path}.sources[{number}]"
        for kind in ("secret", "configMap"):
            if kind in source:
                name = source[kind].get("name", "")
                errors.required(f"{where}.{kind}.name", name)
                for index, given in enumerate(source[kind].get("items", ())):
                    item(given, f"{where}.{kind}.items[{index}]", errors)
                    if given.get("path"):
                        take(given["path"], name)
        for given in source.get("downwardAPI", {}).get("items", ()):
            downward_file(given, f"{where}.downwardAPI", errors)
            if given.get("path"):
                take(given["path"], given["path"])
        if "serviceAccountToken" in source:
            _token(source["serviceAccountToken"], where, path, errors)
        if "clusterTrustBundle" in source:
            bundle = source["clusterTrustBundle"]
            _trust_bundle(bundle, f"{where}.clusterTrustBundle", errors)
            take(bundle.get("path", ""), bundle.get("path", ""))
        if "podCertificate" in source:
            certificate = source["podCertificate"]
            _certificate(certificate, f"{where}.podCertificate", errors)
            for name in ("credentialBundlePath", "keyPath", "certificateChainPath"):
                if target := certificate.get(name):
                    take(target, target)
        if len(source) > 1:
            errors.forbidden(where, "may not specify more than 1 volume type per source")


def _token(token: Values, path: str, volume: str, errors: FieldErrors) -> None:
    seconds = token.get("expirationSeconds", 0)
    where = f"{path}.serviceAccountToken.expirationSeconds"
    if seconds < _LEAST_TOKEN_SECONDS:
        errors.invalid(where, seconds, "may not specify a duration less than 10 minutes")
    if seconds > _MOST_TOKEN_SECONDS:
        errors.invalid(where, seconds, "may not specify a duration larger than 2^32 seconds")
    if errors.required(f"{volume}.path", token.get("path")):  # this path is kube-apiserver's
        pod_fields.not_reserved(f"{volume}.path", token["path"], errors)


def _trust_bundle(bundle: Values, path: str, errors: FieldErrors) -> None:
    name, signer = bundle.get("name"), bundle.get("signerName")
    if name is not None and signer is not None:
        errors.invalid(path, bundle, "only one of name and signerName may be used")
    elif name is not None:
        if not name:
            required(f"{path}.name", "must be a valid object name", errors)
        # A bundle of a signer has the signer's name before its own.
        if why := names.dns_subdomain(name.rpartition(":")[2]):
            errors.invalid(f"{path}.name", name, f"not a valid clustertrustbundlename: {why}")
        if "labelSelector" in bundle:
            why = "labelSelector must be unset if name is specified"
            errors.invalid(f"{path}.labelSelector", bundle["labelSelector"], why)
    elif signer is not None:
        if not signer:
            required(f"{path}.signerName", "must be a valid signer name", errors)
        _signer(signer, f"{path}.signerName", errors)
        field_rules.label_selector(bundle.get("labelSelector"), f"{path}.labelSelector", errors)
    else:
        required(path, "either name or signerName must be specified", errors)
    if errors.required(f"{path}.path", bundle.get("path")):
        pod_fields.not_reserved(f"{path}.path", bundle["path"], errors)


def _signer(name: str, path: str, errors: FieldErrors) -> None:
    """Note what is wrong with the name of a signer: ``example.com/signer-name``."""
    if not errors.required(path, name):
        return
    if name.count("/") != 1:
        why = "must be a fully qualified domain and path of the form 'example.com/signer-name'"
        errors.invalid(path, name, why)
        return
    domain, _, rest = name.partition("/")
    for text, rule in ((domain, names.dns_label), (rest, names.dns_subdomain)):
        for part in text.split("."):
            if why := rule(part):
                errors.invalid(path, text, f'validating label "{part}": {why}')
                break
        if text is domain and "." not in domain:
            errors.invalid(path, domain, "should be a domain with at least two segments separated by dots")
    field_rules.too_long(path, name, _MAX_SIGNER, errors)


def _certificate(certificate: Values, path: str, errors: FieldErrors) -> None:
    signer = certificate.get("signerName", "")
    _signer(signer, f"{path}.signerName", errors)
    for key in certificate.get("userAnnotations", ()):
        named(f"{path}.userAnnotations", key, names.label_key_problems(key.lower()), errors)
        if "/" not in key:
            why = 'must be a domain-prefixed key (such as "acme.io/foo")'
            errors.invalid(f"{path}.userAnnotations", key, why)
    pod_fields.supported(f"{path}.keyType", certificate.get("keyType", ""), _KEY_TYPES, errors)
    seconds = certificate.get("maxExpirationSeconds")
    if seconds is not None:
        domain = signer.partition("/")[0]
        most = _DAY if f".{domain}".endswith(".kubernetes.io") else 91 * _DAY
        where = f"{path}.maxExpirationSeconds"
        if seconds < _LEAST_CERTIFICATE_SECONDS:
            errors.invalid(where, seconds, "if provided, maxExpirationSeconds must be >= 3600")
        if seconds > most:
            errors.invalid(where, seconds, f"if provided, maxExpirationSeconds must be <= {most}")
    given = [name for name in ("credentialBundlePath", "keyPath", "certificateChainPath") if certificate.get(name)]
    for name in given:
        pod_fields.not_reserved(f"{path}.{name}", certificate[name], errors)
    if not given:
        required(path, "specify at least one of credentialBundlePath, keyPath, and certificateChainPath", errors)
