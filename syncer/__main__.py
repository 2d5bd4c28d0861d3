"""``python -m syncer`` is the command ``syncer``."""

import gc
import sys


def main() -> None:
    """Entry point: Ctrl-C shows no traceback, also while the commands are loaded or an error is shown."""
    # Until the command is loaded, too: what is loaded is kept, and to look for garbage in it takes a third of the time.
    gc.disable()
    try:
        from syncer.cli import app  # noqa: PLC0415 - see above

        app.main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
