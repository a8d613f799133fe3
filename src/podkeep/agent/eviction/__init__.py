"""Node pressure: eviction of pods, garbage collection of containers, graceful shutdown.

``EvictionManager`` (``manager``), ``ContainerGarbage`` (``containers``) and ``GracefulShutdown`` (``shutdown``) run for
as long as the agent; ``ranking``, ``pressure`` and ``shutdown_plan`` decide.
"""
