"""Tasks and threads with an owner, operations that run once for all who ask, and a steady clock."""
