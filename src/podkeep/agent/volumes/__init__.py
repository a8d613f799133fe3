"""The volumes of a pod on this node: made, filled, owned, mounted, removed.

``pod_volumes.PodVolumes`` has all of one pod; ``container_files`` says where a container finds them, and has the files
that each container gets beside: /etc/hosts, the termination log.
"""
