"""The AppArmor profile that RuntimeDefault means, as a file of the package, and loading it."""
