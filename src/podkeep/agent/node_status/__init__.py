"""The Node object: registration, status, conditions, lease."""
