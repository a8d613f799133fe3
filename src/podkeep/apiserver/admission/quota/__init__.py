"""Quotas: how much of one an object uses, what is used of each, and the plugins that hold writes against them.

``usage`` is pure; ``ledger.QuotaLedger`` keeps the sums, which the controller of quotas' statuses reads, too.
"""
