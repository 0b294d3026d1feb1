"""A forked process is like Python that is started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dptune.capture import launch
from dptune.capture.injected.record.plan import Plan
from dptune.runfile.record import Schedule

from . import forks

pytestmark = [
    pytest.mark.records,
    pytest.mark.skipif(not forks.HAS_CONFIG, reason="this Python has no _testinternalcapi.set_config: none is forked"),
]

SCRIPT = """
import json, os, random, resource, sys
early = [name for name in sys.modules if name.partition(".")[0] == "torch"]
import numpy
import torch
print(json.dumps({
    "early": early,
    "modules": sorted(set(sys.modules) - {"without_compiler", "_testinternalcapi"}),
    "words": [sys.argv, sys.orig_argv, __file__, __name__, sys._getframe().f_back is None],
    "path": sys.path,
    "flags": str(sys.flags),
    "dptune": {name: [one.__file__, one.__spec__.origin, type(one.__loader__).__name__, one.__package__,
                      getattr(one, "__path__", None), getattr(one, "_HERE", None),
                      {held: type(value).__name__ for held, value in vars(one).items()}]
               for name, one in sys.modules.items() if name.partition(".")[0] == "dptune"},
    "parts": [type(sys.modules["dptune"].capture.injected.observe.places.Places).__name__],
    "torch": [torch.__file__, torch.__spec__.origin, *(type(one.__loader__).__name__ for one in (torch, torch.nn))],
    "environment": {name: value for name, value in os.environ.items() if name not in ("MASTER_PORT", "DPTUNE_TRAINER")},
    "mask": os.umask(0o22),
    "folder": os.getcwd(),
    "limits": [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT")],
    "alone": "RANK" in os.environ or os.getppid() == PARENT,
    "threads": len(os.listdir("/proc/self/task")),
    "files": sorted(os.listdir("/proc/self/fd")),
    "drawn": [random.random(), numpy.random.random(), torch.rand(1).item()],
    "given": sys.stdin.read() if "RANK" not in os.environ else "",
}))
print("an error", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""
ALONE = ("train.py", "3")
RANKS = (str(forks.LAUNCHER), "--standalone", "--nproc-per-node=2", *ALONE)


def environment(place: Path, **more: str) -> dict[str, str]:
    plan = Plan(folder=str(place), launcher=os.getpid(), schedule=Schedule())
    kept = {name: value for name, value in forks.AT_FIRST.items() if name != forks.EACH_STARTED}
    return launch.environment(plan, {**kept, "PYTHONPATH": str(forks.HERE / "without_compiler"), **more})


@dataclass
class Ran:
    how: type
    printed: list[dict[str, Any]]
    errors: str
    status: int


def ran(start: Callable[..., Any], place: Path, words: tuple[str, ...]) -> Ran:
    """What each process of the script printed, in the order of ranks, what it wrote beside it, and the status."""
    (place / "train.py").write_text(SCRIPT.replace("PARENT", str(os.getpid())))
    (place / "in").write_text("given")
    with (place / "in").open() as given, (place / "out").open("w") as out, (place / "err").open("w") as err:
        words = [sys.executable, *words]
        process = start(words, env=environment(place), cwd=place, stdin=given, stdout=out, stderr=err)
        status = process.wait()
    printed = [json.loads(line) for line in (place / "out").read_text().splitlines()]
    printed.sort(key=lambda one: one["environment"].get("RANK", ""))
    return Ran(type(process), printed, (place / "err").read_text(), status)


@pytest.mark.parametrize(
    "words", [pytest.param(ALONE, id="alone"), pytest.param(RANKS, id="ranks", marks=pytest.mark.thorough)]
)
def test_the_script_finds_what_it_finds_where_python_is_started(tmp_path: Path, words: tuple[str, ...]) -> None:
    started, forked = ran(subprocess.Popen, tmp_path, words), ran(forks.popen, tmp_path, words)
    drawn = [number for one in started.printed + forked.printed for number in one.pop("drawn")]
    assert len(set(drawn)) == len(drawn)  # another in each process
    for one, other in zip(started.printed, forked.printed, strict=True):
        assert {key: (one[key], other[key]) for key in one if one[key] != other[key]} == {}
    assert (started.errors, started.status) == (forked.errors, forked.status)
    assert (started.how, forked.how, forked.status) == (subprocess.Popen, forks.Forked, 3)
    assert started.printed[0]["alone"]
    assert not started.printed[0]["early"]
    assert len(forked.printed[0]["dptune"]) > 100
    assert "torch.nn" in started.printed[0]["modules"]


@pytest.mark.parametrize(
    ("words", "variables", "why"),
    [
        (("program",), {}, "not a script"),
        (("-m", "train.py"), {}, "not a script"),
        (("-u", "train.py"), {}, "not a script"),
        (ALONE, {"OMP_NUM_THREADS": "2"}, "as torch loads: OMP_NUM_THREADS"),
        (ALONE, {"PYTHONPATH": ""}, "another PYTHONPATH"),
        (ALONE, {"PYTHONHASHSEED": "1"}, "as torch loads: PYTHONHASHSEED"),
        (ALONE, {forks.EACH_STARTED: "1"}, f"{forks.EACH_STARTED} is set"),
    ],
)
def test_python_is_started_where_a_fork_would_be_another(
    words: tuple[str, ...], variables: dict[str, str], why: str
) -> None:
    assert why in str(forks.why_started([sys.executable, *words], environment(Path(), **variables)))


def test_what_torch_names_once_its_compiler_is_used_keeps_no_script_from_being_forked() -> None:
    assert forks.why_started([sys.executable, *ALONE], environment(Path(), TORCHINDUCTOR_CACHE_DIR="cache")) is None


def test_a_relative_folder_is_that_of_the_one_who_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "train.py").write_text("open('written', 'a').write('.')")
    absolute = forks.popen([sys.executable, "train.py"], env=environment(tmp_path), cwd=tmp_path / "below")
    assert absolute.wait() == 0  # the server is there, and was started in another folder
    monkeypatch.chdir(tmp_path)
    process = forks.popen([sys.executable, "train.py"], env=environment(tmp_path), cwd=Path("below"))
    assert isinstance(process, forks.Forked)
    assert process.wait() == 0
    assert (tmp_path / "below" / "written").read_text() == ".."


def test_its_end_is_seen(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time; time.sleep(900)")
    process = forks.popen([sys.executable, "train.py"], env=environment(tmp_path), cwd=tmp_path)
    assert isinstance(process, forks.Forked)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0)
    process.kill()
    assert process.wait() == process.poll() == -9
