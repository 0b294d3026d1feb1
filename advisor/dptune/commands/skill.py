"""Print a skill file that shows coding agents how to use dptune.

examples:
  dptune skill > SKILL.md
"""

from __future__ import annotations

import argparse
import sys
from importlib import resources


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options: there are none."""


def run(args: argparse.Namespace) -> int:
    """Print it."""
    sys.stdout.write(resources.files("dptune.agents").joinpath("skill.md").read_text(encoding="utf-8"))
    return 0
