"""Objects that pods refer to: which ones, and a snapshot of them, read from the API.

``references`` finds them in a pod; ``sources.Sources`` is the snapshot, ``api_objects.ApiObjects`` reads it;
``runtime_classes.RuntimeClasses`` follows the RuntimeClasses of the cluster.
"""
