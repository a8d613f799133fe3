"""All pods of the node: sources, workers, status to the API, mirror pods, orphans.

``manager.PodManager`` has one worker for each pod; ``runtime_events`` wakes them, ``orphans`` removes what has no pod.
"""
