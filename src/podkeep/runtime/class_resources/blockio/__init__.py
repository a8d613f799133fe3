"""The type ``blockio``: goresctrl's file, devices, throttling and weights in cgroups."""
