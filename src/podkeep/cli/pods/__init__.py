"""Verbs that act on pods and containers: attach, exec, logs, port-forward, ps, rm.

Offers ``targets`` (from names that people type to sandboxes and containers), ``verdicts`` (how a pod of
the API is, and why) and ``crilog`` (printing logs) to others.
"""
