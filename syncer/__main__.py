"""``python -m syncer`` is the command ``syncer``."""

import gc
import sys


def main() -> None:
    """Entry point: Ctrl-C shows no traceback, also while the commands are loaded or an error is shown."""
    gc.disable()  # what is loaded is kept: to look for garbage in it takes a third of the time
    try:
        from syncer.cli import app  # noqa: PLC0415 - see above

        gc.freeze()
        gc.enable()
        app.main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
