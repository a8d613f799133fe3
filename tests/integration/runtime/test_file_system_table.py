"""Which file systems can be idmapped: the table of docs/user-namespaces.md, tried on this kernel."""

from __future__ import annotations

import os

import pytest

from podkeep.kernel.mount import mountinfo
from support import filesystems, loopdev


@pytest.mark.requirement("U74")
def test_the_table_of_file_systems_is_what_this_kernel_does() -> None:
    """Every one that this kernel has is tried; the words of a refusal are compared as well (``filesystems``)."""
    mounted, attached = mountinfo.read(), loopdev.attached()
    release = os.uname().release
    documented, found = filesystems.documented(release), filesystems.run()
    assert documented.keys() == found.keys()
    here = {name: answer for name, answer in found.items() if not answer.startswith("not here: ")}
    said = {name: documented[name] for name in here if documented[name] != "not tried"}
    if filesystems.is_in_table(release):
        assert here == said
    else:  # newer kernels take away nothing
        assert {name for name, answer in said.items() if answer == "yes"} <= {
            name for name, answer in here.items() if answer == "yes"
        }
    assert {"ext4", "tmpfs", "ramfs", "overlay"} <= here.keys()
    assert (mountinfo.read(), loopdev.attached()) == (mounted, attached)


def test_every_answer_of_the_table_is_one_of_three_and_what_was_not_tried_has_its_reason() -> None:
    for release in ("6.1.0", "6.18.0"):
        assert set(filesystems.documented(release).values()) <= {"yes", "no", "not tried"}
    assert filesystems.unexplained() == []
