from __future__ import annotations

import stat
from pathlib import Path

import pytest

from dptune.capture import topology


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("#!/bin/sh\n[ \"$*\" = 'topo -m' ] && echo '  GPU0 GPU1' && echo 'GPU0 X NV18'\n", "GPU0 GPU1\nGPU0 X NV18"),
        ("#!/bin/sh\necho 'no driver'\nexit 9\n", None),
        ("#!/no/such/interpreter\n", None),
        (None, None),
    ],
    ids=["gpus", "no-driver", "broken", "no-program"],
)
def test_how_gpus_are_connected_is_what_the_driver_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None, expected: str | None
) -> None:
    if program is not None:
        path = tmp_path / "nvidia-smi"
        path.write_text(program)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert topology.read() == expected
