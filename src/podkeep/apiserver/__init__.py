"""The embedded Kubernetes API: stores, defaults, validates, admits and watches objects; knows no container."""
