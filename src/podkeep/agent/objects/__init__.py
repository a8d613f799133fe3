"""Objects that pods refer to: which ones (``references``), a snapshot (``Sources``), read from the API (``ApiObjects``).

``RuntimeClasses`` follows the RuntimeClasses of the cluster.
"""
