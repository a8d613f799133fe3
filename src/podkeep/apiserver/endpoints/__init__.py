"""A request's way through the server: who asks, whether they may, and who answers; the audit log, metrics."""
