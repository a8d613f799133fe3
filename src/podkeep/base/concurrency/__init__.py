"""Tasks and threads with an owner, and operations that run once for all who ask."""
