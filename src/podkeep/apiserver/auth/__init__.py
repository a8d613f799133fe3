"""Who asks, and whether they may: authenticators, and authorizers that are pure over a lister."""
