"""Certificates that a cluster signs for the node: asked for, kept, and renewed before they expire.

``manager.CertificateManager`` does so for one certificate; ``bootstrap`` gets the first with a bootstrap token.
"""
