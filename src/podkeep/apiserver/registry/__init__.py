"""The verbs on any resource, over the store; what differs between kinds is each one's ``Strategy``."""
