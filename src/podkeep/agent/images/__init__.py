"""Images of containers and volumes: pulled by policy, with back-off and credentials."""
