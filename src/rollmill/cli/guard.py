"""How a command ends: its exit code, and one line where the caller is wrong."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable

from rollmill.errors import CallerError, RunError, ServiceError

SOME_FAILED = 1
WRONG_CALLER = 2
INTERRUPTED = 130


def guarded(command: Callable[[], int]) -> int:
    """Run a command: what the caller did wrong is one line and exit code 2, never a traceback."""
    _open_standard_streams()
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    try:
        return command()
    except CallerError as error:
        print(f"rollmill: {error}", file=sys.stderr)
        return WRONG_CALLER
    except ServiceError as error:
        print(f"rollmill: {error}", file=sys.stderr)
        return SOME_FAILED
    except RunError as error:
        print(f"rollmill: {error}; what was recorded before is safe", file=sys.stderr)
        return SOME_FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone, `head` for example. Python would complain once more while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _open_standard_streams() -> None:
    """A closed stream's number would go to the next file or socket that is opened."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    # What was closed when Python started has no object either.
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")
