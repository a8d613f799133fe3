"""What every other package needs, and what knows of none: errors, identities, undo, spawning, files, configuration.

Offers: the error classes with their hints, ``Digest`` and the other identities, ``Undo``, ``atomicfile``, ``spawn``,
``Config``. No system call beyond the standard library's, no gRPC.
"""
