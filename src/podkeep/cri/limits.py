"""How much the runtime takes of what the agent looks at first: it rejects a pod with more.

A client other than the agent is told so by the runtime, when it asks for the container.
"""

MAX_MOUNTS = 1024
"""Mounts of a container. In a pod with a user namespace a read-only one is two mounts in the namespace of the runtime,
which all pods share and the kernel bounds (fs.mount-max: 100,000), and two descriptors, until the container is made."""
MAX_DEVICES = 256
"""Devices of a container, and as many of CDI; each path is compared with those of all mounts."""
