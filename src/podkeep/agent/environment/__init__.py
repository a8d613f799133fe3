"""The environment of containers: ``environment`` in ``variables``, env files, service links, fields of resources."""
