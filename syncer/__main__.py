"""``python -m syncer`` is the command ``syncer``."""

import gc
import sys


def main() -> None:
    """Entry point: loading the commands takes a while, in which Ctrl-C is to end it without a traceback."""
    gc.disable()  # what is loaded is kept: to look for garbage in it takes a third of the time
    try:
        from syncer.cli import app  # noqa: PLC0415 - see above
    except KeyboardInterrupt:
        sys.exit(130)
    gc.freeze()
    gc.enable()
    app.main()


if __name__ == "__main__":
    main()
