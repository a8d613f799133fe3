"""The container runtime: CRI v1 on a unix socket. ``daemon`` is where the parts are put together.

Knows nothing of the Kubernetes API: any kubelet can drive it.
"""
