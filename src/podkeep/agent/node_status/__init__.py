"""The Node object: registration, status, conditions, lease.

``reporter.NodeReporter`` keeps the object up to date, ``lease.NodeLease`` its lease.
"""
