"""A kubelet's HTTPS endpoints: logs, exec, attach, port-forward, pods, statistics, metrics, configz.

``server.KubeletServer`` listens, authenticates and authorizes; ``endpoints`` has the routes; ``collector`` measures.
"""
