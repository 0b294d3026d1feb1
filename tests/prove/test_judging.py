"""What trials say: which times count, what failed, and what a proof keeps."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dptune.errors import RunError
from dptune.proof import Side, Trial
from dptune.prove import folder as folders
from dptune.prove import judging
from dptune.prove.task import Task, numerics_of


def task(**settings):
    return Task(
        a=Side(name="as it is"),
        b=Side(name="other", settings=settings),
        launches={},
        settings={"A": {}, "B": settings},
        sources={"A": None, "B": None},
    )


def trial(side, ms, batch=None, status="ran", **more):
    ran = status == "ran"
    why = {} if ran else {"step_ns": "it failed", "fast_step_ns": "it failed"}
    return Trial(
        number=1,
        side=side,
        status=status,
        began="2026-01-01T00:00:00+00:00",
        seconds=1.0,
        step_ns=round(ms * 1e6) if ran else None,
        fast_step_ns=round(0.9 * ms * 1e6) if ran else None,
        samples_per_step=batch,
        missing={**why, **({} if batch else {"samples_per_step": "not seen"})},
        **more,
    )


def both(a, b):
    return [one for pair in zip(a, b, strict=True) for one in pair]


def test_a_larger_batch_is_judged_by_the_sample_also_where_one_trial_did_not_see_it():
    a = [trial("A", 10 + at / 10, 32) for at in range(6)]
    b = [trial("B", 18 + at / 10, 64) for at in range(5)] + [trial("B", 18.5)]
    proof = judging.proof(task(), both(a, b), "decided")
    assert (proof.objective, proof.outcome, proof.decided_by) == ("time per sample", "better", "mean")
    assert proof.ratio == pytest.approx(18.25 / 10.25 / 2, rel=0.02)
    assert proof.b_step_ns == pytest.approx(18.25e6)
    assert proof.b_ns == pytest.approx(18.25e6 / 64)


def test_the_batch_of_one_side_alone_compares_nothing():
    a = [trial("A", 10 + at / 10, 32) for at in range(6)]
    b = [trial("B", 18 + at / 10) for at in range(6)]
    assert judging.objective(both(a, b)) is None
    assert judging.looks(both(a, b)) == []
    proof = judging.proof(task(), both(a, b), "not comparable")
    assert (proof.outcome, proof.known("ratio")) == ("inconclusive", None)
    assert proof.reason == proof.missing["ratio"] == judging.ONE_BATCH


def test_failures_stand_beside_the_verdict():
    a = [trial("A", 10 + at / 10) for at in range(6)]
    b = [trial("B", 8 + at / 10) for at in range(6)]
    failed = [
        trial("B", 0, status="out of memory"),
        trial("B", 0, status="out of memory"),
        trial("B", 0, status="hung"),
    ]
    proof = judging.proof(task(), [*both(a, b), *failed], "decided")
    assert proof.outcome == "better"
    assert proof.reason.endswith("; 2 of 9 trials of B came to: out of memory; 1 of 9 trials of B came to: hung")


def test_a_loss_that_is_no_number_is_kept(tmp_path):
    proof = judging.proof(task(), [trial("A", 10, losses=[1.0, math.nan, math.inf])], "interrupted")
    folders.write(tmp_path, proof)
    again = folders.read(tmp_path / folders.PROOF)
    assert again.trials[0].losses[0] == 1.0
    assert math.isnan(again.trials[0].losses[1])
    assert math.isinf(again.trials[0].losses[2])


@pytest.mark.parametrize("content", ["", "[]", "{", '{"trials": 3}', "\0", "[" * 100_000])
def test_a_proof_that_cannot_be_read_is_one_sentence(tmp_path, content):
    (tmp_path / folders.PROOF).write_text(content)
    with pytest.raises(RunError, match="holds no proof that can be read"):
        folders.read(tmp_path / folders.PROOF)


def test_a_step_of_no_time_or_a_pipe_is_no_proof(tmp_path):
    folders.write(tmp_path, judging.proof(task(), [trial("A", 10)], "interrupted"))
    told = json.loads((tmp_path / folders.PROOF).read_text())
    told["trials"][0]["step_ns"] = 0
    (tmp_path / folders.PROOF).write_text(json.dumps(told))
    with pytest.raises(RunError, match="holds no proof"):
        folders.read(tmp_path / folders.PROOF)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RunError, match="not a regular file"):
        folders.read(tmp_path / "pipe")


def test_what_lay_there_is_kept(tmp_path):
    folder = tmp_path / "verified" / "change"
    for content in ("one", "two"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "file").write_text(content)
        folders.set_aside(folder)
    assert list(folder.iterdir()) == []
    kept = [path.read_text() for path in sorted((tmp_path / "verified" / folders.EARLIER).glob("*/file"))]
    assert kept == ["one", "two"]


def test_one_at_a_time_and_what_a_killed_one_left_is_ended(tmp_path: Path):
    folder = tmp_path / "verified" / "change"
    (folder / "scratch").mkdir(parents=True)
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], cwd=folder / "scratch")
    with folders.alone(folder):
        assert left.wait(timeout=10) != 0
        with pytest.raises(RunError, match=f"process {os.getpid()}"), folders.alone(tmp_path / "verified" / "other"):
            pass
    with folders.alone(tmp_path / "verified" / "other"):
        pass


def test_what_a_change_may_do_to_the_losses():
    assert numerics_of(["ddp.bucket_cap_mb"]) == "same"
    assert numerics_of(["ddp.bucket_cap_mb", "ddp.comm_hook"]) == "changes"
    assert numerics_of(["ddp.comm_hook", "loader.num_workers"]) == "other draws"
