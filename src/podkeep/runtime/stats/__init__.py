"""Statistics of pods and containers: sampled from cgroups, network devices and layers, as values and as metrics."""
