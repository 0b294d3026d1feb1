"""What a recorded command ran, in a word."""

from __future__ import annotations

import pytest

from dptune.present.script_name import script_name


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python train.py --epochs 2", "train.py"),
        ("torchrun --nproc-per-node 2 -m pack.train", "pack.train"),
        ("torchrun '/data/my runs/train all.py' -m", "train all.py"),
        ("python train.py --name it's", "train.py"),  # changed since: a quote does not end
        ("'", "'"),
        ("", ""),
    ],
)
def test_a_command_is_named_by_its_script(command: str, name: str) -> None:
    assert script_name(command) == name
