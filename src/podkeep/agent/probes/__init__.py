"""Probes and life cycle hooks of containers: exec, HTTP, TCP, gRPC, sleep.

``prober.Probes`` runs the probes of all pods, ``hooks`` postStart and preStop.
"""
