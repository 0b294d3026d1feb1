"""A run folder without a step says how its recording ended."""

import pytest

from dptune.errors import RunError
from dptune.runfile import json_files
from dptune.runfile.record import Ending, RunRecord
from dptune.trace import load


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        (
            Ending("timed-out", None, "no optimizer step for 8 s"),
            ": the script ended (timed-out), no optimizer step for 8 s",
        ),
        (Ending("failed", 3), ": the script ended (failed) with exit status 3"),
        (Ending("recording"), ""),
    ],
)
def test_how_a_recording_without_steps_ended(tmp_path, ending, said):
    json_files.write(tmp_path / "run.json", RunRecord(ending=ending))
    with pytest.raises(RunError) as raised:
        load([tmp_path])
    assert raised.value.message == f"{tmp_path} holds neither traces nor facts{said}"
