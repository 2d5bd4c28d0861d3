"""``python -m syncer`` is the command ``syncer``."""

import sys


def main() -> None:
    """Entry point: loading the commands takes a while, in which somebody may have thought better of it."""
    try:
        from syncer.cli import app  # noqa: PLC0415 - see above
    except KeyboardInterrupt:
        sys.exit(130)
    app.main()


if __name__ == "__main__":
    main()
