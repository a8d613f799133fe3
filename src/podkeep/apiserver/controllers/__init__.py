"""What the API itself keeps true: pure functions from objects to writes, and the runner that carries them out."""
