"""Running nft: commands, and the life of a table."""

from __future__ import annotations

from podkeep.base import spawn


def run(commands: str) -> None:
    """Carry out commands, all or none.

    :raises CommandFailed: if nft refuses.
    :raises NotFound: if there is no nft.
    """
    spawn.run(["nft", "-f", "-"], stdin=commands.encode()).check()


def has_table(family: str, table: str) -> bool:
    return spawn.run(["nft", "-t", "list", "table", family, table]).returncode == 0


def remove_table(family: str, table: str) -> None:
    """Remove a table; a missing one is no error.

    :raises CommandFailed: if nft refuses; likewise NotFound.
    """
    # Added first, because nft refuses to delete what is not there; both are one transaction.
    run(f"add table {family} {table}\ndelete table {family} {table}\n")
