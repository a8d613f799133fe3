"""What is generated of ``api.proto``, and podkeep's own protocol beside it. ``make proto`` writes it."""
