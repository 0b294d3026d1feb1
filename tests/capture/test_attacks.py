"""Scripts that a recorder easily breaks: each must end as it would alone, and be recorded all the same."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import pytest

from dptune.advise.trust import recording
from dptune.runfile.record import Ending, RunRecord

from .conftest import PLAIN, SHORT, Run

pytestmark = pytest.mark.records


@pytest.fixture
def profile(profile_either: Callable[..., Run]) -> Callable[..., Run]:
    """What goes wrong may reach the whole chain of processes, which thorough tests start."""
    return profile_either


START = """
    import os, sys, threading, time, torch
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def train(step=None):
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def recorded(run: Run) -> bool:
    windows = [(window.name, window.steps) for window in run.facts().windows]
    return windows == [("untraced", 4), ("light", 2), ("detailed", 1)] and run.facts().ended == "complete"


@pytest.mark.thorough
def test_a_status_that_the_script_sets_on_its_way_out(profile: Callable[..., Run]) -> None:
    run = profile(START + "    try:\n        for _ in range(60): train()\n    finally:\n        sys.exit(5)\n", *SHORT)
    assert run.status == 5
    assert recorded(run)


@pytest.mark.thorough
def test_files_that_only_the_end_of_python_flushes(profile: Callable[..., Run]) -> None:
    body = """
    log = open("metrics.csv", "w")
    for step in range(60):
        log.write(f"{step}\\n")
        train()
    """
    run = profile(START + body, *SHORT, env={"PYTHONPATH": ""})  # without_compiler/ leaves out what flushes them
    assert run.status == 0, run.err
    assert len((run.folder.parent / "metrics.csv").read_text().splitlines()) == 11


@pytest.mark.thorough
def test_optimizers_that_step_inside_the_backward_pass(profile: Callable[..., Run]) -> None:
    body = """
    inside = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
    def update(p):
        inside[p].step()
        inside[p].zero_grad()
    for p in model.parameters(): p.register_post_accumulate_grad_hook(update)
    for _ in range(60): model(torch.randn(4, 8)).sum().backward()
    """
    run = profile(START + body, *SHORT)
    assert run.status == 0, run.err
    assert recorded(run)
    assert {calls for window in run.facts().windows for calls in window.backwards} == {1}


@pytest.mark.thorough
def test_training_in_a_thread_that_the_script_abandons(profile: Callable[..., Run]) -> None:
    """The profiler cannot be stopped from another thread: its window is lost, and nothing else."""
    body = """
    def loop():
        for _ in range(8): train()
        reached.set()
        time.sleep(60)
    reached = threading.Event()
    threading.Thread(target=loop, daemon=True).start()
    reached.wait()
    print("end")
    """
    run = profile(START + body, *SHORT)
    assert (run.status, run.out.strip()) == (0, "end"), run.err
    assert run.facts().ended == "script-ended"
    assert run.facts().window("untraced").complete  # type: ignore[union-attr]


BATCHES = {
    "nested tensors": "lambda rows: torch.nested.nested_tensor(rows)",
    "a mapping that loads": "lambda rows: Lazy()",
}


@pytest.mark.parametrize(
    "name", [next(iter(BATCHES)), *(pytest.param(one, marks=pytest.mark.thorough) for one in [*BATCHES][1:])]
)
def test_batches_of_any_kind(name: str, profile: Callable[..., Run]) -> None:
    body = f"""
    from collections.abc import Mapping
    class Lazy(Mapping):
        def __getitem__(self, key): raise NotImplementedError
        def __iter__(self): raise NotImplementedError
        def __len__(self): raise NotImplementedError
    loader = torch.utils.data.DataLoader(torch.randn(256, 8), batch_size=4, collate_fn={BATCHES[name]})
    for batch in loader: train()
    """
    run = profile(START + body, *SHORT)
    assert run.status == 0, run.err
    assert recorded(run)
    assert {drawn for window in run.facts().windows for drawn in window.loader_samples} == {4}


@pytest.mark.thorough
def test_things_without_a_hash(profile: Callable[..., Run]) -> None:
    body = """
    class Loader(torch.utils.data.DataLoader):
        def __eq__(self, other): return self is other
    data = Loader(torch.randn(256, 8), batch_size=4)
    for batch in data: train()
    """
    run = profile(START + body, *SHORT)
    assert run.status == 0, run.err
    assert recorded(run)
    assert run.facts().loaders[0].where == "train.py:13"


@pytest.mark.thorough
@pytest.mark.parametrize("options", ["", ", num_workers=1"])
def test_a_loader_that_only_the_loop_holds_is_among_the_facts(profile: Callable[..., Run], options: str) -> None:
    body = f"""
    for batch in torch.utils.data.DataLoader(torch.randn(256, 8), batch_size=4{options}): train()
    """
    run = profile(START + body, *SHORT)
    assert run.status == 0, run.err
    (loader,) = run.facts().loaders
    assert (loader.where, loader.batch_size) == ("train.py:11", 4)
    assert loader.batches_drawn


@pytest.mark.thorough
def test_validation_batches_are_no_samples_of_a_step(profile: Callable[..., Run]) -> None:
    body = """
    data = torch.utils.data.DataLoader(torch.randn(256, 8), batch_size=4)
    for batch in data:
        train()
        with torch.no_grad():
            for other, _ in zip(data, range(3)): model(other)
    """
    run = profile(START + body, *SHORT)
    assert run.status == 0, run.err
    assert {drawn for window in run.facts().windows for drawn in window.loader_samples} == {4}
    assert {drawn for window in run.facts().windows for drawn in window.loader_batches} == {4 + 1}


@pytest.mark.thorough
def test_a_sigterm_handler_of_the_scripts_own_may_take_its_time(profile: Callable[..., Run]) -> None:
    body = """
    import signal
    def save(*_):
        time.sleep(10)
        print("saved")
        sys.exit(0)
    for step in range(60):
        train()
        if step == 2: signal.signal(signal.SIGTERM, save)
        if step == 4: os.kill(os.getpid(), signal.SIGTERM)
    """
    run = profile(START + body, *SHORT)
    assert (run.status, run.out.strip()) == (0, "saved"), run.err
    assert run.facts().ended == "script-ended"


@pytest.mark.thorough
def test_a_program_that_the_script_starts_is_not_the_script(profile: Callable[..., Run]) -> None:
    body = f"""
    import subprocess
    inner = {PLAIN!r}.replace("    ", "", 1).replace("\\n    ", "\\n") + "open('inner', 'w').close()\\n"
    subprocess.run([sys.executable, "-c", inner], check=True)
    for _ in range(60): train()
    """
    run = profile(START + body, *SHORT)
    assert run.status == 0, run.err
    assert (run.folder.parent / "inner").exists(), "it was ended before its end"
    assert recorded(run)


@pytest.mark.thorough
def test_a_program_that_trains_in_place_of_the_script_is_named(profile: Callable[..., Run]) -> None:
    script = f"""
    import subprocess, sys, torch
    open("inner.py", "w").write({textwrap.dedent(PLAIN)!r})
    sys.exit(subprocess.Popen([sys.executable, "inner.py"]).wait())
    """
    run = profile(script, *SHORT)
    assert run.status == 2
    assert "only a program started by the script made optimizer steps (inner.py)" in run.err
    assert "hint: profile that program directly: dptune profile inner.py" in run.err
    assert run.record.unrecorded == ["inner.py"]


def test_a_forked_child_that_trains_alone_is_recorded_and_not_ended(profile: Callable[..., Run]) -> None:
    script = f"""
    import os, sys, torch
    child = os.fork()
    if not child:
        exec({textwrap.dedent(PLAIN)!r})
        print("the end of the child", flush=True)
        sys.exit(7)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    run = profile(script, *SHORT)
    assert (run.status, run.out.strip()) == (7, "the end of the child"), run.err
    assert run.facts().ended == "complete"
    assert "the script was stopped" not in run.err


def test_a_process_that_trained_unrecorded_is_named_in_the_report() -> None:
    (finding,) = recording(RunRecord(unrecorded=["inner.py"], ending=Ending("complete")), [])
    assert (finding.level, finding.code) == ("info", "process-unrecorded")
    assert finding.text == "inner.py trained in a process that was not recorded: no figure includes it"


@pytest.mark.thorough
def test_workers_of_a_pool_are_not_ended(profile: Callable[..., Run]) -> None:
    script = START.replace("    import os", "    import multiprocessing, os")
    body = """
    def fold(seed):
        for _ in range(20): train()
        return seed
    if __name__ == "__main__":
        with multiprocessing.get_context("fork").Pool(2) as pool: print(pool.map(fold, [1, 2]))
    """
    run = profile(script + body, *SHORT)
    assert (run.status, run.out.strip()) == (0, "[1, 2]"), run.err


@pytest.mark.thorough
def test_a_script_that_does_not_let_itself_be_ended_runs_on(profile: Callable[..., Run]) -> None:
    body = """
    made = 0
    while made < 30:
        try:
            train()
        except BaseException:
            continue
        made += 1
    print("made", made)
    """
    run = profile(START + body, *SHORT)
    assert (run.status, run.out.strip()) == (0, "made 30"), run.err
    assert recorded(run)


@pytest.mark.thorough
def test_a_second_phase_with_another_optimizer(profile: Callable[..., Run]) -> None:
    body = """
    head = torch.nn.Linear(8, 8)
    second = torch.optim.SGD(head.parameters(), lr=0.1)
    for _ in range(3): train()
    for _ in range(60):
        head(torch.randn(4, 8)).sum().backward()
        second.step()
    """
    run = profile(START + body, *SHORT)
    assert run.status == 0, run.err
    assert recorded(run)


RANKS = """
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def backward(): model(torch.randn(4, 8)).sum().backward()
    def finish():
        for p in model.parameters(): dist.all_reduce(p.grad)
        optimizer.step()
        optimizer.zero_grad()
"""
ENDS = "    dist.barrier()\n    dist.destroy_process_group()\n"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "loop",
    [
        "for _ in range(60):\n        for _ in range(1 if rank else 3): backward()\n        finish()\n",
        "for _ in range(60):\n        loss = model(torch.randn(4, 8)).sum()\n"
        "        for p, g in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters()))): p.grad = g\n"
        "        finish()\n",
    ],
    ids=["passes differ between ranks", "gradients without backward"],
)
def test_ranks_that_average_by_hand_leave_together(loop: str, profile: Callable[..., Run]) -> None:
    run = profile(RANKS + "    " + loop + ENDS, "--nproc-per-node", "2", *SHORT)
    assert run.status == 0, run.err
    assert run.record.ending.how == "complete"
    assert [run.facts(rank).steps for rank in (0, 1)] == [11, 11]


@pytest.mark.thorough
def test_ranks_that_meet_now_and_then_run_to_their_own_end(profile: Callable[..., Run]) -> None:
    """The quicker rank is past the place where all could have left: then nobody leaves."""
    loop = """
    import time
    for step in range(60):
        backward()
        optimizer.step()
        time.sleep(0.05 * rank)
        if step % 20 == 19:
            for p in model.parameters(): dist.all_reduce(p.data)
    print("end")
"""
    run = profile(RANKS + loop + ENDS, "--nproc-per-node", "2", *SHORT)
    assert run.status == 0, run.err
    assert run.out.count("end") in (0, 2)
    assert [run.facts(rank).ended for rank in (0, 1)] == ["complete", "complete"]
