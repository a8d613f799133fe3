"""Namespaces: the helper process that makes them, its client, ID mappings of user namespaces.

``namespaces`` is the way in; ``nshelper`` is what the helper runs. Used by ``runtime`` and ``mountns``.
"""
