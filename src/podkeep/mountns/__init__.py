"""The container mount namespace: making it, pinning it, entering it, and what is shown of it.

Used by the command line before anything is mounted, by the runtime and by the agent; stands on ``kernel`` alone.
"""
