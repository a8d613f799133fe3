"""The RPCs of CRI: a module for each noun, which converts a request, calls what does it, and converts the answer.

Used by ``daemon``. Protobuf of the runtime stops here (``convert``).
"""
