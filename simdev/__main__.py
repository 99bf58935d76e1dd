"""The command ``simdev``, also ``python -m simdev``: light, so that Ctrl-C ends quietly from here
on, while the verbs are still being imported.
"""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line; returns the exit code."""
    try:
        from .commands import main as command

        return command()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130  # ``cli.options.INTERRUPTED``, which may not be there yet


if __name__ == "__main__":
    sys.exit(main())
