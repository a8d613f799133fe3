"""``python -m podkeep``: the command line."""

from podkeep.cli.main import main

main()
