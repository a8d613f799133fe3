"""``make quick``: the unit tests that need no root and take no time, all of them together at most 15 s.

Owns: which modules are left out, and why. A module is left out as a whole: what is quick is told by its name alone.
"""

from __future__ import annotations

from pathlib import Path

OPTION = "--quick"
EXAMPLES = 10
"""How many each property test tries (hypothesis), instead of a hundred."""
DIRECTORIES = ("api", "base", "cri", "http", "agent", "images", "runtime", "cli", "support")
"""Below tests/unit. The others, kernel and mountns, are about what only root may do."""
NEEDS_ROOT = frozenset(
    {
        "agent/test_agent_admission.py",
        "agent/test_agent_class_admission.py",
        "agent/test_agent_mount_namespace.py",
        "agent/test_agent_poddirs.py",
        "agent/test_agent_volumes.py",
        "agent/test_hostile_owners.py",
        "agent/test_log_rotation.py",
        "agent/test_single_mapping_volumes.py",
        "agent/test_empty_dir.py",
        "agent/test_getsubids.py",
        "agent/test_hostile_volumes.py",
        "agent/test_pod_volumes.py",
        "cli/test_classes.py",
        "cli/test_diagnosis.py",
        "cli/test_diagnosis_class_resources.py",
        "cli/test_firewall_diagnosis.py",
        "cli/test_image_save.py",
        "cli/test_mountns_install.py",
        "images/test_datafile.py",
        "images/test_full_image_disk.py",
        "images/test_image_database.py",
        "images/test_packing.py",
        "images/test_unpack_confinement.py",
        "runtime/class_resources/rdt/test_groups.py",
        "runtime/test_pod_cgroups.py",
        "runtime/class_resources/rdt/test_planning.py",
        "runtime/class_resources/test_blockio_plugin.py",
        "runtime/class_resources/test_commands.py",
        "runtime/class_resources/test_custom.py",
        "runtime/class_resources/test_oom.py",
        "runtime/test_bridge.py",
        "runtime/test_cdi.py",
        "runtime/test_checkpoint.py",
        "runtime/test_copy_up.py",
        "runtime/test_executor_lookups.py",
        "runtime/test_kill_command.py",
        "runtime/test_log_limit.py",
        "runtime/test_namespace_watch.py",
        "runtime/test_null_device.py",
        "runtime/test_oci_driver.py",
        "runtime/test_port_filter.py",
        "runtime/test_recovery.py",
        "runtime/test_relabel.py",
        "runtime/test_staging.py",
        "runtime/test_strays.py",
        "support/test_resctrl_groups.py",
        "support/test_resctrl_tasks.py",
    }
)
TAKES_LONG = frozenset(
    {
        "agent/probes/test_checks.py",
        "agent/probes/test_prober.py",
        "agent/test_agent_environment.py",
        "agent/test_agent_userns.py",
        "cli/test_become.py",
        "cli/test_cli_main.py",
        "cli/test_config_check.py",
        "cli/test_kubelet_pki.py",
        "cli/test_setup_script.py",
        "cri/test_cri_client.py",
        "cri/test_cri_subprocesses.py",
        "images/test_decompress.py",
        "images/test_tarstream.py",
        "runtime/class_resources/rdt/test_rdt_properties.py",
        "runtime/class_resources/test_loading.py",
        "runtime/class_resources/test_yamlfile.py",
        "runtime/streaming/test_bounds.py",
        "runtime/streaming/test_sessions_parts.py",
        "http/test_http_server.py",
        "http/test_self_signed.py",
        "http/test_spdy.py",
        "runtime/test_chunks.py",
        "runtime/test_cni.py",
        "runtime/test_log_limit.py",
        "runtime/test_metrics.py",
    }
)


def is_left_out(path: Path, unit: Path) -> bool:
    """Return whether a file or directory is none of the quick tests. ``unit`` is the directory of unit tests."""
    if not path.is_relative_to(unit):
        return True
    relative = path.relative_to(unit)
    if not relative.parts:
        return False
    return relative.parts[0] not in (*DIRECTORIES, "conftest.py") or str(relative) in NEEDS_ROOT | TAKES_LONG
