"""Seeds the generators of a trial, before the script can: a script that sets its own seeds has these."""

from __future__ import annotations

import os
import random
from types import ModuleType

import torch

from dptune.capture.injected.imports import imports

VARIABLE = "DPTUNE_TRIAL"
SEED = 20261


def seed() -> None:
    """Let repeats of a trial see the same data; nothing outside trials."""
    if not os.environ.get(VARIABLE):
        return
    random.seed(SEED)
    torch.manual_seed(SEED)
    imports.after("numpy.random", _numpy)


def _numpy(module: ModuleType) -> None:
    module.seed(SEED)
