"""The command ``simdev``, also ``python -m simdev``: light, so that Ctrl-C and SIGTERM end quietly
from here on, while the verbs are still being imported.
"""

from __future__ import annotations

import atexit
import sys

from .ground.ending import TERMINATED, TerminatedError, leave, terminable


def main() -> int:
    """Run the command line; returns the exit code."""
    try:
        terminable()
        from .commands import main as command

        code = command()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130  # ``commands.options.INTERRUPTED``, which may not be there yet
    except TerminatedError:
        code = TERMINATED
    if code == TERMINATED:
        atexit._run_exitfuncs()  # children and temporary files of libraries go
        leave()
    return code


if __name__ == "__main__":
    sys.exit(main())
