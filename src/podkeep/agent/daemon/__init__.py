"""The agent's process: what it is put together of, its start and its end."""
