"""A client of the Kubernetes API: kubeconfig, credentials, requests, watches, events. Knows no kind's fields.

``kubeconfig`` finds ``Settings``, with which ``client.Client`` makes requests and watches; ``reflector.Reflector``
follows a list, ``recorder.Recorder`` writes events.
"""
