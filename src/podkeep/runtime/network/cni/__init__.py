"""CNI: configuration lists, plugins, and the results that they print."""
