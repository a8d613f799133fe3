"""Publishing an artifact: packing files into blobs, and pushing blobs, manifest and referrers. For the command line."""
