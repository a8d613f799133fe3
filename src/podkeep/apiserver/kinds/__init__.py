"""The kinds: each one's defaults, validation, columns. Pure."""
