"""A client that follows the pulls of a node, and prints ``heard`` for each message.

watching_pulls.py SOCKET
"""

from __future__ import annotations

import sys

from podkeep.cri import transport

# isort: split
import grpc

channel = grpc.insecure_channel(transport.target(transport.socket_path(sys.argv[1])))
for _ in channel.unary_stream("/podkeep.v1.Node/WatchPulls")(b""):
    print("heard", flush=True)
