"""A registry: names to endpoints, connections, logging in, manifests, blobs, referrers, credentials.

Used by the worker and by ``podkeep artifact push``; the store uses ``endpoints`` and ``credentials`` alone.
"""
