"""CRI v1, the wire: the protocol files, what is generated of them, client channels, and errors as gRPC statuses.

Used by the server (``runtime.rpc``) and by the clients (``agent``, ``cli``), so that both speak of one protocol.
"""

RUNTIME_NAME = "podkeep"
"""What the runtime answers as its name; the IDs of containers begin with it in a pod's status."""
