"""The interface of Kubernetes 1.36 as one table: kinds, fields, types, list types, keys. Pure.

``table`` reads it, ``types`` are what it is made of, ``decode`` holds an object against it.
"""
