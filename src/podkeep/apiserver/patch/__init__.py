"""Patches: JSON patch, merge patch, strategic merge patch, server-side apply. Pure: JSON values in, JSON values out.

What is given is never changed. An error is a :class:`~podkeep.apiserver.patch.errors.PatchError`.
"""
