"""Linux: system calls, ``/proc``, cgroups, namespaces, mounts, netlink, resctrl, and what reads hostile places safely.

Synchronous; called on threads. ``openat``, ``removal`` and ``tables`` are the only ways to what a container may have
written. ``ctypes`` is used nowhere else.
"""
