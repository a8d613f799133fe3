"""QoS-class resources (KEP-3008): types as plugins behind one interface (``model``), in one ``registry``.

Used by ``lifecycle`` and ``rpc``; ``classes check`` and ``doctor`` of the command line use what reads the files.
"""
