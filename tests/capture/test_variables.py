"""Variables of the environment set from outside: set, removed, joined with dptune's own, or refused."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from dptune.capture import launch
from dptune.capture.injected.record.plan import VARIABLE, Plan
from dptune.errors import UsageError
from dptune.knobs import knob
from dptune.runfile.record import Schedule

from .conftest import WITHOUT_COMPILER
from .launching import facts_in, record_in, run_here, surroundings

SCRIPT = """\
import os, torch
try:
    import beside
except ImportError:
    beside = None
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
print(os.environ.get("GIVEN"), beside is not None)
"""
WINDOWS = ("--warmup", "1", "--untraced", "2", "--light", "0", "--detailed", "0", "-q", "--continue")


def plan(**settings: str | None) -> Plan:
    return Plan("run", 0, Schedule(1, 1, 0, 0), settings={f"env.{name}": value for name, value in settings.items()})


def test_a_variable_is_set_or_removed_for_the_script() -> None:
    base = {"GIVEN": "users", "OTHER": "users"}
    assert launch.environment(plan(GIVEN="mine"), base)["GIVEN"] == "mine"
    made = launch.environment(plan(GIVEN=None), base)
    assert "GIVEN" not in made
    assert made["OTHER"] == "users"


def test_a_path_is_joined_to_the_recorders_own() -> None:
    own = launch.environment(plan(), {})["PYTHONPATH"]
    assert launch.environment(plan(), {"PYTHONPATH": "/users"})["PYTHONPATH"] == f"{own}{os.pathsep}/users"
    assert launch.environment(plan(PYTHONPATH="/x"), {"PYTHONPATH": "/users"})["PYTHONPATH"] == f"{own}{os.pathsep}/x"
    assert launch.environment(plan(PYTHONPATH=None), {"PYTHONPATH": "/users"})["PYTHONPATH"] == own


@pytest.mark.parametrize("name", [VARIABLE, "DPTUNE_TRIAL"])
def test_a_variable_of_dptune_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"^DPTUNE_\\* variables are reserved for dptune .*: env.{name}$") as refused:
        knob(f"env.{name}")
    assert refused.value.hint


@pytest.mark.records
def test_the_script_has_them_and_is_recorded(tmp_path: Path) -> None:
    """Started by a shell script, whose path is all that dptune has."""
    pytest.importorskip("torch", reason="recording needs torch")
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "run.sh").write_text("#!/bin/sh\nexec python train.py\n")
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "beside.py").write_text("")
    path = os.pathsep.join(map(str, (tmp_path / "more", WITHOUT_COMPILER)))
    words = ("--set", "env.GIVEN=default", "--set", f"env.PYTHONPATH={path}")
    target = ("--run-dir", "run", "run.sh")
    done = run_here("profile", *WINDOWS, *words, *target, cwd=tmp_path, env={"GIVEN": "users"})
    assert done.status == 0, done.err
    assert done.out.startswith("None True")
    assert "did not take effect" not in done.err
    (facts,) = facts_in(tmp_path / "run")
    assert {one.name: one.value for one in facts.variables} == {"GIVEN": None, "PYTHONPATH": path}
    record = record_in(tmp_path / "run")
    assert (record.launched_by, record.command, record.ending.how) == ("command", ["run.sh"], "complete")


@pytest.mark.records
def test_lines_for_a_shell_unset_what_is_removed(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="recording needs torch")
    words = ("profile", "--env", "--run-dir", "run", "--set", "env.GIVEN=default")
    done = run_here(*words, cwd=tmp_path, env={"GIVEN": "users"})
    assert done.status == 0, done.err
    shell = f"{done.out}\necho GIVEN=${{GIVEN-unset}}"
    told = subprocess.run(
        ["/bin/sh", "-c", shell], env=surroundings(GIVEN="users"), capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == "GIVEN=unset"
