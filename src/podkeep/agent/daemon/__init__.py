"""The agent's process: what it is put together of, its start and its end.

``daemon.serve`` is the way in; ``reports`` is what it says of itself.
"""
