"""User IDs of pods: ranges of the node and blocks of them (KEP-127).

``blocks.allocate`` and ``blocks.release``; ``subordinate_ids`` reads what users of the machine have.
"""
