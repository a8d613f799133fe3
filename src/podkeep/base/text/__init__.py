"""Values as texts: quantities, durations, times, addresses; and texts of others, fit to be shown. Pure."""
