"""The runtime's process: putting the parts together, serving, reloading, its own metrics, stopping."""
