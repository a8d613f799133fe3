"""How many files a daemon may have open.

A usual shell's limit is 1024, which select(2) once needed. A daemon has as many connections as its own limits allow,
some of them of strangers; where those are more than its descriptors, others cannot connect, and what it does itself
fails.
"""

from __future__ import annotations

import resource

MOST = 1 << 20
"""File descriptors that a daemon allows itself at most; some machines' limit is a thousand times that."""


def raise_limit() -> None:
    """Use the hard limit, up to :data:`MOST`; programs that are started from now on have it as well."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
