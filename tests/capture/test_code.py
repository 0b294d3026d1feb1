"""dptune.profile() in a script's own code, in a notebook, and as a callback of training frameworks."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from dptune.runfile import json_files
from dptune.runfile.facts import Facts
from dptune.runfile.record import RunRecord

from .. import forks, in_process  # noqa: TID252 - tests are no installed package
from .conftest import environment
from .kinds_of_scripts import QUIET
from .launching import LOAD, limits_of

pytestmark = pytest.mark.records
pytest.importorskip("torch", reason="recording needs torch")

START = """
    import torch, dptune
    data = torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=4)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def train(batch):
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
SIZES = "warmup=1, untraced=4, light=3, detailed=1"
LOOP = """
    with dptune.profile({}) as prof:
        for batch in data:
            train(batch)
            prof.step()
    print("done", prof.done, prof.folder)
"""


def python(folder: Path, script: str, *launch: str, **env: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(textwrap.dedent(script))
    return forks.run(*launch, "train.py", cwd=folder, env=environment(**QUIET, **env))


def facts_in(folder: Path) -> list[Facts]:
    return [json_files.read(path, Facts) for path in sorted(folder.glob("rank-*.facts.json"))]


def windows(facts: Facts) -> list[tuple[str, int, bool]]:
    return [(window.name, window.steps, window.complete) for window in facts.windows]


WHOLE = [("untraced", 4, True), ("light", 3, True), ("detailed", 1, True)]


def report(folder: Path) -> dict[str, dict[str, object]]:
    done = in_process.dptune("report", str(folder), "--format", "json", "--no-cache")
    assert done.returncode == 0, done.stderr
    told: dict[str, dict[str, object]] = json.loads(done.stdout)
    return told


@pytest.mark.thorough
def test_norms_of_gradients_are_taken_from_code_too(tmp_path: Path) -> None:
    """One process with one pass a step: the small gradient is the large one."""
    script = START + LOOP.format(f"{SIZES}, noise_scale=4")
    done = python(tmp_path, script.replace("torch.randn(64, 8)", "torch.randn(96, 8)"))
    assert done.returncode == 0, done.stderr
    (facts,) = facts_in(next((tmp_path / "dptune-runs").glob("*-train")))
    assert facts.noise is not None
    assert len(facts.noise.of_steps) == 4
    assert [[large] for large in facts.noise.of_steps] == facts.noise.of_passes


def test_a_loop_is_recorded_and_goes_on(tmp_path: Path) -> None:
    """And the next one leaves its folder alone."""
    loop = LOOP.format(f"'mine', {SIZES}")
    done = python(tmp_path, START + loop + loop)
    assert done.returncode == 0, done.stderr
    first, second = (str(tmp_path / name) for name in ("mine", "mine-2"))
    assert done.stdout.split() == ["done", "True", first, "done", "True", second]
    assert "dptune: recorded in mine\ndptune: next: dptune report mine\n" in done.stderr
    assert "dptune: mine is not empty: recording into mine-2" in done.stderr
    assert windows(facts_in(tmp_path / "mine-2")[0]) == WHOLE
    (facts,) = facts_in(tmp_path / "mine")
    assert windows(facts) == WHOLE
    assert (facts.loaders[0].batch_size, facts.optimizers[0].name) == (4, "SGD")
    record = json_files.read(tmp_path / "mine" / "run.json", RunRecord)
    assert (record.ending.how, record.launched_by, record.command) == ("complete", "code", ["python", "train.py"])
    assert limits_of(report(tmp_path / "mine")) <= LOAD


@pytest.mark.thorough
def test_several_recordings_in_one_process_get_folders_of_their_own(tmp_path: Path) -> None:
    done = python(tmp_path, START + LOOP.format(SIZES) + LOOP.format(SIZES))
    assert done.returncode == 0, done.stderr
    folders = [path for path in (tmp_path / "dptune-runs").iterdir() if path.is_dir()]
    assert len(folders) == 2
    assert [windows(facts) for folder in folders for facts in facts_in(folder)] == [WHOLE, WHOLE]
    assert (tmp_path / "dptune-runs" / "latest").read_text().strip() in {folder.name for folder in folders}


@pytest.mark.thorough
def test_an_exception_in_the_loop_is_the_scripts_own(tmp_path: Path) -> None:
    loop = LOOP.replace("prof.step()", "prof.step()\n            if prof.done: raise KeyError('mine')")
    done = python(tmp_path, START + loop.format(f"'mine', {SIZES.replace('detailed=1', 'detailed=0')}"))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "KeyError: 'mine'"
    early = python(tmp_path, START + LOOP.replace("prof.step()", "prof.step(); 1 / 0").format(f"'second', {SIZES}"))
    assert early.returncode == 1
    (facts,) = facts_in(tmp_path / "second")
    assert facts.ended == "raised ZeroDivisionError"
    assert json_files.read(tmp_path / "second" / "run.json", RunRecord).ending.how == "failed"


@pytest.mark.thorough
def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious").touch()
    done = python(tmp_path, START + LOOP.format(f"'mine', {SIZES}"))
    assert done.returncode == 0, done.stderr
    assert "dptune: mine is not empty: recording into mine-2" in done.stderr
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["precious"]
    assert windows(facts_in(tmp_path / "mine-2")[0]) == WHOLE


def test_a_loop_that_never_says_step(tmp_path: Path) -> None:
    done = python(tmp_path, START + LOOP.replace("prof.step()", "pass").format(SIZES))
    assert done.returncode == 0, done.stderr
    assert "dptune: nothing was recorded: step() was never called" in done.stderr
    assert not (tmp_path / "dptune-runs").exists()


def test_two_ranks_record_into_one_folder(tmp_path: Path) -> None:
    start = START.replace("import torch, dptune", "import torch, dptune, torch.distributed as dist").replace(
        "    model = torch.nn.Linear(8, 8)\n",
        """    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
""",
    )
    end = "    dist.barrier()\n    dist.destroy_process_group()\n"
    done = python(tmp_path, start + LOOP.format(SIZES) + end, str(forks.LAUNCHER), "--standalone", "--nproc-per-node=2")
    assert done.returncode == 0, done.stderr
    (folder,) = [path for path in (tmp_path / "dptune-runs").iterdir() if path.is_dir()]
    assert [windows(facts) for facts in facts_in(folder)] == [WHOLE, WHOLE]
    assert done.stderr.count("dptune: recorded in") == 1
    assert report(folder)["measured"]["world_size"] == 2


@pytest.mark.thorough
def test_it_stands_aside_where_the_command_records(tmp_path: Path) -> None:
    command = ("-m", "dptune", "profile", "--run-dir", "outer", "--continue", "--warmup", "2", "--untraced", "3")
    done = python(tmp_path, START + LOOP.format(f"'inner', {SIZES}"), *command, "--light", "3", "--detailed", "1")
    assert done.returncode == 0, done.stderr
    assert "`dptune profile` records this process; dptune.profile() does nothing" in done.stderr
    assert not (tmp_path / "inner").exists()
    assert [facts.ended for facts in facts_in(tmp_path / "outer")] == ["complete"]


@pytest.mark.thorough
def test_a_step_outside_of_the_block_is_a_mistake_and_negative_counts_are_too(tmp_path: Path) -> None:
    done = python(tmp_path, START + "    dptune.profile().step()\n")
    assert "RuntimeError: dptune.profile: step() outside of" in done.stderr
    done = python(tmp_path, START + "    dptune.profile(light=-1)\n")
    assert "ValueError: dptune.profile: numbers of steps and seconds cannot be negative" in done.stderr


def test_in_a_notebook(tmp_path: Path) -> None:
    """IPython runs one cell after another."""
    if importlib.util.find_spec("IPython") is None:
        pytest.skip("IPython is not installed")
    cells = [textwrap.dedent(START), textwrap.dedent(LOOP.format(SIZES)), textwrap.dedent(LOOP.format(SIZES))]
    script = f"""
    import sys
    from IPython.core.interactiveshell import InteractiveShell
    sys.argv = ["ipython"]
    shell = InteractiveShell.instance()
    for cell in {cells}:
        shell.run_cell(cell).raise_error()
    """
    done = python(tmp_path, script, IPYTHONDIR=str(tmp_path / "ipython"))
    assert done.stdout.count("done True") == 2, done.stdout + done.stderr
    folders = [path for path in (tmp_path / "dptune-runs").iterdir() if path.is_dir()]
    assert all("-notebook" in folder.name for folder in folders)
    assert [windows(facts) for folder in folders for facts in facts_in(folder)] == [WHOLE, WHOLE]


@pytest.mark.thorough
def test_a_notebook_file(tmp_path: Path) -> None:
    """IPython reads the file, and runs its cells."""
    pytest.importorskip("IPython")
    kind = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
    cells = [textwrap.dedent(START), textwrap.dedent(LOOP.format(SIZES))]
    notebook = {
        "cells": [{**kind, "id": f"c{number}", "source": cell} for number, cell in enumerate(cells)],
        "metadata": {"language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    (tmp_path / "tune.ipynb").write_text(json.dumps(notebook))
    words = [sys.executable, "-m", "IPython", "--no-banner", "--colors=NoColor", "tune.ipynb"]
    env = environment(**QUIET, IPYTHONDIR=str(tmp_path / "ipython"))
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.stdout.count("done True") == 1, done.stdout + done.stderr
    (folder,) = [path for path in (tmp_path / "dptune-runs").iterdir() if path.is_dir()]
    assert [windows(facts) for facts in facts_in(folder)] == [WHOLE]


CALLBACKS = {
    "lightning": """
        import lightning, torch
        from dptune.integrations.lightning import ProfileCallback
        class Model(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(8, 8)
            def training_step(self, batch, index):
                return self.layer(batch).sum()
            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.1)
        quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_steps=20,
            accumulate_grad_batches=2,
            callbacks=[ProfileCallback("mine", SIZES)],
            **quiet,
        )
        trainer.fit(Model(), torch.utils.data.DataLoader(torch.randn(256, 8), batch_size=4))
        print("steps", trainer.global_step)
    """,
    "transformers": """
        import torch
        from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
        from dptune.integrations.transformers import ProfileCallback
        sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=32)
        data = [{"input_ids": torch.arange(8), "labels": torch.tensor(n % 2)} for n in range(256)]
        arguments = TrainingArguments(
            "out", max_steps=20, gradient_accumulation_steps=2, per_device_train_batch_size=4, use_cpu=True,
            report_to=[], save_strategy="no", disable_tqdm=True,
        )
        model = BertForSequenceClassification(BertConfig(**sizes))
        trainer = Trainer(model, arguments, train_dataset=data, callbacks=[ProfileCallback("mine", SIZES)])
        trainer.train()
        print("steps", trainer.state.global_step)
    """,
}


# What the frameworks call, by modules that stand in for them: gradients of two batches make a step.
CALLS = {
    "lightning": (
        "lightning.pytorch",
        "Callback",
        """
    from types import SimpleNamespace
    trainer = SimpleNamespace(global_step=7)
    callback.on_train_start(trainer, None)
    for number in range(40):
        model(torch.randn(4, 8)).sum().backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
            trainer.global_step += 1
        callback.on_train_batch_end(trainer, None, None, number)
    callback.on_train_end(trainer, None)
    """,
    ),
    "transformers": (
        "transformers",
        "TrainerCallback",
        """
    callback.on_train_begin(None, None, None)
    for _ in range(20):
        for _ in range(2):
            model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        callback.on_step_end(None, None, None)
    callback.on_train_end(None, None, None)
    """,
    ),
}


@pytest.mark.parametrize("framework", CALLS)
def test_what_a_framework_calls(framework: str, tmp_path: Path) -> None:
    module, base, calls = CALLS[framework]
    start = f"""
    import sys
    from types import ModuleType
    for name in {[module.partition(".")[0], module]}:
        sys.modules[name] = ModuleType(name)
    sys.modules[{module!r}].{base} = object
    from dptune.integrations.{framework} import ProfileCallback
    callback = ProfileCallback("mine", {SIZES})
    """
    check_callback(python(tmp_path, textwrap.dedent(start) + textwrap.dedent(START) + textwrap.dedent(calls)), tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("framework", CALLBACKS)
def test_callback(framework: str, tmp_path: Path) -> None:
    """Steps are optimizer steps, though gradients are accumulated over two batches."""
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    done = python(tmp_path, CALLBACKS[framework].replace("SIZES", SIZES))
    check_callback(done, tmp_path)
    assert done.stdout.splitlines()[-1] == "steps 20"


def check_callback(done: subprocess.CompletedProcess[str], folder: Path) -> None:
    assert done.returncode == 0, done.stderr
    (facts,) = facts_in(folder / "mine")
    assert windows(facts) == WHOLE
    assert {calls for window in facts.windows for calls in window.backwards} == {2}
