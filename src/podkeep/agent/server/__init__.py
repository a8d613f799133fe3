"""A kubelet's HTTPS endpoints: logs, exec, attach, port-forward, pods, statistics, metrics, configz."""
