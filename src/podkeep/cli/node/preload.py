"""What a supervisor imports for its daemons, which are copies of it: it is read once, and in memory once.

Nothing that is imported here may start a thread or keep a descriptor open: tests see to it.
"""

from __future__ import annotations


def shared() -> None:
    """Import what at least two of the daemons use."""
    import asyncio  # noqa: F401
    import sqlite3  # noqa: F401

    import podkeep.api.documents
    import podkeep.api.validation.containers
    import podkeep.base.concurrency.tasks
    import podkeep.base.metrics
    import podkeep.base.process_metrics
    import podkeep.client.client
    import podkeep.cri.client
    import podkeep.http.health
    import podkeep.http.server
    import podkeep.http.tls
    import podkeep.kernel.cgroup.cgroup_stats
    import podkeep.mountns.membership
    import podkeep.mountns.unified  # noqa: F401


def agent() -> None:
    """Import what the agent needs: it is not started at once."""
    import podkeep.agent.daemon.daemon
    import podkeep.cli.core.kubelet_pki  # noqa: F401
    from podkeep.base.concurrency import structs

    structs.complete()
