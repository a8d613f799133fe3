"""What the agent records of a pod before it asks for its sandbox, on a disk that forgets what was not synced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from podkeep.agent.poddirs import PodDirs, PodIdentity
from podkeep.agent.user_namespaces import blocks
from podkeep.agent.user_namespaces.blocks import default_range
from podkeep.base.ids import PodUID
from support import powerloss

_UID = PodUID("7d2a1f2e-0000-4000-8000-000000000001")
_IDENTITY = PodIdentity(namespace="default", name="web")


@pytest.mark.requirement("U33")
@pytest.mark.parametrize("own", [True, False], ids=["with-a-user-namespace", "without"])
def test_records_of_a_pod_are_there_after_a_loss_of_power(tmp_path: Path, scratch_machine: None, own: bool) -> None:
    """The last record syncs the directory for both; a pod without a user namespace has one."""
    with powerloss.mounted(tmp_path) as disk:
        dirs = PodDirs(tmp_path, "/run/podkeep/runtime.sock")
        os.close(dirs.own(_UID))
        dirs.identify(_UID, _IDENTITY, managed=True, is_last=not own)
        if own:
            block = blocks.allocate(dirs.pods, _UID, default_range(110, 65536))
        disk.lose_power()
        assert dirs.managed() == [_UID]
        assert dirs.identity(_UID) == _IDENTITY
        assert blocks.record(dirs.pods, _UID) == (block if own else None)
        assert sorted(os.listdir(dirs.pods / _UID)) == (["pod.json", "userns"] if own else ["pod.json"])


def test_a_record_beside_one_that_is_kept_is_there_after_a_loss_of_power(tmp_path: Path, scratch_machine: None) -> None:
    """The record of IDs may be there already, as that of a kubelet whose pods the agent takes on."""
    with powerloss.mounted(tmp_path) as disk:
        dirs, id_range = PodDirs(tmp_path, "/run/podkeep/runtime.sock"), default_range(110, 65536)
        os.close(dirs.own(_UID))
        block = blocks.allocate(dirs.pods, _UID, id_range)
        dirs.identify(_UID, _IDENTITY, managed=True, is_last=False)
        assert blocks.allocate(dirs.pods, _UID, id_range) == block
        disk.lose_power()
        assert dirs.identity(_UID) == _IDENTITY
        assert blocks.record(dirs.pods, _UID) == block


def test_a_record_whose_directory_is_not_synced_is_lost(tmp_path: Path, scratch_machine: None) -> None:
    """So the test above can fail."""
    with powerloss.mounted(tmp_path) as disk:
        dirs = PodDirs(tmp_path, "/run/podkeep/runtime.sock")
        os.close(dirs.own(_UID))
        dirs.identify(_UID, _IDENTITY, is_last=False)
        disk.lose_power()
        assert dirs.identity(_UID) is None
        assert not dirs.is_taken(_UID)
