"""Seccomp: the distribution's profile and small ones, as OCI's configuration has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from podkeep.base.errors import InvalidArgument
from podkeep.runtime.oci.capabilities import DEFAULT, KNOWN
from podkeep.runtime.oci.seccomp import to_oci

DISTRIBUTION: dict[str, Any] = json.loads(Path("/usr/share/containers/seccomp.json").read_text())


def allowed(profile: dict[str, Any]) -> set[str]:
    rules = profile["syscalls"]
    return {
        name for rule in rules if rule["action"] == "SCMP_ACT_ALLOW" and "args" not in rule for name in rule["names"]
    }


def test_the_distributions_profile_for_an_ordinary_container() -> None:
    profile = to_oci(DISTRIBUTION, capabilities=DEFAULT, machine="x86_64")
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    assert profile["defaultErrnoRet"] == 38
    assert profile["architectures"] == ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"]
    assert {"read", "execve", "chroot", "arch_prctl"} <= allowed(profile)
    assert not {"bpf", "init_module", "settimeofday", "kexec_load", "s390_pci_mmio_read"} & allowed(profile)


def test_capabilities_open_what_belongs_to_them() -> None:
    ordinary = allowed(to_oci(DISTRIBUTION, capabilities=DEFAULT, machine="x86_64"))
    everything = allowed(to_oci(DISTRIBUTION, capabilities=KNOWN, machine="x86_64"))
    nothing = allowed(to_oci(DISTRIBUTION, capabilities=(), machine="x86_64"))
    assert {"bpf", "init_module", "settimeofday"} <= everything - ordinary
    assert "chroot" in ordinary - nothing
    assert nothing < ordinary < everything


def test_only_keys_that_oci_has() -> None:
    for machine in ("x86_64", "aarch64", "s390x"):
        profile = to_oci(DISTRIBUTION, capabilities=DEFAULT, machine=machine)
        assert set(profile) == {"defaultAction", "defaultErrnoRet", "architectures", "syscalls"}
        for rule in profile["syscalls"]:
            assert set(rule) <= {"names", "action", "errnoRet", "args"}
            assert rule["names"]
            for arg in rule.get("args", ()):
                assert set(arg) <= {"index", "value", "valueTwo", "op"}


def test_arguments_are_carried_over() -> None:
    profile = to_oci(DISTRIBUTION, capabilities=DEFAULT, machine="x86_64")
    personality = [rule["args"][0]["value"] for rule in profile["syscalls"] if rule["names"] == ["personality"]]
    assert sorted(personality) == [0, 8, 131072, 131080, 4294967295]


RULES: dict[str, tuple[dict[str, Any], bool]] = {
    "no condition": ({}, True),
    "null conditions": ({"includes": None, "excludes": None}, True),
    "capability held": ({"includes": {"caps": ["CAP_KILL"]}}, True),
    "capability missing": ({"includes": {"caps": ["CAP_BPF"]}}, False),
    "one of two missing": ({"includes": {"caps": ["CAP_KILL", "CAP_BPF"]}}, False),
    "excluded capability held": ({"excludes": {"caps": ["CAP_KILL"]}}, False),
    "excluded capability missing": ({"excludes": {"caps": ["CAP_BPF"]}}, True),
    "this architecture": ({"includes": {"arches": ["amd64", "x32"]}}, True),
    "other architecture": ({"includes": {"arches": ["arm64"]}}, False),
    "excluded architecture": ({"excludes": {"arches": ["amd64"]}}, False),
    "both": ({"includes": {"caps": ["CAP_KILL"], "arches": ["arm64"]}}, False),
}


@pytest.mark.parametrize("case", RULES)
def test_conditions(case: str) -> None:
    conditions, applies = RULES[case]
    profile = {"defaultAction": "X", "syscalls": [{"names": ["a"], "action": "Y", **conditions}]}
    result = to_oci(profile, capabilities={"CAP_KILL"}, machine="x86_64")
    assert result["syscalls"] == ([{"names": ["a"], "action": "Y"}] if applies else [])


def test_a_profile_in_ocis_form_passes_through() -> None:
    profile = {
        "defaultAction": "SCMP_ACT_ALLOW",
        "defaultErrnoRet": 1,
        "architectures": ["SCMP_ARCH_X86_64"],
        "flags": ["SECCOMP_FILTER_FLAG_LOG"],
        "listenerPath": "/run/listener",
        "listenerMetadata": "m",
        "syscalls": [
            {
                "names": ["clone"],
                "action": "SCMP_ACT_ERRNO",
                "errnoRet": 0,
                "args": [{"index": 0, "value": 1, "valueTwo": 2, "op": "SCMP_CMP_MASKED_EQ"}],
            }
        ],
    }
    assert to_oci(profile, capabilities=(), machine="x86_64") == profile


def test_a_rule_with_a_single_name() -> None:
    profile = {"defaultAction": "X", "syscalls": [{"name": "a", "action": "Y"}]}
    assert to_oci(profile, capabilities=(), machine="x86_64")["syscalls"] == [{"names": ["a"], "action": "Y"}]


def test_an_architecture_that_the_profile_does_not_know_gets_no_list() -> None:
    assert "architectures" not in to_oci(DISTRIBUTION, capabilities=(), machine="riscv64")


@pytest.mark.parametrize(
    "profile",
    [
        {},
        {"defaultAction": "X", "syscalls": [{"names": ["a"]}]},
        {"defaultAction": "X", "syscalls": 5},
        {"defaultAction": "X", "syscalls": ["a"]},
        {"defaultAction": "X", "syscalls": [{"names": 5, "action": "Y"}]},
        {"defaultAction": "X", "syscalls": [{"names": ["a"], "action": "Y", "includes": ["CAP_KILL"]}]},
        {"defaultAction": "X", "syscalls": [{"names": ["a"], "action": "Y", "args": 1}]},
        {"defaultAction": "X", "archMap": [{}]},
        {"defaultAction": "X", "archMap": 3},
    ],
)
def test_what_is_no_profile_is_refused(profile: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="seccomp profile"):
        to_oci(profile, capabilities={"CAP_KILL"}, machine="x86_64")
