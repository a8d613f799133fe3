"""The status of a pod (v1.PodStatus) from what is wanted and what was observed. Pure."""
