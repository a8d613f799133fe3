"""Limits, quotas, priorities and runtime classes."""
