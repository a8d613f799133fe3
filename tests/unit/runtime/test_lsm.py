"""What the kernel and the policy say about security modules."""

from __future__ import annotations

from pathlib import Path

from podkeep.kernel.mount import mountinfo
from podkeep.kernel.process import lsm

LXC_CONTEXTS = """process = "system_u:system_r:container_t:s0"
content = "system_u:object_r:virt_var_lib_t:s0"
file = "system_u:object_r:container_file_t:s0"
# comment = "x"
ro_file="system_u:object_r:container_ro_file_t:s0"
"""


def test_selinux_is_on_where_its_file_system_is() -> None:
    assert lsm.selinux_enabled() is ("selinuxfs" in {entry.fs_type for entry in mountinfo.read()})


def test_contexts_of_the_policy(tmp_path: Path) -> None:
    assert lsm.selinux_contexts(tmp_path) == {}
    contexts = tmp_path / "mls" / "contexts"
    contexts.mkdir(parents=True)
    (contexts / "lxc_contexts").write_text(LXC_CONTEXTS)
    assert lsm.selinux_contexts(tmp_path) == {}
    (tmp_path / "config").write_text("# SELINUXTYPE=other\nSELINUX=enforcing\nSELINUXTYPE=mls\n")
    found = lsm.selinux_contexts(tmp_path)
    assert found["process"] == "system_u:system_r:container_t:s0"
    assert found["file"] == "system_u:object_r:container_file_t:s0"
    assert found["ro_file"] == "system_u:object_r:container_ro_file_t:s0"


def test_active_modules_are_known() -> None:
    assert set(lsm.active()) >= ({"apparmor"} if lsm.apparmor_enabled() else set())


def test_a_profile_may_have_any_name(tmp_path: Path) -> None:
    table = tmp_path / "profiles"
    table.write_bytes(b"a\xffb (x) (enforce)\npodkeep-default (enforce)\n")
    assert lsm.apparmor_profiles(table) == {"a\udcffb (x)", "podkeep-default"}
