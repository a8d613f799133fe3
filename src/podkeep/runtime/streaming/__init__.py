"""Streams: exec, attach and port-forward over SPDY and WebSocket, within a budget of bytes and connections."""
