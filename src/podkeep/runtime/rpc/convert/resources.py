"""Resources of Linux containers: CRI messages to records and back. Pure."""

from __future__ import annotations

from podkeep.base.errors import InvalidArgument
from podkeep.cri.v1 import api_pb2 as api
from podkeep.runtime.model import records
from podkeep.runtime.oci import resources as limits


def resources_record(given: api.LinuxContainerResources, field: str = "config.linux.resources") -> records.Resources:
    """Return limits, each checked against the kernel's range for it.

    :param field: what holds them in the request, for the error.
    :raises InvalidArgument: naming the field that is out of range.
    """
    sizes = [item.page_size for item in given.hugepage_limits]
    if len(set(sizes)) < len(sizes):
        raise InvalidArgument(f"{field}.hugepage_limits: a page size is given twice")
    for item in given.hugepage_limits:
        if item.limit >= 2**63:
            raise InvalidArgument(f"{field}.hugepage_limits: {item.limit} bytes is no limit")
    result = records.Resources(
        cpu_period=given.cpu_period,
        cpu_quota=given.cpu_quota,
        cpu_shares=given.cpu_shares,
        cpuset_cpus=given.cpuset_cpus,
        cpuset_mems=given.cpuset_mems,
        memory_limit=given.memory_limit_in_bytes,
        memory_swap_limit=given.memory_swap_limit_in_bytes,
        oom_score_adj=given.oom_score_adj,
        hugepage_limits={item.page_size: item.limit for item in given.hugepage_limits},
        unified=dict(given.unified),
    )
    limits.check_values(field, result)
    return result


def resources_message(resources: records.Resources) -> api.LinuxContainerResources:
    """Return the message of resources, as ContainerStatus echoes them."""
    return api.LinuxContainerResources(
        cpu_period=resources.cpu_period,
        cpu_quota=resources.cpu_quota,
        cpu_shares=resources.cpu_shares,
        cpuset_cpus=resources.cpuset_cpus,
        cpuset_mems=resources.cpuset_mems,
        memory_limit_in_bytes=resources.memory_limit,
        memory_swap_limit_in_bytes=resources.memory_swap_limit,
        oom_score_adj=resources.oom_score_adj,
        hugepage_limits=[api.HugepageLimit(page_size=k, limit=v) for k, v in resources.hugepage_limits.items()],
        unified=resources.unified,
    )
