"""What pods and containers may use: QoS classes, cgroups of pods, class resources."""
