"""The volumes of a pod on this node: made, filled, owned, mounted, removed."""
