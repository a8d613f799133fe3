"""The type ``rdt``: goresctrl's file, cache and bandwidth shares, resctrl groups, and their tasks."""
