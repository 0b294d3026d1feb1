"""Traced steps of a data-parallel module that communicate nothing: lost events, or passes under no_sync."""

import pytest

from dptune.measure import measure
from dptune.runfile import json_files
from dptune.runfile.facts import DeviceFacts, Facts
from dptune.runfile.record import RunRecord
from dptune.runfile.window import Window
from dptune.trace import load

from .handmade import US, annotation, operator, step, write


def steps(number):
    begin = 1000 * number
    return [
        step(number, begin, begin + 1000),
        annotation("DistributedDataParallel.forward", begin, begin + 400),
        operator("aten::mm", begin + 10, begin + 390),
        annotation("Optimizer.step#SGD.step", begin + 800, begin + 900),
        operator("aten::add_", begin + 810, begin + 890),
    ]


@pytest.mark.parametrize(
    ("unsynced", "judged"),
    [
        ([1, 1, 1], True),  # nothing was to be communicated
        ([1, 0, 1], False),  # one pass reduced gradients, and the trace shows none of it
        ([], False),  # of an older recording
    ],
)
def test_communication_is_expected_where_gradients_were_reduced(tmp_path, unsynced, judged):
    events = [event for number in range(3) for event in steps(number)]
    for rank in range(2):
        told = {"distributedInfo": {"backend": "gloo", "rank": rank, "world_size": 2}}
        write(tmp_path / f"rank-{rank:05d}.trace.json.gz", events, **told)
        window = Window("light", 0, [1000 * US] * 3, backwards=[1] * 3, unsynced_backwards=unsynced, complete=True)
        window.trace = f"rank-{rank:05d}.trace.json.gz"
        own = Facts(rank, world_size=2, device=DeviceFacts("cpu"), windows=[window])
        json_files.write(tmp_path / f"rank-{rank:05d}.facts.json", own)
    json_files.write(tmp_path / "run.json", RunRecord(world_size=2))
    measured = measure(load([tmp_path]))
    assert (measured.known("account") is not None) == judged
    losses = {loss.code for rank in measured.ranks for loss in rank.losses}
    assert losses == (set() if judged else {"communication-missing"})
