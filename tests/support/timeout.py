"""How long tests wait for what must happen: a limit against hanging, and no measure of speed.

Machines are busy: with ten times too much to do, pods that take a second take half a minute.
"""

from __future__ import annotations

TIMEOUT_S = 240.0
"""Below ``faulthandler_timeout``, so that a test fails with what it says itself."""
