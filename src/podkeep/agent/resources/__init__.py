"""What pods and containers may use: requests, QoS classes, cgroups of pods, class resources.

``predicates.admit`` says whether a pod fits on the node, ``allocations.Allocations`` what each pod was granted,
``resizer.Resizer`` changes that; amounts are in the units of ``requests``.
"""
