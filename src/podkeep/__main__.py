"""``podkeep`` and ``python -m podkeep``: the command line."""

_INTERRUPTED = 130
"""As ``cli.core.output.EXIT_INTERRUPTED``, which is not there yet."""


def run() -> None:
    try:
        from podkeep.cli.core import garbage

        # Before most of it is imported.
        garbage.rarely()
        from podkeep.cli.main import main
    except KeyboardInterrupt:  # it takes a while on a busy machine; from then on the command line looks to it
        raise SystemExit(_INTERRUPTED) from None
    main()


if __name__ == "__main__":
    run()
