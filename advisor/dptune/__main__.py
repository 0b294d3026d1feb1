"""`python -m dptune` is `dptune`."""

from __future__ import annotations

import sys

from dptune.cli import main

if __name__ == "__main__":
    sys.exit(main())
