"""Pods as CRI requests: sandboxes, containers, security, namespaces, names. Pure."""
