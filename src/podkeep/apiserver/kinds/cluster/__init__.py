"""Namespaces, nodes, leases, events, ConfigMaps and Secrets."""
