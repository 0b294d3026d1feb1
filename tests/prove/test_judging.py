"""What trials say: which times count, what failed, and what a proof keeps."""

import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dptune.advise.sentence import sentence
from dptune.errors import RunError
from dptune.present.sections.proof import line_of, page
from dptune.prove import engine, judging
from dptune.prove import folder as folders
from dptune.prove.result import Side, Trial, in_place, pairs
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
    assert proof.reason.endswith("; 2 of 9 B trials failed: out of memory; 1 of 9 B trials failed: hung")


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
    with pytest.raises(RunError, match="has no readable result"):
        folders.read(tmp_path / folders.PROOF)


def test_a_step_of_no_time_or_a_pipe_is_no_proof(tmp_path):
    folders.write(tmp_path, judging.proof(task(), [trial("A", 10)], "interrupted"))
    told = json.loads((tmp_path / folders.PROOF).read_text())
    told["trials"][0]["step_ns"] = 0
    (tmp_path / folders.PROOF).write_text(json.dumps(told))
    with pytest.raises(RunError, match="has no readable result"):
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


def sleeping(cwd: Path, **more: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(900)"], cwd=cwd, env={**os.environ, **more})


def test_one_at_a_time_and_what_a_killed_one_left_is_ended(tmp_path: Path):
    """Wherever it works, and whichever change it was of; but not what only happens to lie there, such as a shell."""
    folder = tmp_path / "verified" / "change"
    (folder / "scratch").mkdir(parents=True)
    left = sleeping(tmp_path, **folders.mark(tmp_path / "verified" / "another"))
    of_another_run = sleeping(tmp_path, **folders.mark(tmp_path / "other" / "verified" / "change"))
    the_users = sleeping(folder / "scratch")
    try:
        with folders.alone(folder):
            assert left.wait(timeout=600) != 0
            with pytest.raises(RunError, match=f"process {os.getpid()}"), folders.alone(tmp_path / "verified" / "new"):
                pass
            assert not (tmp_path / "verified" / "new").exists()
        assert the_users.poll() is None
        assert of_another_run.poll() is None
    finally:
        for one in (left, the_users, of_another_run):
            one.kill()
            one.wait()
    with folders.alone(tmp_path / "verified" / "other"):
        pass


def test_only_pairs_of_which_both_ran_count():
    """Of the first pair B failed, so that A of that pair, and the second pair's own, are not set against each other."""
    failed = trial("B", 0, status="failed")
    trials = [trial("A", 100), failed, trial("B", 20), trial("A", 10), trial("A", 10), trial("B", 30)]
    assert [(a.step_ns, b.step_ns) for a, b in pairs(trials)] == [(10e6, 20e6), (10e6, 30e6)]
    proof = judging.proof(task(), trials, "interrupted")
    assert (proof.pairs, proof.ratio, proof.a_step_ns) == (2, pytest.approx(2.5), 10e6)
    assert proof.reason.startswith("interrupted: 2 trials per side are too few to decide")


def test_a_verdict_and_its_ratio_are_of_the_same_trials():
    """The machine is quicker from the seventh pair on; until then every B failed."""
    early = [one for _ in range(6) for one in (trial("A", 10), trial("B", 0, status="failed"))]
    late = both([trial("A", 20 + at / 10) for at in range(6)], [trial("B", 18 + at / 10) for at in range(6)])
    proof = judging.proof(task(), [*early, *late], "decided")
    assert (proof.outcome, proof.pairs) == ("better", 6)
    assert proof.ratio == proof.looks[-1].ratio == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize(
    ("ended", "words"),
    [("out of time", "out of time: 1 trial per side is too few to decide"), ("all trials made", "1 trial per side is")],
)
def test_why_it_stopped_is_said(ended, words):
    assert judging.proof(task(), both([trial("A", 1)], [trial("B", 1)]), ended).reason.startswith(words)


VAIN = {"ddp.bucket_cap_mb": "the script creates no DistributedDataParallel"}


@pytest.mark.parametrize(
    ("settings", "ends", "verdict", "why"),
    [
        ({"ddp.bucket_cap_mb": 1}, True, "other did not take effect", "the change did not take effect: "),
        (
            {"ddp.bucket_cap_mb": 1, "env.X": "1"},
            True,
            "not all of other took",
            "the change took effect only in part: ",
        ),
        ({"env.X": "1"}, False, "", ""),
    ],
)
def test_what_took_no_effect_is_not_timed(settings, ends, verdict, why):
    """Nor a change of which a part did: what is timed then is another one."""
    made = [trial("A", 1), trial("B", 1, without_effect=VAIN)]
    assert engine._over(task(**settings), made, 0.0) == ("without effect" if ends else None)
    if ends:
        proof = judging.proof(task(**settings), made, "without effect")
        told = " ".join(span.text for line in page(proof, 400) for span in line)
        assert proof.reason == why + "ddp.bucket_cap_mb: the script creates no DistributedDataParallel"
        assert f"No verdict: {verdict}" in told


def test_the_line_of_a_trial_says_how_many_of_each_side_finished():
    made = [trial("A", 10), trial("B", 9), trial("A", 10), trial("B", 1, status="failed")]
    proof = judging.proof(task(), made, "under way")
    assert line_of(proof, "trial 5: other").startswith("trial 5: other (finished: 2 of A, 1 of B")


@pytest.mark.parametrize(("has", "ends"), [(["ddp.bucket_cap_mb", "env.X"], True), (["env.X"], False), ([], False)])
def test_a_script_that_was_patched_meanwhile_is_not_compared_with_itself(has, ends):
    made = [trial("A", 1, has_change=has)]
    settings = {"ddp.bucket_cap_mb": 1, "env.X": "1"}
    assert engine._over(task(**settings), made, 0.0) == ("without effect" if ends else None)
    if ends:
        proof = judging.proof(task(**settings), made, "without effect")
        shown = " ".join(span.text for line in page(proof, 400) for span in line)
        assert proof.reason == "the script has this change already, so both sides are the same"
        assert "No verdict: both sides are the same" in shown


def test_a_learning_rate_that_the_script_sets_itself_leaves_the_time_to_be_told():
    made = [trial("A", 1), trial("B", 1, without_effect={"optimizer.lr": "a scheduler sets it"})]
    settings = {"optimizer.lr": 0.1, "loader.batch_size": 8}
    assert engine._over(task(**settings), made, 0.0) is None
    assert engine._over(task(**{"optimizer.lr": 0.1}), made, 0.0) == "without effect"


def test_a_file_keeps_the_case_of_its_name():
    assert sentence("train.py was changed since") == "train.py was changed since."
    assert sentence("the time was up") == "The time was up."


def test_what_lies_in_the_way_is_one_sentence(tmp_path: Path):
    folder = tmp_path / "verified" / "change"
    folder.parent.mkdir()
    folder.write_text("a file of the user's")
    with pytest.raises(RunError, match=r"cannot write into .*change: File exists"), folders.alone(folder):
        pass
    folder.unlink()
    folder.mkdir()
    (folder.parent / folders.EARLIER).write_text("another")
    with pytest.raises(RunError, match=r"cannot move .*change into .*earlier: File exists"):
        folders.set_aside(folder)
    (folder.parent / "lock").unlink()
    os.mkfifo(folder.parent / "lock")
    with pytest.raises(RunError, match="cannot write into"), folders.alone(folder):
        pass


def test_a_trial_without_a_time_and_a_ratio_that_is_no_number_are_damage(tmp_path: Path):
    folders.write(tmp_path, judging.proof(task(), both([trial("A", 10)], [trial("B", 10)]), "interrupted"))
    whole = json.loads((tmp_path / folders.PROOF).read_text())
    timeless = {**whole["trials"][0], "step_ns": None, "missing": {**whole["trials"][0]["missing"], "step_ns": "x"}}
    for damage in ({"ratio": math.nan}, {"trials": [timeless]}):
        (tmp_path / folders.PROOF).write_text(json.dumps({**whole, **damage}))
        with pytest.raises(RunError, match="has no readable result"):
            folders.read(tmp_path / folders.PROOF)


def test_names_that_are_not_in_utf_8_are_escaped():
    odd = Side(name="a\udcff", directory="/tmp/a\udcff", command=["python", "b\udcff.py"])
    assert (odd.name, odd.command[1]) == ("a\\udcff", "b\\udcff.py")
    assert Side.model_validate_json(odd.model_dump_json()) == odd


def test_what_a_change_may_do_to_the_losses():
    assert numerics_of(["ddp.bucket_cap_mb"]) == "same"
    assert numerics_of(["ddp.bucket_cap_mb", "ddp.comm_hook"]) == "changes"
    assert numerics_of(["ddp.comm_hook", "loader.num_workers"]) == "other draws"
    assert numerics_of(["compile.model"]) == "other draws"  # dropout


def numbered(trials):
    return [one.model_copy(update={"number": number}) for number, one in enumerate(trials, 1)]


@pytest.mark.parametrize(
    "damage",
    [
        {"outcome": "worse"},
        {"ratio": 1e308},
        {"fast_ratio": -2.0},
        {"decided_by": ""},
        {"looks": []},
        {"looks": "lax"},
        {"trials": "repeated"},
    ],
)
def test_figures_that_are_not_those_of_the_trials_are_damage(tmp_path: Path, damage):
    a, b = ([trial(side, ms + at / 10) for at in range(6)] for side, ms in (("A", 10), ("B", 5)))
    folders.write(tmp_path, judging.proof(task(), numbered(both(a, b)), "decided"))
    whole = json.loads((tmp_path / folders.PROOF).read_text())
    assert folders.read(tmp_path / folders.PROOF).outcome == "better"
    if damage == {"trials": "repeated"}:
        damage = {"trials": whole["trials"] * 4}
    if damage == {"looks": "lax"}:
        damage = {"looks": [{**whole["looks"][0], "level": 0.5}]}
    (tmp_path / folders.PROOF).write_text(json.dumps({**whole, **damage}))
    with pytest.raises(RunError, match="its figures are not those of its trials"):
        folders.read(tmp_path / folders.PROOF)


def test_a_proof_of_tests_at_a_level_of_before_is_still_one(tmp_path: Path):
    a, b = ([trial(side, ms + at / 10) for at in range(6)] for side, ms in (("A", 10), ("B", 5)))
    whole = judging.proof(task(), numbered(both(a, b)), "decided")
    earlier = judging.looks(whole.trials, 0.0044)
    assert earlier != whole.looks
    folders.write(tmp_path, whole.model_copy(update={"looks": earlier}))
    assert folders.read(tmp_path / folders.PROOF).looks == earlier


def test_a_side_of_which_most_end_early_is_not_compared_with_one_that_goes_on():
    a = [trial("A", 10, steps=30) for _ in range(6)]
    b = [trial("B", 30, steps=3, ended_early=True) for _ in range(6)]
    why = "the script of B ends after 3 timed steps, fewer than requested, while the other continues"
    assert judging.incomparable(both(a, b)).startswith(why)
    assert judging.incomparable(both(b, b)) == judging.incomparable(a) == ""
    one_of_b = [*b[:1], *(trial("B", 30, steps=30) for _ in range(5))]
    assert judging.incomparable(both(a, one_of_b)) == ""
    proof = judging.proof(task(), both(a, b), "not comparable")
    assert proof.known("ratio") is None
    assert proof.reason.startswith(why)


def test_what_was_set_aside_is_taken_back_where_it_fits(tmp_path: Path):
    folder = tmp_path / "verified" / "change"
    folder.mkdir(parents=True)
    proofs = [judging.proof(task(), numbered([trial("A", ms)]), "interrupted") for ms in (10, 20, 30)]
    for one in proofs:
        folders.write(folder, one)
        folders.set_aside(folder)
    (folder.parent / folders.EARLIER / "change-of-others-1").mkdir()
    assert [path.name for path in folders.aside(folder)] == ["change-1", "change-2", "change-3"]
    assert folders.take_back(folder, lambda proof: proof.trials[0].step_ns < 25e6) == proofs[1]
    assert folders.read(folder / folders.PROOF) == proofs[1]
    assert [path.name for path in folders.aside(folder)] == ["change-1", "change-3"]
    assert folders.take_back(folder, lambda proof: True) is None  # something lies there
    assert folders.take_back(tmp_path / "verified" / "new", lambda proof: True) is None


@pytest.mark.parametrize(
    ("budget_s", "words"),
    [
        (12.0, "a verdict takes about 12 s in all"),
        (11.0, "11 s allows about 5 trials per side; a verdict needs 6. Use --time-limit 12"),
    ],
)
def test_a_time_that_is_too_short_is_told_after_the_first_pair(budget_s, words):
    """A pair takes 2 s, the first look six of them, and the last 35."""
    asked = dataclasses.replace(task(), budget_s=budget_s)
    assert engine._how_long(asked, both([trial("A", 10)], [trial("B", 10)])).startswith(words)
    assert engine._how_long(asked, both([trial("A", 10)] * 2, [trial("B", 10)] * 2)) == ""
    assert engine._how_long(dataclasses.replace(asked, budget_s=3.0), both([trial("A", 1)], [trial("B", 1)])) == (
        "3 s allows about 1 trial per side; a verdict needs 6. Use --time-limit 12"
    )


def test_how_long_a_verdict_takes_is_told_after_the_first_pair():
    slow = [one.model_copy(update={"seconds": 20.0}) for one in both([trial("A", 10)], [trial("B", 10)])]
    assert engine._how_long(task(), slow) == "a verdict takes about 4 to 23 min in all"
    assert engine._how_long(dataclasses.replace(task(), most=4), slow) == "a verdict takes about 3 min in all"


def test_trials_under_way_are_not_said_to_have_been_interrupted():
    """What a report reads while they run, and after they were cut off."""
    few = judging.proof(task(), both([trial("A", 10)], [trial("B", 10)]), "under way")
    assert few.reason == "unfinished: 1 trial per side is too few to decide"
    many = judging.proof(task(), numbered(both([trial("A", 10)] * 6, [trial("B", 10)] * 6)), "under way")
    assert many.reason.startswith("unfinished, no verdict yet (p = ")


class TestOfTakenCores:
    """Trials during which the host of a virtual machine ran others are run again, of either side alike."""

    @staticmethod
    def run_all(monkeypatch, tmp_path, shares, most=2):
        """The proof of trials of which, in the order of running, such a part of the cores' time was taken."""
        given = iter(shares)

        def of(task, side, number, folder, left_s, warn, beside):
            made = trial(side, 10.0 if side == "A" else 12.0, taken_share=next(given, 0.0))
            return made.model_copy(update={"number": number})

        monkeypatch.setattr(engine, "run_side", of)
        monkeypatch.setattr(engine, "check_unchanged", lambda task, side: None)
        said = []
        made = engine.prove(dataclasses.replace(task(), most=most), tmp_path, lambda proof, what: said.append(what))
        return made, said

    def test_its_place_goes_to_the_next_one(self, monkeypatch, tmp_path):
        made, said = self.run_all(monkeypatch, tmp_path, [0.0, 0.2, 0.05, 0.0, 0.9])
        sides = [one.side for one in made.trials]
        assert [one.set_aside for one in made.trials] == [False, True, False, False, True, False]
        assert sides[1] == sides[2] != sides[0]
        assert sides[4] == sides[5] != sides[3]
        assert [(a.number, b.number) for a, b in pairs(made.trials)] == [
            tuple(sorted(pair, key=lambda number: sides[number - 1])) for pair in ((1, 3), (4, 6))
        ]
        assert (made.a_step_ns, made.b_step_ns) == (10e6, 12e6)
        assert "20 % of the CPU time was taken by other virtual machines: run again, and not counted" in said
        assert folders.read(tmp_path / folders.PROOF) == made

    def test_where_they_always_are_some_of_them_count(self, monkeypatch, tmp_path):
        made, _ = self.run_all(monkeypatch, tmp_path, [0.3] * 50, most=6)
        counted = [one for one in made.trials if not one.set_aside]
        assert len(pairs(made.trials)) == 6
        assert len(counted) == 12
        assert len(made.trials) - len(counted) == 6
        assert made.looks

    def test_it_goes_on_in_the_same_place(self, monkeypatch, tmp_path):
        whole, _ = self.run_all(monkeypatch, tmp_path / "whole", [0.0, 0.2, 0.0, 0.0])
        for stopped in range(1, 5):
            folder = tmp_path / str(stopped)
            folder.mkdir()
            folders.write(folder, judging.proof(task(), whole.trials[:stopped], "interrupted"))
            monkeypatch.setattr(engine, "_goes_on", lambda task, proof: True)
            made, _ = self.run_all(monkeypatch, folder, [])
            assert made.trials[:stopped] == whole.trials[:stopped]
            assert [one.side for one in in_place(made.trials)] == [one.side for one in in_place(whole.trials)]

    def test_nobody_sets_aside_what_does_not_please(self, tmp_path):
        trials = [
            trial(side, ms).model_copy(update={"number": n}) for n, (side, ms) in enumerate([("A", 10), ("B", 9)], 1)
        ]
        folders.write(tmp_path, judging.proof(task(), trials, "out of time"))
        told = json.loads((tmp_path / folders.PROOF).read_text())
        told["trials"].append({**told["trials"][1], "number": 3, "set_aside": True})
        (tmp_path / folders.PROOF).write_text(json.dumps(told))
        with pytest.raises(RunError, match="not those of its trials"):
            folders.read(tmp_path / folders.PROOF)
