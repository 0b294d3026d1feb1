"""Each kind of script is recorded whole, leaves with its own numbers, and can be reported on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dptune.runfile.facts import Facts

from .. import in_process  # noqa: TID252 - tests are no installed package
from .conftest import Run, environment
from .kinds_of_scripts import KINDS, QUIET, Kind, bare, recorded, recording_command
from .launching import LOAD, limits_of

pytestmark = pytest.mark.records


def report(folder: Path) -> dict[str, object]:
    done = in_process.dptune("report", str(folder), "--format", "json", "--no-cache")
    assert done.returncode == 0, done.stderr
    told: dict[str, object] = json.loads(done.stdout)
    return told


def last_line(out: str) -> str:
    lines = [line for line in out.splitlines() if line.startswith("parameters ")]
    assert len(lines) == 1, out
    return lines[0]


def test_recording_two_ranks_changes_no_bit_of_what_they_learn(tmp_path: Path) -> None:
    """As forks; `make test-thorough` starts each kind of script as users do (below)."""
    kind = KINDS["ddp"]
    words = recording_command(kind, tmp_path / "run", "--continue", arguments=("--steps", "16"))[3:]
    run = in_process.recording(*words, cwd=tmp_path, env=environment(**QUIET, **kind.env))
    assert run.returncode == 0, run.stderr
    alone = bare(kind, tmp_path, "--steps", "16")
    assert alone.returncode == 0, alone.stderr
    assert last_line(run.stdout) == last_line(alone.stdout)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS.values(), ids=str)
def test_recording_changes_no_bit_of_what_is_learned(kind: Kind, tmp_path: Path) -> None:
    kind.check_installed()
    run = recorded(kind.whole, tmp_path, "--continue", arguments=("--steps", "16"))
    assert run.status == 0, run.err
    assert [run.facts(rank).ended for rank in range(kind.ranks)] == ["complete"] * kind.ranks
    alone = bare(kind, tmp_path, "--steps", "16")
    assert alone.returncode == 0, alone.stderr
    assert last_line(run.out) == last_line(alone.stdout)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS.values(), ids=str)
def test_every_rank_is_recorded_and_the_script_ended(kind: Kind, tmp_path: Path) -> None:
    kind.check_installed()
    run = recorded(kind.whole, tmp_path)
    assert run.status == 0, run.err
    assert run.record.ending.how == "complete"
    assert "parameters" not in run.out
    assert "Traceback" not in run.err
    for rank in range(kind.ranks):
        facts = run.facts(rank)
        assert facts.ended == "complete"
        assert facts.unread == {}
        assert [(window.name, window.steps) for window in facts.windows] == [
            ("untraced", 4),
            ("light", 3),
            ("detailed", 1),
        ]
        assert {f"rank-{rank:05d}.trace.json.gz", f"rank-{rank:05d}.detail.trace.json.gz"} <= run.files
    assert limits_of(report(run.folder)) <= LOAD
    CHECKS.get(kind.name, lambda facts, run: None)(run.facts(), run)


@pytest.mark.thorough
def test_hydra_gets_its_arguments_and_its_folder(tmp_path: Path) -> None:
    kind = Kind("hydra_args", needs="hydra", arguments=("hydra.job.chdir=True",))
    kind.check_installed()
    run = recorded(kind, tmp_path, "--continue", arguments=("steps=16",))
    assert run.status == 0, run.err
    alone = bare(kind, tmp_path, "steps=16")
    assert last_line(run.out) == last_line(alone.stdout)
    assert {"rank-00000.trace.json.gz", "rank-00000.facts.json"} <= run.files


def steps(facts: Facts, name: str) -> list[int]:
    return [value for window in facts.windows for value in getattr(window, name)]


def accumulates_without_sync(facts: Facts, run: Run) -> None:
    assert set(steps(facts, "backwards")) == {4}
    assert set(steps(facts, "unsynced_backwards")) == {3}


def accumulates_synced(facts: Facts, run: Run) -> None:
    assert set(steps(facts, "backwards")) == {4}
    assert set(steps(facts, "unsynced_backwards")) == {0}


def two_optimizers_one_clock(facts: Facts, run: Run) -> None:
    assert len(facts.optimizers) == 2
    assert facts.steps == 12
    assert min(steps(facts, "backwards")) >= 2


def skipped_steps_are_steps(facts: Facts, run: Run) -> None:
    assert facts.grad_scaler is True
    assert facts.grad_scale is not None
    assert sum(window.skipped_steps for window in facts.windows) > 0


def units_of_fsdp1(facts: Facts, run: Run) -> None:
    (fsdp,) = facts.fsdp
    assert (fsdp.version, fsdp.strategy, fsdp.mesh, fsdp.reshard_after_forward) == (1, "FULL_SHARD", [2], True)
    assert fsdp.units == 5
    assert fsdp.where is not None
    assert "fsdp1.py:" in fsdp.where
    assert dict(zip(fsdp.names, fsdp.order, strict=True)) == {"": 0, "0": 1, "1": 2, "2": 3, "3": 4}
    block, head = 4 * (32 * 32 + 3 * 32), 4 * (32 * 4 + 4)
    assert sorted(fsdp.gathered_bytes) == [head, *[block] * 4]


def units_of_fsdp2(facts: Facts, run: Run) -> None:
    assert [(fsdp.version, fsdp.units, fsdp.mesh) for fsdp in facts.fsdp] == [(2, 4, [2]), (2, 1, [2])]
    assert [fsdp.reshard_after_forward for fsdp in facts.fsdp] == [True, False]


def buckets_and_loader(facts: Facts, run: Run) -> None:
    (ddp,), (loader,) = facts.ddp, facts.loaders
    assert (ddp.backend, sum(ddp.rebuilt_bucket_sizes)) == ("gloo", ddp.gradient_bytes)
    assert (loader.num_workers, loader.distributed_sampler) == (2, True)
    assert set(steps(facts, "loader_samples")) == {16}


def compiled_where(facts: Facts, run: Run) -> None:
    assert facts.compiled is not None
    assert facts.compiled.ddp_graphs == [4]
    assert [where.rpartition(":")[0].endswith("compiled.py") for where in facts.compiled.where if where] == [True]


def wrapped_by_deepspeed(facts: Facts, run: Run) -> None:
    assert facts.engine == "deepspeed"
    assert set(steps(facts, "backwards")) == {2}
    advised = {advice["rule"] for advice in report(run.folder)["advice"]}  # type: ignore[attr-defined]
    assert "DP102" not in advised, "DeepSpeed reduces at the boundary by itself"


def set_up_at(name: str, argument: str, source: str) -> Callable[[Facts, Run], None]:
    """A check that the script's call of a class, and one of its arguments, have their lines."""

    def check(facts: Facts, run: Run) -> None:
        (call,) = (call for call in facts.library_calls if call.name == name)
        file, _, line = call.arguments[argument].rpartition(":")
        assert source in (Path(__file__).parent / "kinds" / Path(file).name).read_text().splitlines()[int(line) - 1]
        assert int(call.where.rpartition(":")[2]) <= int(line)

    return check


CHECKS: dict[str, Callable[[Facts, Run], None]] = {
    "hf_trainer": set_up_at("TrainingArguments", "save_strategy", 'save_strategy="no"'),
    "lightning_fit": set_up_at("Trainer", "strategy", 'strategy="ddp"'),
    "accelerate_loop": set_up_at("Accelerator", "cpu", "Accelerator(cpu=True"),
    "accumulate": accumulates_without_sync,
    "accumulate_synced": accumulates_synced,
    "several_optimizers": two_optimizers_one_clock,
    "grad_scaler": skipped_steps_are_steps,
    "fsdp1": units_of_fsdp1,
    "fsdp2": units_of_fsdp2,
    "ddp": buckets_and_loader,
    "compiled": compiled_where,
    "deepspeed_engine": wrapped_by_deepspeed,
}
