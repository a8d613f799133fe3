"""The node agent's core: Pods to CRI calls.

Offers pods that run, their volumes, user namespaces, logs and events, to the command line. Reaches containers through
the CRI socket only, whichever runtime serves it.
"""
