"""The formats of images and their limits: references, manifests, configurations, media types, texts. Pure.

Used by every other package of images; what is decoded here was written by somebody who is not trusted.
"""
