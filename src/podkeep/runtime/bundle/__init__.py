"""What is beside a container's configuration: staged mounts, image volumes, copies, labels, logs, files of the pod.

Used by ``lifecycle``, which decides when each of them comes and goes.
"""
