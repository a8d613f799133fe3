"""Types of the configuration: files of cgroups, hooks; ``plugin`` is the way in, for ``loading`` and ``doctor``."""
