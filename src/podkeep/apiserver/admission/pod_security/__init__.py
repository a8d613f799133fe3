"""Pod Security admission: what a namespace's labels ask of its pods (pod-security-admission 1.36)."""
