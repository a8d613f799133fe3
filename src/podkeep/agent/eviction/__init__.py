"""Node pressure: thresholds, eviction of pods, garbage collection of containers, graceful shutdown."""
