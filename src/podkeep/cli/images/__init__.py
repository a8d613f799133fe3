"""Verbs that act on images: a module for each verb of ``podkeep image``, and ``artifact``.

Offers ``progress`` (what a pull, load or save does at the moment) to ``podkeep run``.
"""
