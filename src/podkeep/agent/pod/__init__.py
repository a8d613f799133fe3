"""One pod: the worker, what it observes, decides and does, and the status that it reports."""
