"""The API server's process: what it is put together of, its sockets, its start and its end, backups."""
