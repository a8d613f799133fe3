"""Verbs on objects of the Kubernetes API, for machines without kubectl: get, describe, events, apply, delete, wait."""
