"""``python -m support.keyed``: podkeep, as ``python -m podkeep`` is, with a key in its session keyring.

``PODKEEP_KEY`` is the key's description.
"""

from __future__ import annotations

import os

from podkeep.cli.main import main
from support import keys

KEY = "PODKEEP_KEY"

if __name__ == "__main__":
    keys.join_session()
    keys.session_key(os.environ[KEY].encode(), b"secret")
    main()
