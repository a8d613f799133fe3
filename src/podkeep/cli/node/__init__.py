"""``podkeep node``: runtime, API and agent under one supervisor, and the systemd unit of it."""
