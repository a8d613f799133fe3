"""One pod: the worker, which observes, decides and acts, and the status that it reports.

``worker.PodWorker`` runs a pod; ``plan.decide`` says which ``actions`` come next, ``starter`` and ``teardown`` do it;
``status.pod_status`` is what the API shows.
"""
