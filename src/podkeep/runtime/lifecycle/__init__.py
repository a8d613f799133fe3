"""The life of sandboxes and containers: the order of a request's steps, the steps, ends, recovery, checkpoints.

``sandboxes`` and ``containers`` keep the order and the records, their executors do the kernel's side. Used by ``rpc``.
"""
