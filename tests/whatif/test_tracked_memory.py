"""Peak memory by torch's trackers under fake tensors, beside the model that is made of a recording.

The recorded run is of `wide layers` of benchmarks/memory_train.py: 8 blocks of 768 by 768, AdamW, two ranks over gloo.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from dptune.capture import tracked_memory
from dptune.capture.injected import tracked_memory as injected
from dptune.capture.tracked_memory import TrackedMemory, TrackedMemoryRequest, check, track
from dptune.commands.shared.reading import measured_of
from dptune.errors import UsageError
from dptune.measured import Missing
from dptune.predicted import NOT_TRACKED
from dptune.runfile.communication import FsdpFacts
from dptune.whatif.memory.predicting import predict_memory
from dptune.whatif.memory.tracking import requested, tracked

from .. import forks, in_process  # noqa: TID252 - tests are no installed package

torch = pytest.importorskip("torch", reason="the trackers are torch's")

run = subprocess.run
WITHOUT_COMPILER = Path(__file__).parents[1] / "without_compiler"  # which trackers need not
RUN = Path(__file__).parent / "runs" / "wide-layers-ddp"
TRAIN = Path(__file__).parents[1] / "benchmarks" / "memory_train.py"
COUNTED = Path(__file__).parents[1] / "benchmarks" / "results" / "memory.json"
MODEL = f"{TRAIN}:wide_layers"
BLOCK = 4 * (768 * 768 + 768)
WHOLE = 8 * BLOCK + 4 * (64 * 768 + 768) + 4 * (768 * 10 + 10)


@pytest.fixture(scope="module")
def recorded():
    run, measured = measured_of([str(RUN)], 1, cached=False, links=None)
    return measured, list(run.facts.values())


@pytest.fixture(scope="module")
def forked():
    """Trackers run in forks of a process that has torch loaded."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(WITHOUT_COMPILER))
        patched.setattr(
            tracked_memory.subprocess, "run", lambda words, **_: forks.run(*words[1:], cwd=Path.cwd(), env=os.environ)
        )
        yield


def here(words, **how):
    """The script in this process, in which other tests import the compiler, which takes as long as all else."""
    if words[1] != str(tracked_memory._SCRIPT):
        return run(words, **how)
    with mock.patch.object(sys, "argv", words[1:]), mock.patch.object(sys, "path", [*sys.path]):
        injected.main()
    return subprocess.CompletedProcess(words, 0, "", "")


def answered(recorded, *sets):
    """By changes."""
    with mock.patch.object(tracked_memory.subprocess, "run", here):
        found = tracked([predict_memory(*recorded, changes) for changes in sets], MODEL, *recorded)
    return {tuple(prediction.changes): prediction for prediction in found}


@pytest.fixture(scope="module")
def answers(recorded):
    return answered(recorded, {"wrapper": "fsdp"}, {"optimizer.name": "sgd"})


def test_a_replicated_model_by_hand(answers):
    """Parameters, gradients, buckets and twice as much of AdamW's state, a count of steps for each of 20 tensors; its
    update of a layer holds two tensors of 768 by 768, and one of the bias before. The outputs of the batch are kept.
    """
    now = answers["wrapper",].tracked_now_bytes
    assert now == 5 * WHOLE + 20 * 4 + 2 * 4 * 768 * 768 + 4 * 768 + 4 * 256 * 10


@pytest.mark.parametrize(
    ("changes", "settings"),
    [
        ({"wrapper": "fsdp"}, "wrapper=fsdp"),
        pytest.param({"loader.batch_size": 1024}, "loader.batch_size=1024", marks=pytest.mark.thorough),
    ],
)
def test_both_sources_and_the_count_agree(answers, recorded, changes, settings):
    """The recording predicts, torch's tracker counts tensors of the model alone; a third counted every allocation.

    The script holds 1,024 samples of 64 floats and a label each beside the model.
    """
    rows = json.loads(COUNTED.read_text())["comparisons"]
    counted = {row["settings"]: row["counted_bytes"] for row in rows if row["base"] == "wide layers, DDP"}
    data = 1024 * (64 * 4 + 8)
    prediction = answers.get((*changes,)) or answered(recorded, changes)[(*changes,)]
    assert prediction.low_bytes <= prediction.tracked_bytes + data <= prediction.high_bytes
    assert prediction.tracked_bytes + data == pytest.approx(counted[settings], rel=0.03)  # gloo frees in a thread
    assert prediction.tracked_now_bytes + data == pytest.approx(prediction.now_bytes, rel=0.005)


@pytest.mark.thorough
def test_merged_units_hold_more(answers, recorded):
    """Two units of four blocks each: against one of a block, three blocks more in each of several buffers."""
    rows = json.loads(COUNTED.read_text())["comparisons"]
    (counted,) = (
        row["counted_bytes"] for row in rows if (row["base"], row["settings"]) == ("wide layers, FSDP", "fsdp.units=3")
    )
    merged = answered(recorded, {"wrapper": "fsdp", "fsdp.units": 2})["wrapper", "fsdp.units"].tracked_bytes
    assert merged == pytest.approx(counted, rel=0.03)
    assert merged - answers["wrapper",].tracked_bytes > 2 * 3 * BLOCK


def test_what_the_trackers_cannot_show_is_named(answers, recorded):
    assert answers["optimizer.name",].missing["tracked_bytes"] == "torch's trackers cannot show optimizer.name"
    assert predict_memory(*recorded, {"wrapper": "fsdp"}).missing["tracked_bytes"] == NOT_TRACKED
    assert predict_memory(*recorded, {"link.alpha_us": 1.0}).missing["tracked_bytes"] == NOT_TRACKED


def test_what_is_asked(recorded):
    measured, facts = recorded
    plain = requested("f", measured, facts, {})
    assert (plain.sharded, plain.mesh, plain.batch, plain.block, plain.buckets) == (False, (2,), 256, "Wide", True)
    changes = {
        "fsdp.units": 4,
        "fsdp.reshard_after_forward": 2,
        "fsdp.reduce_dtype": "bf16",
        "wrapper": "fsdp",
        "world_size": 64,
        "batch.times": 0.5,
        "memory.checkpointing": True,
        "link.alpha_us": 1.0,
    }
    asked = requested("f", measured, facts, changes)
    assert (asked.sharded, asked.mesh, asked.batch, asked.units, asked.reshard) == (True, (64,), 128, 4, 2)
    assert (asked.reduce_dtype, asked.param_dtype, asked.checkpointing, asked.buckets) == (
        "bfloat16",
        None,
        True,
        False,
    )
    four = [replace(facts[0], rank=rank, host=host) for rank, host in enumerate("aabb")]
    assert requested("f", measured, four, {"wrapper": "fsdp", "world_size": 4, "fsdp.within_hosts": True}).mesh == (
        2,
        2,
    )


@pytest.mark.parametrize(
    ("fsdp", "settings", "why"),
    [
        ([], {"fsdp.units": 2}, "cannot show fsdp.units"),
        ([], {"wrapper": "fsdp", "fsdp.within_hosts": True}, "HSDP needs several hosts"),
        ([FsdpFacts(1, mesh=[2])], {}, "not FullyShardedDataParallel"),
        ([FsdpFacts(2, mesh=[2], names=["0"], offload="CPUOffloadPolicy")], {}, "offloaded shards"),
        ([FsdpFacts(2, mesh=[2, 2], names=["0"])], {"world_size": 8}, "two-dimensional mesh"),
        ([FsdpFacts(2, mesh=[2], names=["0"])], {"fsdp.offload_policy": True}, "cannot show fsdp.offload_policy"),
    ],
)
def test_reasons(recorded, fsdp, settings, why):
    measured, facts = recorded
    own = [replace(rank_facts, fsdp=fsdp, ddp=[]) for rank_facts in facts]
    with pytest.raises(Missing, match=why):
        requested("f", measured, own, settings)


FUNCTIONS = """\
import torch
from torch import nn

def build(batch):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    return model, torch.optim.SGD, lambda model: model(torch.ones(batch, 4)).sum()

def reading(batch):
    model, optimizer, loss = build(batch)
    return model, optimizer, lambda model: loss(model) * torch.ones(()).item()

def twice(batch):
    model, optimizer, loss = build(batch)
    return model, optimizer, lambda model: loss(model) + loss(model)

def raising(batch):
    raise ValueError(f"no data\\nfor {batch}")

def nothing(batch):
    return None
"""


@pytest.fixture
def answer(tmp_path, monkeypatch):
    """What the script in the user's process answers, here in this one."""

    def of(name, path="model.py", **more):
        (tmp_path / "model.py").write_text(FUNCTIONS)
        (tmp_path / "broken.py").write_text("import no_such_module\n")
        known = {"batch": 2, "mesh": (2,), "sharded": False, **more}
        request = vars(TrackedMemoryRequest(f"{tmp_path / path}:{name}", **known))
        asked, found = tmp_path / "asked.json", tmp_path / "found.json"
        asked.write_text(json.dumps([request]))
        monkeypatch.setattr(sys, "argv", ["tracked_memory.py", str(asked), str(found)])
        monkeypatch.setattr(sys, "path", [*sys.path])
        injected.main()
        return json.loads(found.read_text())[0]

    return of


def test_two_layers_by_hand(answer):
    """Parameters and gradients of 2 * 20 floats; as the backward pass starts, no gradient yet: the batch, of 2 by 4, is
    saved, and both outputs. SGD without momentum keeps nothing, so gradients are the most.
    """
    found = answer("build")
    assert found["parts"]["Parameter"] == 2 * 20 * 4
    assert found["parts"]["Gradient"] <= 2 * 20 * 4 < found["peak_bytes"] < 3 * 2 * 20 * 4
    assert answer("build", buckets=True)["peak_bytes"] == found["peak_bytes"] + 2 * 20 * 4


@pytest.mark.parametrize(
    ("name", "more", "why"),
    [
        ("reading", {}, "the model reads the value of a tensor"),
        ("twice", {}, "one forward pass"),
        ("raising", {}, "ValueError: no data for 2"),
        ("nothing", {}, "does not return a model"),
        ("missing", {}, "has no function missing"),
        ("build", {"path": "broken.py"}, "No module named 'no_such_module'"),
        ("build", {"sharded": True, "block": "Block"}, "no list of equal blocks"),
        ("build", {"sharded": True, "paths": ("0", "9")}, "no module 9"),
        ("build", {"sharded": True, "block": "Linear", "units": 3}, "2 blocks"),
    ],
)
def test_what_fails_is_one_sentence(answer, name, more, why):
    found = answer(name, **more)
    assert why in found["why"]
    assert "\n" not in found["why"]


@pytest.mark.parametrize("function", ["train.py", "train.py:", ":build", "no/such/file.py:build", "x.py:not a name"])
def test_a_function_that_is_not_there(function):
    with pytest.raises(UsageError, match="--model"):
        check(function)


def test_a_process_that_dies(tmp_path, forked):
    (tmp_path / "model.py").write_text("import os\nos._exit(3)\n")
    (found,) = track([TrackedMemoryRequest(f"{tmp_path / 'model.py'}:build", 2, (2,), sharded=False)])
    assert "exited with status 3" in found.why


def test_the_command(monkeypatch):
    """Without a process: what is asked, and where the answers are shown."""
    asked = []

    def answer(requests):
        asked.extend(requests)
        return [TrackedMemory(peak_bytes=2**20), TrackedMemory(why="no such module")]

    monkeypatch.setattr("dptune.whatif.memory.tracking.track", answer)
    words = ("whatif", str(RUN), "--no-cache", "--set", "wrapper=fsdp", "--model", MODEL)
    done = in_process.dptune(*words, "--format", "json")
    (memory,) = json.loads(done.stdout)["memory"]
    assert (memory["tracked_now_bytes"], memory["missing"]) == (2**20, {"tracked_bytes": "no such module"})
    assert [request.sharded for request in asked] == [False, True]
    assert asked[0].function == MODEL
    assert "wrapper=fsdp: unknown: no such module" in in_process.dptune(*words, COLUMNS="100").stdout


def test_the_command_needs_changes():
    done = in_process.dptune("whatif", str(RUN), "--model", MODEL)
    assert (done.returncode, "--model needs changes" in done.stderr) == (2, True)


def test_the_page(recorded, answers):
    from dptune.predicted import WhatIf
    from dptune.present.sections.whatif_memory import memory

    page = WhatIf.only("no model", dptune="0", memory=[*answers.values()])
    lines = ["".join(span.text for span in line) for line in memory(page, 100)]
    assert any("Tracker" in line and "wrapper=fsdp: 51.3 MiB (now 95.7 MiB)" in line for line in lines)
    assert any("optimizer.name=sgd: unknown: torch's trackers cannot show" in line for line in lines)


@pytest.mark.thorough
def test_a_process_of_its_own_finds_the_same(answers, recorded):
    (found,) = tracked([predict_memory(*recorded, {"wrapper": "fsdp"})], MODEL, *recorded)
    assert found == answers["wrapper",]
