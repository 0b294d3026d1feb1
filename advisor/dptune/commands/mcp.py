"""Serve dptune to coding agents over the Model Context Protocol.

The server reads requests from stdin and answers on stdout (stdio transport); it needs the extra `mcp`. Its tools
report, explain, what_if, compare and check read recordings and traces. verify and tune_start run the training script:
without --allow-run they answer with the command that they would run. Answers are at most 20,000 characters long.

examples:
  dptune mcp
  dptune mcp --allow-run
"""

from __future__ import annotations

import argparse

from dptune.errors import UsageError


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--allow-run", action="store_true", help="let verify and tune_start run training scripts")


def run(args: argparse.Namespace) -> int:
    """Serve until stdin ends."""
    try:
        from dptune.agents.server import serve
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("mcp", "mcp_types"):
            raise
        raise UsageError("the mcp package (2 or newer) is not installed", "pip install 'dptune[mcp]'") from None
    serve(args.allow_run)
    return 0
