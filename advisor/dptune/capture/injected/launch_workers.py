"""torchrun, with the exit status of the worker that failed first.

torchrun itself ends with 1 whatever its worker ended with. Run as a script, with torchrun's own arguments.
"""

from __future__ import annotations

import sys

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError


def main() -> int:
    """Run the workers; their first failure's status (128 + n for signal n), else 0."""
    try:
        run.main(sys.argv[1:])
    except ChildFailedError as error:
        status = error.get_first_failure()[1].exitcode
        return 128 - status if status < 0 else status
    return 0


if __name__ == "__main__":
    sys.exit(main())
