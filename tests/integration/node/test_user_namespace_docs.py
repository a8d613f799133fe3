"""docs/user-namespaces.md: its steps, and what it says to do about each failure, done on a node."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml
from node.test_image_volume_gate import reasons, restart
from node.test_user_namespace_gate import IDENTITY, OFF, is_block, mapping_of, recreate, runs

from support import filesystems
from support.running_node import RunningNode

DOCUMENT = (Path(__file__).parents[3] / "docs" / "user-namespaces.md").read_text()
FAILED = "FailedCreatePodSandBox"


STEPS, DUTIES, FAILURES = "Step by step", "What is the administrator's job", "When it does not work"


def blocks(language: str, section: str) -> list[str]:
    """Return the blocks of code of a section of the document."""
    _, _, text = DOCUMENT.partition(f"\n## {section}\n")
    assert text, section
    found = re.findall(rf"^```{language}\n(.*?)^```$", text.partition("\n## ")[0], re.MULTILINE | re.DOTALL)
    return [re.sub(r"^# ", "", text, flags=re.MULTILINE) for text in found]


def refused(node: RunningNode, name: str) -> str:
    """Return why a pod's sandbox cannot be made, as the commands of the document show it."""
    node.until(lambda: FAILED in reasons(node, name), FAILED)
    shown = node.api.kubectl(*shlex.split(blocks("console", FAILURES)[0])[1:])
    message = reasons(node, name)[FAILED]
    assert message in shown
    return message


def table(message: str) -> str:
    """Return the row of the document's table about a message."""
    (row,) = [line for line in DOCUMENT.splitlines() if line.startswith("| `") and line.split("`")[1] in message]
    return row


@pytest.mark.requirement("U19", "U108", "U110")
def test_step_by_step(node: RunningNode, image: str, tmp_path: Path) -> None:
    assert "> **What an old kernel costs.**" in DOCUMENT
    (manifest,) = blocks("yaml", STEPS)
    file = tmp_path / "own.yaml"
    document = yaml.safe_load(manifest.replace("IMAGE", image))
    document["spec"]["nodeName"] = node.name
    if not filesystems.can_be_idmapped("tmpfs"):
        assert "`automountServiceAccountToken: false`" in DOCUMENT
        document["spec"]["automountServiceAccountToken"] = False
    file.write_text(yaml.safe_dump(document))
    node.apply(runs(image, "plain"))
    apply, mapped, find = (block.replace("own.yaml", str(file)) for block in blocks("console", STEPS))
    for line in apply.splitlines():
        node.api.kubectl(*shlex.split(line)[1:])
    assert is_block(node.api.kubectl(*shlex.split(mapped)[1:]).split())
    assert node.api.kubectl(*shlex.split(find)[1:]).split() == ["default/own"]
    (honour,) = blocks("console", DUTIES)
    assert "true" in node.api.kubectl(*shlex.split(honour)[1:]).removeprefix(f"{node.name}: ").split()


@pytest.mark.requirement("U109")
def test_the_gate_is_off(own_node: RunningNode, image: str) -> None:
    """Without ``hostUsers``, or with the gate on, the pod runs."""
    own_node.settings = (OFF,)
    with own_node as node:
        for name in ("first", "second"):
            node.apply(runs(image, name, hostUsers=False))
            assert "turn it on" in table(refused(node, name))
        recreate(node, runs(image, "first"))
        restart(node, ())
        node.running("second")
        assert is_block(mapping_of(node, image, "second"))


@pytest.mark.requirement("U96", "U109")
def test_a_handler_without_user_namespaces(own_node: RunningNode, image: str) -> None:
    """The pod waits, is tried again and again, and runs without ``hostUsers``."""
    own_node.daemon.extra += '[runtime.handlers.runc]\npath = "/usr/sbin/runc"\n'
    own_node.daemon.settings = ("runtime.default_handler=runc",)
    own_node.daemon.write()
    with own_node as node:
        node.apply(runs(image, "own", hostUsers=False))
        assert "the pod without `hostUsers`" in table(refused(node, "own"))
        assert reasons(node, "own")[FAILED] == (
            "Failed to create pod sandbox: user namespaces is not supported by the runtime"
        )

        def seen() -> int:
            return sum(event.get("count") or 1 for event in node.events("own") if event["reason"] == FAILED)

        for count in (2, 3):
            node.until(lambda: seen() >= count, f"{count} times")  # noqa: B023
        assert {event["type"] for event in node.events("own") if event["reason"] == FAILED} == {"Warning"}
        assert "ContainerCreating" in node.api.kubectl("get", "pod", "own")
        recreate(node, runs(image, "own"))


@pytest.mark.requirement("U12", "U97")
def test_handlers_that_differ(own_node: RunningNode, image: str) -> None:
    """A pod's own handler counts, whatever the default one can do: one without user namespaces is an error.

    One that is declared to run virtual machines starts the pod without.
    """
    assert '`kind = "vm"`' in DOCUMENT
    own_node.daemon.extra += (
        '[runtime.handlers.crun]\npath = "/usr/bin/crun"\n'
        '[runtime.handlers.without]\npath = "/usr/sbin/runc"\n'
        '[runtime.handlers.machines]\npath = "/usr/sbin/runc"\nkind = "vm"\n'
    )
    own_node.daemon.write()
    with own_node as node:
        for name in ("machines", "without"):
            runtime_class = {"metadata": {"name": name}, "handler": name}
            node.ask("POST", "/apis/node.k8s.io/v1/runtimeclasses", runtime_class)
            node.apply(runs(image, name, hostUsers=False, runtimeClassName=name))
        node.apply(runs(image, "own", hostUsers=False))
        assert mapping_of(node, image, "machines") == IDENTITY
        assert is_block(mapping_of(node, image, "own"))
        assert "the pod without `hostUsers`" in table(refused(node, "without"))
