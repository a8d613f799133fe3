"""A client of the Kubernetes API: kubeconfig, credentials, requests, watches, events. Knows no kind's fields."""
