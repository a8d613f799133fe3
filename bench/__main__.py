"""``python -m bench``: the comparison with containerd."""

from __future__ import annotations

from bench.compare import main

raise SystemExit(main())
