"""The command line: one file for each command."""

from __future__ import annotations

import sys


def start() -> None:
    """Run the command of this process; an interrupt while it is still being loaded ends it like any other."""
    try:
        from coterie.cli.main import main
    except KeyboardInterrupt:
        print("Interrupted: nothing was written.", file=sys.stderr)
        sys.exit(130)
    main()
