"""Roles and bindings, service accounts, and reviews of who may do what."""
