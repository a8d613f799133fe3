"""A request and its answer as values: target, query, options, bodies, content types, and limits.

``call.Call`` is one request while it is answered. Used by whatever answers requests.
"""
