"""``podkeep`` and ``python -m podkeep``: the command line."""

from podkeep.cli.core import garbage


def run() -> None:
    # Before most of it is imported.
    garbage.rarely()
    from podkeep.cli.main import main

    main()


if __name__ == "__main__":
    run()
