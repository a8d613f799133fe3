"""The image worker: a process for each pull, load, save and verification, with no power over the store.

Its requests arrive and its events leave as JSON lines (``channel``). Nothing of the daemon imports it; the store starts
it (``images.store.workers``) and believes nothing that it did not check.
"""
