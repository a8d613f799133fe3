"""Images: pulled, kept, mounted, published, removed.

``store`` is what the runtime talks to; ``worker`` is the confined process that talks to registries and reads archives.
"""
