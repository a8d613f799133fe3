"""HTTP/1.1: one server core for all that is served over HTTP, and SPDY/3.1 and WebSocket on upgraded connections.

Offers a server (``server``) to whoever writes a handler from ``Request`` to ``Response`` or ``Upgrade`` (``messages``),
byte streams over SPDY and WebSocket (``spdy_connection``, ``websocket``), and a client's upgrade (``client``). Used by
the runtime's streams and metrics and by the command line. It knows neither paths and methods nor pods.
"""
