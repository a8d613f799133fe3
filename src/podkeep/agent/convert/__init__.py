"""Pods as CRI requests, and CRI answers as a pod's status. Pure; protobuf of the agent stops here."""
