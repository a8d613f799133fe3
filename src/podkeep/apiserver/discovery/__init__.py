"""What clients learn of the server itself: what it serves (discovery, OpenAPI), health, version, its tokens' keys.

``catalog.Catalog`` is the one table of paths that are served; ``groups`` and ``openapi`` tell it to clients, and
``endpoints`` routes by it.
"""
