"""Names of images, and credentials for their registries: what runtime, agent and command line have in common."""
