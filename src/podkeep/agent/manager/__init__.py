"""All pods of the node: sources, workers, status to the API, mirror pods, orphans."""
