"""Manifests: decoded strictly, defaulted, validated, and refused where a field would do nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import yaml

from podkeep.api import manifest, names, received
from podkeep.api.pod import Pod
from podkeep.base.errors import InvalidArgument


def pod(spec: dict[str, Any] | None = None, container: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    """Return a Pod document with one container, changed by ``container`` and ``spec``."""
    containers = [{"name": "c", "image": "busybox:1"} | (container or {})]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web"} | metadata,
        "spec": {"containers": containers} | (spec or {}),
    }


def parse(*documents: dict[str, Any]) -> manifest.Manifest:
    return manifest.parse(yaml.safe_dump_all(documents), source="f.yaml")


def problems(*documents: dict[str, Any]) -> list[str]:
    """Return what is wrong with ``documents``, without the part that names file and document."""
    with pytest.raises(InvalidArgument) as caught:
        parse(*documents)
    return [line.split("): ", 1)[1] for line in caught.value.message.split("\n")]


def one_pod(*documents: dict[str, Any]) -> Pod:
    (found,) = parse(*documents).pods
    return found


VOLUME = {"volumes": [{"name": "v", "emptyDir": {}}]}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (pod(container={"imagee": "x"}), "spec.containers[0].imagee: unknown field (did you mean image?)"),
        (pod({"zzz": 1}), "spec.zzz: unknown field"),
        (
            pod(container={"ports": [{"containerPort": 80}, {"containerPort": "x"}]}),
            "spec.containers[0].ports[1].containerPort: expected integer, got string",
        ),
        (pod({"hostUsers": "false"}), "spec.hostUsers: expected boolean, got string"),
        (pod({"containers": {"name": "c"}}), "spec.containers: expected list, got object"),
        (pod({"containers": [None]}), "spec.containers[0]: expected object, got null"),
        (pod(container={"command": "sh"}), "spec.containers[0].command: expected list, got string"),
        (
            pod(container={"args": ["a", 1]}),
            "spec.containers[0].args[1]: expected string, got integer: write it in quotes",
        ),
        (
            pod(container={"env": [{"name": "A", "value": True}]}),
            "spec.containers[0].env[0].value: expected string, got boolean: write it in quotes",
        ),
        (pod(labels={"a/b": 1}), "metadata.labels[a/b]: expected string, got integer: write it in quotes"),
        (
            pod({"restartPolicy": "Sometimes"}),
            'spec.restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "Never", "OnFailure"',
        ),
        (pod({"priority": 1 << 40}), f"spec.priority: Invalid value: {1 << 40}: must be a 32-bit integer"),
        (
            pod(container={"resources": {"limits": {"memory": "1Gx"}}}),
            'spec.containers[0].resources.limits[memory]: Invalid value: "1Gx": '
            "'1Gx' is not a quantity such as 500m, 1.5Gi or 2",
        ),
    ],
)
def test_decoding_names_the_field(document: dict[str, Any], expected: str) -> None:
    assert problems(document) == [expected]


def test_every_problem_is_found_and_names_its_document() -> None:
    bad_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "dta": {}}
    with pytest.raises(InvalidArgument) as caught:
        parse(pod(container={"imagee": "x", "ttyy": True}), bad_map)
    assert caught.value.message.split("\n") == [
        "f.yaml: document 1 (Pod default/web): spec.containers[0].imagee: unknown field (did you mean image?)",
        "f.yaml: document 1 (Pod default/web): spec.containers[0].ttyy: unknown field (did you mean tty?)",
        "f.yaml: document 2 (ConfigMap default/m): dta: unknown field (did you mean data?)",
    ]


def test_a_long_name_is_not_repeated_with_every_problem() -> None:
    """A name of a megabyte and 2000 unknown fields made two gigabytes of text."""
    with pytest.raises(InvalidArgument) as caught:
        parse(pod() | {"metadata": {"name": "n" * 100_000}} | {f"x{n}": 1 for n in range(100)})
    assert len(caught.value.message.split("\n")) == 100
    assert len(caught.value.message) < 100_000
    assert f"(Pod default/{'n' * 253})" in refused_name("n" * 253)


def refused_name(name: str) -> str:
    with pytest.raises(InvalidArgument) as caught:
        parse(pod(name=name) | {"x": 1})
    return caught.value.message


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"kind": "Pod"}, "apiVersion: Required value"),
        ({"apiVersion": "v1"}, "kind: Required value"),
        (
            {"apiVersion": "v1", "kind": "pod"},
            "kind: pod is not supported: kinds have capital letters, this one is written Pod",
        ),
        (
            {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}},
            "kind: Deployment (apps/v1) is not supported by this version; use v1 Pod, ConfigMap or Secret, or "
            "`podkeep node`, whose API has the others",
        ),
    ],
)
def test_other_kinds_are_refused(document: dict[str, Any], expected: str) -> None:
    assert problems(document) == [expected]


def test_a_document_that_is_no_object_is_refused_by_its_line() -> None:
    with pytest.raises(InvalidArgument, match=r"^f.yaml: document 1 \(line 1\): expected object, got list$"):
        manifest.parse("- a\n", source="f.yaml")


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (pod(name=""), "metadata.name: Required value"),
        (
            pod(name="Web"),
            f'metadata.name: Invalid value: "Web": {names.dns_subdomain("Web")}',
        ),
        (pod({"containers": []}), "spec.containers: Required value"),
        (pod({"containers": [{"name": "c"}]}), "spec.containers[0].image: Required value"),
        (pod({"volumes": [{"name": "v", "image": {}}]}), "spec.volumes[0].image.reference: Required value"),
        (
            pod({"volumes": [{"name": "v", "image": {"reference": "i"}, "emptyDir": {}}]}),
            "spec.volumes[0].image: Forbidden: may not specify more than 1 volume type",
        ),
        (
            pod({"containers": [{"name": "c", "image": "i"}, {"name": "c", "image": "i"}]}),
            'spec.containers[1].name: Duplicate value: "c"',
        ),
        (
            pod({"initContainers": [{"name": "c", "image": "i"}]}),
            'spec.containers[0].name: Duplicate value: "c"',
        ),
        (
            pod(container={"volumeMounts": [{"name": "v", "mountPath": "/v"}]}),
            'spec.containers[0].volumeMounts[0].name: Not found: "v"',
        ),
        (
            pod(VOLUME, {"volumeMounts": [{"name": "v", "mountPath": "/v"}, {"name": "v", "mountPath": "/v"}]}),
            'spec.containers[0].volumeMounts[1].mountPath: Invalid value: "/v": must be unique',
        ),
        (
            pod(VOLUME, {"volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": "../etc"}]}),
            "spec.containers[0].volumeMounts[0].subPath: Invalid value: \"../etc\": must not contain '..'",
        ),
        (
            pod(VOLUME, {"volumeMounts": [{"name": "v", "mountPath": "/v", "mountPropagation": "Bidirectional"}]}),
            "spec.containers[0].volumeMounts[0].mountPropagation: Forbidden: Bidirectional is only for privileged "
            "containers",
        ),
        (
            pod({"volumes": [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/x"}}]}),
            "spec.volumes[0].emptyDir: Forbidden: may not specify more than 1 volume type",
        ),
        (
            pod({"volumes": [{"name": "v", "configMap": {"name": "m", "defaultMode": 0o1000}}]}),
            "spec.volumes[0].configMap.defaultMode: Invalid value: 512: must be between 0 and 0777 (octal), both "
            "inclusive",
        ),
        (
            pod({"volumes": [{"name": "v", "configMap": {"name": "m", "items": [{"key": "k", "path": "../x"}]}}]}),
            "spec.volumes[0].configMap.items[0].path: Invalid value: \"../x\": must not contain '..'",
        ),
        (
            pod(container={"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}}),
            'spec.containers[0].resources.requests[cpu]: Invalid value: "2": must be less than or equal to cpu limit '
            "of 1",
        ),
        (
            pod(container={"ports": [{"containerPort": 70000}]}),
            "spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535",
        ),
        (
            pod(container={"securityContext": {"runAsUser": -1}}),
            "spec.containers[0].securityContext.runAsUser: Invalid value: -1: must be between 0 and 2147483647",
        ),
        (pod({"dnsPolicy": "None"}), "spec.dnsConfig.nameservers: Required value: at least one when dnsPolicy is None"),
        (
            pod({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}),
            "spec.securityContext.sysctls[0].name: Forbidden: kernel.msgmax is not one of the safe sysctls",
        ),
    ],
)
def test_validation_names_the_field(document: dict[str, Any], expected: str) -> None:
    assert problems(document) == [expected]


@pytest.mark.requirement("U10")
@pytest.mark.parametrize("field", ["hostNetwork", "hostPID", "hostIPC"])
def test_a_pod_with_its_own_user_namespace_shares_none_with_the_host(field: str) -> None:
    assert problems(pod({"hostUsers": False, field: True})) == [f"spec.{field}: Forbidden: when `hostUsers` is false"]


@pytest.mark.requirement("U11")
def test_host_users_is_not_for_windows() -> None:
    found = problems(pod({"hostUsers": False, "os": {"name": "windows"}}))
    assert "spec.hostUsers: Forbidden: cannot be set for a windows pod" in found


@pytest.mark.requirement("U1")
@pytest.mark.parametrize("given", [None, True, False])
def test_host_users_is_kept_as_it_was_sent(given: bool | None) -> None:
    document = pod({} if given is None else {"hostUsers": given})
    stored = msgspec.json.decode(msgspec.json.encode(one_pod(document)))
    assert stored["spec"].get("hostUsers", "absent") == ("absent" if given is None else given)


@pytest.mark.parametrize(
    ("document", "path"),
    [
        (pod(container={"volumeDevices": [{"name": "v", "devicePath": "/d"}]}), "spec.containers[0].volumeDevices"),
        (
            pod({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}),
            "spec.volumes[0].persistentVolumeClaim",
        ),
        (
            pod({"volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]}),
            "spec.volumes[0].projected.sources[0].serviceAccountToken",
        ),
        (pod({"volumes": [{"name": "v", "nfs": {"server": "s", "path": "/"}}]}), "spec.volumes[0].nfs"),
        (pod({"schedulingGates": [{"name": "g"}]}), "spec.schedulingGates"),
        (
            pod(container={"resources": {"limits": {"ephemeral-storage": "1Gi"}}}),
            "spec.containers[0].resources.limits[ephemeral-storage]",
        ),
        (
            pod(container={"resources": {"limits": {"example.com/gpu": 1}}}),
            "spec.containers[0].resources.limits[example.com/gpu]",
        ),
    ],
)
def test_a_known_field_that_would_do_nothing_is_refused(document: dict[str, Any], path: str) -> None:
    (problem,) = problems(document)
    assert problem.startswith(f"{path}: ")
    assert "not supported by this version" in problem


def test_defaults() -> None:
    found = one_pod(
        pod(
            {
                "volumes": [{"name": "m", "configMap": {"name": "m"}}, {"name": "e"}],
                "initContainers": [{"name": "i", "image": "busybox"}],
            },
            {"resources": {"limits": {"cpu": 1}}, "ports": [{"containerPort": 80}]},
        )
    )
    spec = found.spec
    assert (found.metadata.namespace, spec.restart_policy, spec.dns_policy) == ("default", "Always", "ClusterFirst")
    assert spec.termination_grace_period_seconds == 30
    assert spec.volumes[0].config_map is not None
    assert spec.volumes[0].config_map.default_mode == 0o644
    assert spec.volumes[1].empty_dir is not None
    container = spec.containers[0]
    assert container.resources.requests == {"cpu": "1"}
    assert (container.termination_message_path, container.termination_message_policy) == (
        "/dev/termination-log",
        "File",
    )
    assert container.ports[0].protocol == "TCP"


def test_a_profile_may_begin_with_dots() -> None:
    """Only `..` as a part of its path leads out of the directory of profiles."""
    profile = {"type": "Localhost", "localhostProfile": "..mine/p"}
    security = one_pod(pod({"securityContext": {"seccompProfile": profile}})).spec.security_context
    assert security is not None
    assert security.seccomp_profile is not None
    assert security.seccomp_profile.localhost_profile == "..mine/p"


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("busybox", "Always"),
        ("busybox:latest", "Always"),
        ("busybox:1", "IfNotPresent"),
        ("busybox:1?artifactType=application/spdx+json", "IfNotPresent"),
        ("busybox?artifactType=application/spdx+json", "Always"),
        ("localhost:5000/busybox", "Always"),
        ("localhost:5000/busybox:1", "IfNotPresent"),
        ("busybox@sha256:" + "0" * 64, "IfNotPresent"),
    ],
)
def test_pull_policy_follows_the_tag(image: str, policy: str) -> None:
    assert one_pod(pod(container={"image": image})).spec.containers[0].image_pull_policy == policy


@pytest.mark.requirement("V1", "V4")
@pytest.mark.parametrize(
    ("image", "given", "policy"),
    [
        ("data", None, "Always"), ("data:latest", None, "Always"), ("data:1", None, "IfNotPresent"),
        ("data@sha256:" + "0" * 64, None, "IfNotPresent"), ("data", "Never", "Never"), ("data:1", "Always", "Always"),
    ],
)  # fmt: skip
def test_pull_policy_of_a_volume_follows_the_tag(image: str, given: str | None, policy: str) -> None:
    source = {"reference": image} | ({"pullPolicy": given} if given else {})
    (volume,) = one_pod(pod({"volumes": [{"name": "v", "image": source}]})).spec.volumes
    assert volume.image is not None
    assert (volume.image.reference, volume.image.pull_policy) == (image, policy)


def test_config_maps_and_secrets() -> None:
    found = parse(
        pod(),
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a": "1"}},
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "s", "namespace": "n"},
            "data": {"p": "cHc="},
            "stringData": {"q": "x"},
        },
    )
    assert found.config_maps["default", "m"].data == {"a": "1"}
    assert found.secrets["n", "s"].data == {"p": b"pw", "q": b"x"}


@pytest.mark.parametrize("text", ["hunter2!", "aHVu dGVy"])
def test_a_secret_that_is_not_base64_is_refused_without_its_content(text: str) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"p": text}}
    (problem,) = problems(secret)
    assert problem.startswith("data[p]: expected base64 text")
    assert text not in problem


def secret(kind: str, **data: str) -> dict[str, Any]:
    document = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "type": f"kubernetes.io/{kind}"}
    return document | {"stringData": data}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (secret("dockerconfigjson"), ["data[.dockerconfigjson]: Required value"]),
        (secret("dockercfg", **{".dockerconfigjson": "{}"}), ["data[.dockercfg]: Required value"]),
        (
            secret("dockerconfigjson", **{".dockerconfigjson": "hunter2"}),
            ['data[.dockerconfigjson]: Invalid value: "<secret contents redacted>": not valid JSON'],
        ),
        (
            secret("dockercfg", **{".dockercfg": '{"r.example": {"auth": "hunter2"}}'}),
            [
                'data[.dockercfg]: Invalid value: "<secret contents redacted>": '
                "r.example: auth: must be base64(username:password)"
            ],
        ),
        (secret("basic-auth"), ["data[username]: Required value", "data[password]: Required value"]),
        (secret("ssh-auth", **{"ssh-privatekey": ""}), ["data[ssh-privatekey]: Required value"]),
        (secret("tls", **{"tls.key": ""}), ["data[tls.crt]: Required value"]),
    ],
)
def test_a_secret_holds_what_its_type_promises(document: dict[str, Any], expected: list[str]) -> None:
    assert problems(document) == expected


@pytest.mark.parametrize(
    "document",
    [
        secret("dockerconfigjson", **{".dockerconfigjson": '{"auths": {"r.example": {"auth": "dTpw"}}}'}),
        secret("dockercfg", **{".dockercfg": "{}"}),
        secret("basic-auth", password=""),
        secret("tls", **{"tls.crt": "", "tls.key": ""}),
        secret("anything", **{".dockercfg": "no JSON"}),
    ],
)
def test_a_secret_of_a_known_type(document: dict[str, Any]) -> None:
    (found,) = parse(document).secrets.values()
    assert found.type == document["type"]


@pytest.mark.requirement("V29")
def test_pull_secrets_are_kept_in_their_order() -> None:
    found = one_pod(pod({"imagePullSecrets": [{"name": "b"}, {"name": "a"}, {}]}))
    assert [reference.name for reference in found.spec.image_pull_secrets] == ["b", "a", ""]
    assert problems(pod({"imagePullSecrets": [{"nam": "b"}]})) == [
        "spec.imagePullSecrets[0].nam: unknown field (did you mean name?)"
    ]


def test_a_list_is_its_items() -> None:
    found = parse({"apiVersion": "v1", "kind": "List", "items": [pod(), pod(name="two")]})
    assert [item.metadata.name for item in found.pods] == ["web", "two"]


def test_the_same_object_twice_is_refused() -> None:
    assert problems(pod(), pod()) == ['metadata.name: Duplicate value: "default/web"']


def test_null_means_not_set_and_a_status_is_not_needed() -> None:
    document = pod({"volumes": None, "securityContext": None}, creationTimestamp=None) | {"status": {}}
    assert one_pod(document).spec.volumes == ()


def test_what_a_node_agent_enforces_is_taken_where_there_is_one() -> None:
    limited = {"resources": {"limits": {"ephemeral-storage": "1Gi"}}}
    document = pod({"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}]}, limited)
    assert len(problems(document)) == 2
    (found,) = manifest.parse(yaml.safe_dump(document), source="f", node=True).pods
    assert found.spec.containers[0].resources.limits == {"ephemeral-storage": "1Gi"}


RULE = {"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (
            pod(container={"restartPolicyRules": [RULE]}),
            "spec.containers[0].restartPolicy: Required value: must specify restartPolicy when restart rules are used",
        ),
        (
            pod(
                container={
                    "restartPolicy": "Never",
                    "restartPolicyRules": [{"action": "Stop"} | RULE | {"action": "Stop"}],
                }
            ),
            'spec.containers[0].restartPolicyRules[0].action: Unsupported value: "Stop": '
            'supported values: "Restart", "RestartAllContainers"',
        ),
        (
            pod(container={"restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart"}]}),
            "spec.containers[0].restartPolicyRules[0].exitCodes: Required value: must be specified",
        ),
        (
            pod({"ephemeralContainers": [{"name": "e", "image": "i", "targetContainerName": "x"}]}),
            'spec.ephemeralContainers[0].targetContainerName: Not found: "x"',
        ),
        (
            pod({"ephemeralContainers": [{"name": "e", "image": "i", "ports": [{"containerPort": 1}]}]}),
            "spec.ephemeralContainers[0].ports: Forbidden: cannot be set for an Ephemeral Container",
        ),
        (
            pod(container={"securityContext": {"procMount": "Unmasked"}}),
            'spec.containers[0].securityContext.procMount: Invalid value: "Unmasked": '
            "`hostUsers` must be false to use `Unmasked`",
        ),
        (
            pod({"securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "../p"}}}),
            "spec.securityContext.seccompProfile.localhostProfile: Invalid value: \"../p\": must not contain '..'",
        ),
        (
            pod(container={"livenessProbe": {"tcpSocket": {"port": "8080"}}}),
            'spec.containers[0].livenessProbe.tcpSocket.port: Invalid value: "8080": '
            "must contain at least one letter (a-z)",
        ),
        (
            pod({"securityContext": {"appArmorProfile": {"type": "Localhost"}}}),
            "spec.securityContext.appArmorProfile.localhostProfile: Required value",
        ),
        (
            pod({"hostnameOverride": "a", "setHostnameAsFQDN": True}),
            "spec.setHostnameAsFQDN: Forbidden: cannot be true when `hostnameOverride` is set",
        ),
        (
            pod(container={"ports": [{"containerPort": 80, "hostPort": 80}, {"containerPort": 81, "hostPort": 80}]}),
            'spec.containers[0].ports[1].hostPort: Duplicate value: "TCP//80"',
        ),
        (
            pod(
                VOLUME,
                {"env": [{"name": "A", "valueFrom": {"fileKeyRef": {"volumeName": "w", "path": "p", "key": "k"}}}]},
            ),
            'spec.containers[0].env[0].valueFrom.fileKeyRef.volumeName: Not found: "w"',
        ),
        (
            pod(container={"env": [{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.gpu"}}}]}),
            'spec.containers[0].env[0].valueFrom.resourceFieldRef.resource: Unsupported value: "limits.gpu": '
            'supported values: "limits.cpu", "limits.ephemeral-storage", "limits.memory", "requests.cpu", '
            '"requests.ephemeral-storage", "requests.memory"',
        ),
    ],
)
def test_rules_of_what_was_not_taken_before(document: dict[str, Any], expected: str) -> None:
    assert problems(document) == [expected]


def test_a_field_of_a_newer_api_is_passed_over_in_a_pod_of_a_server() -> None:
    document = pod({"userNamespaceFlavor": "x"}, {"quantumMode": True}) | {"status": {"newest": 1}}
    found = received.pod(document)
    assert found.problems == ()
    assert found.pod.spec.containers[0].image == "busybox:1"


def test_a_pod_of_a_server_is_the_same_however_it_is_read() -> None:
    """As kube-apiserver writes it: numbers that are quantities or ports, nulls, and the status of a node."""
    container = {"ports": [{"containerPort": 80}], "resources": {"limits": {"cpu": "1", "memory": "64Mi"}}}
    condition = {"type": "Ready", "status": "True", "lastProbeTime": None, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = {"phase": "Running", "conditions": [condition], "podIPs": [{"ip": "10.0.0.2"}]}
    probe = {"livenessProbe": {"httpGet": {"path": "/", "port": 80, "scheme": "HTTP"}, "periodSeconds": 10}}
    for extra in ({}, probe):
        fast = received.pod(pod(container=container | extra) | {"status": status})
        slow = received.pod(pod({"newest": 1}, container | extra) | {"status": status})
        assert fast == slow
        assert fast.problems == ()
        assert fast.pod.status.phase == "Running"


def test_a_value_that_is_not_known_is_a_problem_of_a_pod_of_a_server() -> None:
    secured = {"securityContext": {"seccompProfile": {"type": "Strictest"}}}
    assert received.pod(pod(secured)).problems == (
        'spec.securityContext.seccompProfile.type: Unsupported value: "Strictest": '
        'supported values: "Localhost", "RuntimeDefault", "Unconfined"',
    )
