"""The network by netlink and /proc: links, addresses, routes, netfilter, traffic, TCP connections.

``nlmsg`` has the messages, the others what is asked with them. Used by ``runtime``, and by ``images`` for routes.
"""
