"""CheckpointContainer with this machine's CRIU, whether or not that gets on with the kernel."""

from __future__ import annotations

import tarfile
from pathlib import Path

from podkeep.base.errors import FailedPrecondition, Internal, InvalidArgument, NotFound, Unimplemented
from podkeep.cri.v1 import api_pb2 as api
from support.cri import Pods, error_of
from support.mortal import Mortal


def checkpoint(pods: Pods, container: str, location: Path | str) -> None:
    request = api.CheckpointContainerRequest(container_id=container, location=str(location), timeout=30)
    pods.call("CheckpointContainer", request)


def test_an_oci_runtime_without_criu_says_so(pods: Pods, tmp_path: Path) -> None:
    container = pods.launch(pods.run())
    message = error_of(lambda: checkpoint(pods, container, tmp_path / "c.tar"), Unimplemented)
    assert "criu" in message.lower()
    assert pods.status(container).state == api.CONTAINER_RUNNING
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_checkpointed(pods: Pods, tmp_path: Path) -> None:
    container = pods.create(pods.run())
    location = tmp_path / "c.tar"
    assert "created, not running" in error_of(lambda: checkpoint(pods, container, location), FailedPrecondition)
    error_of(lambda: checkpoint(pods, "no-such-container", location), NotFound)
    pods.start(container)
    for wrong in ("", "relative.tar", "/directory/"):
        assert "location" in error_of(lambda: checkpoint(pods, container, wrong), InvalidArgument)  # noqa: B023


def test_of_requests_that_come_together_one_at_a_time_is_carried_out(pods: Pods, tmp_path: Path) -> None:
    """They share the directory that the OCI runtime and CRIU work in, whatever the places of their archives."""
    container = pods.launch(pods.run())
    calls = [
        ("CheckpointContainer", api.CheckpointContainerRequest(container_id=container, location=f"{tmp_path}/{number}"))
        for number in range(50)
    ]
    errors = pods.call_all(calls)
    assert {type(error) for error in errors} <= {Unimplemented, FailedPrecondition}, errors
    assert any(isinstance(error, Unimplemented) for error in errors)
    assert list(tmp_path.iterdir()) == []


def test_a_container_runs_on_after_its_checkpoint(mortal: Mortal, tmp_path: Path) -> None:
    """With a CRIU that knows this kernel there is an archive, with another one an error; never a container less."""
    mortal.daemon.config.write_text(
        mortal.daemon.config.read_text()
        + '[runtime.handlers.crun]\npath = "/usr/bin/crun"\n[runtime.handlers.runc]\npath = "/usr/bin/runc"\n'
    )
    pods = mortal.start()
    container = pods.launch(pods.run(handler="runc"), "sh", "-c", "echo x > /kept; while :; do sleep 0.1; done")
    before = mortal.daemon.resources()
    location = tmp_path / "c.tar"
    try:
        checkpoint(pods, container, location)
    except (Internal, Unimplemented) as refused:
        said = str(refused).lower()
        assert "criu" in said
        assert list(tmp_path.iterdir()) == []
    else:
        with tarfile.open(location) as tar:
            assert {"config.dump", "spec.dump", "checkpoint", "rootfs-diff.tar"} <= set(tar.getnames())
    assert pods.read(container, "cat /kept") == "x"
    assert pods.status(container).state == api.CONTAINER_RUNNING
    assert mortal.daemon.resources() == before
