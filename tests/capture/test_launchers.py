"""Every way to start the ranks of a run: each recording is whole, in one folder, and nothing stays behind."""

from __future__ import annotations

import os
import shlex
import stat
import sys
import textwrap
from pathlib import Path

import pytest

from .. import forks, in_process  # noqa: TID252 - tests are no installed package
from ..launcher.launch_workers import free_port  # noqa: TID252 - tests are no installed package
from .conftest import PLAIN, SHORT
from .launching import (
    BIN,
    DPTUNE,
    TRAIN,
    Done,
    environment_after,
    facts_in,
    latest,
    left_behind,
    only_run,
    record_in,
    run,
    run_here,
)

pytestmark = pytest.mark.records

FILES = {
    f"rank-0000{rank}.{kind}" for rank in (0, 1) for kind in ("facts.json", "trace.json.gz", "detail.trace.json.gz")
}

# Slurm is not here. This stands for `srun`: it starts $TASKS tasks with the variables that Slurm sets, and ends with
# the status of the first that failed.
SRUN = """\
#!/bin/sh
export SLURM_JOB_ID=4711 SLURM_STEP_ID=${STEP:-0} SLURM_NTASKS=${TASKS:-2} MASTER_ADDR=127.0.0.1 MASTER_PORT=${PORT}
pids=; task=0
while [ $task -lt $SLURM_NTASKS ]; do
  SLURM_PROCID=$task SLURM_LOCALID=$task "$@" & pids="$pids $!"
  task=$((task + 1))
done
status=0
for pid in $pids; do wait $pid || status=$?; done
exit $status
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    pytest.importorskip("torch", reason="recording needs torch")
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


@pytest.fixture
def srun(place: Path) -> dict[str, str]:
    """The environment with the stand-in for srun on PATH."""
    (place / "bin").mkdir()
    program = place / "bin" / "srun"
    program.write_text(SRUN)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return {"PATH": f"{place / 'bin'}:{BIN}:/usr/bin:/bin", "PORT": free_port()}


def whole(done: Done, folder: Path, by: str, ranks: int = 2) -> None:
    """The recording of all ranks is complete, and was said so once."""
    assert done.status == 0, done.err
    record = record_in(folder)
    assert (record.launched_by, record.world_size, record.ending.how) == (by, ranks, "complete")
    assert record.ending.exit_status == 0
    assert record.torch == facts_in(folder)[0].torch
    assert [one.ended for one in facts_in(folder)] == ["complete"] * ranks
    assert {path.name for path in folder.iterdir()} >= FILES
    assert not (folder / "live").exists()
    assert done.err.count(f"{ranks} ranks recorded in") == 1
    assert done.err.count("next: dptune report") == 1
    assert latest(folder.parent if (folder.parent / "dptune-runs").is_dir() else folder.parent.parent) == folder
    assert left_behind(folder) == []
    report = in_process.dptune("report", str(folder), "--full", cwd=folder.parent)
    assert report.returncode == 0, report.stderr


@pytest.mark.thorough
def test_torchrun_by_its_options_with_underscores(place: Path) -> None:
    done = run(*DPTUNE, "profile", *SHORT, "--nproc_per_node=2", "train.py", cwd=place)
    whole(done, only_run(place), "torchrun")
    assert "the script came to its end" not in done.out


@pytest.mark.thorough
def test_torchrun_counts_the_ranks(place: Path) -> None:
    done = run(*DPTUNE, "profile", *SHORT, "--nproc-per-node", "cpu", "train.py", cwd=place)
    assert done.status == 0, done.err
    record = record_in(only_run(place))
    assert (record.nproc_per_node, record.world_size) == ("cpu", os.cpu_count())


@pytest.mark.thorough
def test_the_users_own_torchrun_is_started_as_it_is(place: Path) -> None:
    command = ("torchrun", "--standalone", "--nproc-per-node", "2", "train.py")
    done = run(*DPTUNE, "profile", *SHORT, *command, cwd=place)
    whole(done, only_run(place), "command")
    record = record_in(only_run(place))
    assert record.command == list(command)
    assert Path(record.python).resolve() == Path(sys.executable).resolve()  # as torchrun's first line says


def test_a_command_ends_with_its_own_status(place: Path) -> None:
    done = run_here("profile", *SHORT, "sh", "-c", "exit 7", cwd=place)
    assert done.status == 7
    assert "the script ended with exit status 7 before its first optimizer step" in done.err


def test_dptune_is_started_for_each_rank(place: Path) -> None:
    """As a launcher starts it, one rank after the other: the script is one whose ranks do not wait for each other."""
    (place / "train.py").write_text(textwrap.dedent(PLAIN))
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "4711"}
    for rank in ("1", "0"):  # rank 0 says what is there at its end
        variables = {**shared, "RANK": rank, "LOCAL_RANK": rank}
        done = run_here("profile", *SHORT, "train.py", cwd=place, env=variables)
        assert done.status == 0, done.err
    whole(done, place / "dptune-runs" / "127.0.0.1-4711-train", "launcher")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "started", [pytest.param(("--no-python", *DPTUNE), id="program"), pytest.param(("-m", "dptune"), id="module")]
)
def test_torchrun_starts_dptune_for_each_rank(place: Path, started: tuple[str, ...]) -> None:
    done = run("torchrun", "--standalone", "--nproc-per-node", "2", *started, "profile", *SHORT, "train.py", cwd=place)
    whole(done, only_run(place), "launcher")


@pytest.mark.thorough
def test_a_failing_rank_under_torchrun_is_what_run_json_says(place: Path) -> None:
    fails = "    if step == 8 and rank: sys.exit(7)"
    (place / "train.py").write_text(TRAIN.replace("    optimizer.zero_grad()", fails))
    words = ("torchrun", "--standalone", "--nproc-per-node", "2", "--no-python", *DPTUNE, "profile", *SHORT)
    done = run(*words, "train.py", cwd=place)
    assert done.status == 1  # torchrun's own
    ending = record_in(only_run(place)).ending
    assert (ending.how, ending.exit_status) == ("failed", 7)
    assert left_behind(only_run(place)) == []


@pytest.mark.thorough
def test_srun_starts_dptune_for_each_task(place: Path, srun: dict[str, str]) -> None:
    done = run("srun", *DPTUNE, "profile", *SHORT, "train.py", cwd=place, env=srun)
    whole(done, place / "dptune-runs" / "slurm-4711.0-train", "launcher")
    again = run("srun", *DPTUNE, "profile", *SHORT, "train.py", cwd=place, env=srun)  # as a requeued job would
    whole(again, place / "dptune-runs" / "slurm-4711.0-train-2", "launcher")
    another = run("srun", *DPTUNE, "profile", *SHORT, "train.py", cwd=place, env={**srun, "STEP": "1"})
    whole(another, place / "dptune-runs" / "slurm-4711.1-train", "launcher")


@pytest.mark.thorough
def test_dptune_starts_srun(place: Path, srun: dict[str, str]) -> None:
    done = run(*DPTUNE, "profile", *SHORT, "srun", sys.executable, "train.py", cwd=place, env=srun)
    whole(done, only_run(place), "command")


@pytest.mark.thorough
def test_a_batch_script_of_slurm_is_not_a_rank(place: Path, srun: dict[str, str]) -> None:
    batch = {"SLURM_JOB_ID": "4711", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}
    done = run(*DPTUNE, "profile", *SHORT, "srun", sys.executable, "train.py", cwd=place, env={**srun, **batch})
    whole(done, only_run(place), "command")


def test_the_environment_alone_makes_ranks_record(place: Path) -> None:
    made = run_here("profile", *SHORT, "--env", cwd=place)
    assert made.status == 0, made.err
    env = environment_after(made.out, place)
    done = forks.run(str(forks.LAUNCHER), "--standalone", "--nproc-per-node=2", "train.py", cwd=place, env=env)
    assert done.returncode == 0, done.stderr
    check_recorded_by_the_environment(place, made.err)


@pytest.mark.thorough
def test_the_environment_alone_makes_any_launcher_record(place: Path) -> None:
    words = shlex.join([*DPTUNE, "profile", *SHORT, "--env"])
    script = f'eval "$({words})" && torchrun --standalone --nproc-per-node 2 train.py'
    done = run("bash", "-c", script, cwd=place)
    assert done.status == 0, done.err
    check_recorded_by_the_environment(place, done.err)


def check_recorded_by_the_environment(place: Path, said: str) -> None:
    folder = only_run(place)
    record = record_in(folder)
    assert (record.launched_by, record.ending.how, record.world_size) == ("environment", "complete", 2)
    assert {path.name for path in folder.iterdir()} == FILES | {"run.json"}
    assert "until `unset DPTUNE_CAPTURE`" in said
    assert in_process.dptune("report", str(folder), "--full", cwd=place).returncode == 0


@pytest.mark.thorough
def test_a_sample_of_the_ranks(place: Path) -> None:
    done = run(*DPTUNE, "profile", *SHORT, "--nproc-per-node", "2", "--ranks", "1", "train.py", cwd=place)
    assert done.status == 0, done.err
    folder = only_run(place)
    assert {path.name for path in folder.glob("rank-*")} == {name for name in FILES if name.startswith("rank-00001")}
    assert (record_in(folder).ranks, record_in(folder).ending.how) == ([1], "complete")
    report = run(*DPTUNE, "report", str(folder), "--full", cwd=place)
    assert "not recorded, as asked" in " ".join(report.out.split()), report.out


@pytest.mark.thorough
def test_a_wrapper_between_launcher_and_dptune(place: Path) -> None:
    wrapper = place / "wrapper.sh"
    wrapper.write_text(f"#!/bin/sh\n{shlex.join(DPTUNE)} profile {shlex.join(SHORT)} train.py\nexit $?\n")
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    words = ("torchrun", "--standalone", "--nproc-per-node", "2", "--no-python", str(wrapper))
    whole(run(*words, cwd=place), only_run(place), "launcher")


@pytest.mark.thorough
def test_torchrun_on_two_nodes_starts_dptune_for_each_rank(place: Path) -> None:
    """Both nodes are this machine: what matters is that the ranks of two torchruns know that they are one job."""
    port = free_port()
    begin = "torchrun --nnodes 2 --master-addr 127.0.0.1 --master-port " + port
    dptune = f"--nproc-per-node 1 --no-python {shlex.join(DPTUNE)} profile {shlex.join(SHORT)} train.py"
    both = f"{begin} --node-rank 1 {dptune} & {begin} --node-rank 0 {dptune}; first=$?; wait $! && exit $first"
    whole(run("bash", "-c", both, cwd=place), place / "dptune-runs" / f"127.0.0.1-{port}-train", "launcher")


@pytest.mark.thorough
def test_accelerate_starts_dptune_and_dptune_starts_accelerate(place: Path) -> None:
    pytest.importorskip("accelerate", reason="this launcher comes with accelerate")
    launcher = ("accelerate", "launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1")
    settings = ("--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", free_port())
    done = run(*launcher, *settings, "-m", "dptune", "profile", *SHORT, "train.py", cwd=place)
    whole(done, only_run(place), "launcher")
    done = run(*DPTUNE, "profile", "--run-dir", "run", *SHORT, *launcher, *settings, "train.py", cwd=place)
    whole(done, place / "run", "command")


@pytest.mark.thorough
def test_deepspeed_starts_dptune_and_dptune_starts_deepspeed(place: Path) -> None:
    pytest.importorskip("deepspeed", reason="this launcher comes with deepspeed")
    launcher = ("deepspeed", "--num_gpus", "2", "--no_local_rank", "--master_port", free_port())
    env = {"DS_ACCELERATOR": "cpu"}
    command = ("dptune", "profile", *SHORT, "train.py")
    whole(run(*launcher, "--no_python", *command, cwd=place, env=env), only_run(place), "launcher")
    done = run(*DPTUNE, "profile", "--run-dir", "run", *SHORT, *launcher, "train.py", cwd=place, env=env)
    whole(done, place / "run", "command")


@pytest.mark.thorough
def test_a_rank_that_its_launcher_starts_again_is_recorded_anew(place: Path) -> None:
    """As torchrun --max-restarts does it: the first try has failed, and its process is gone."""
    made = run(*DPTUNE, "profile", "--env", "--run-dir", "run", *SHORT, cwd=place)
    shell = f"{made.out}\n{sys.executable} train.py"
    first = run("bash", "-c", f"{made.out}\nSTEPS=7 {sys.executable} train.py", cwd=place)
    assert [one.ended for one in facts_in(place / "run")] == ["script-ended"], first.err
    another = run("bash", "-c", shell, cwd=place)
    assert (another.status, another.out) == (0, "the script came to its end\n")
    assert "rank 0: not recorded:" in another.err
    assert "already has its recording" in another.err
    assert "already has its recording" in run(*DPTUNE, "report", "--full", "run", cwd=place).out
    again = run("bash", "-c", shell, cwd=place, env={"TORCHELASTIC_RESTART_COUNT": "1"})
    assert again.status == 0, again.err
    assert [one.ended for one in facts_in(place / "run")] == ["complete"]
    assert record_in(place / "run").ending.how == "complete"
    assert "already has its recording" not in run(*DPTUNE, "report", "--full", "run", cwd=place).out


def test_what_cannot_be_started_leaves_nothing(place: Path) -> None:
    broken = place / "bin" / "launcher"
    broken.parent.mkdir()
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    done = run_here("profile", "launcher", "train.py", cwd=place, env={"PATH": f"{broken.parent}:{BIN}"})
    assert done.status == 2
    assert done.err.startswith("dptune: error: cannot start launcher: No such file or directory")
    assert not (place / "dptune-runs").exists()
