"""Probes and life cycle hooks of containers: exec, HTTP, TCP, gRPC, sleep. ``Probes`` in ``prober`` is the way in."""
