"""The check for a real card, rehearsed on a CPU; its time limits, its resuming, and what it packs and keeps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.gpu import driver, keeping, packing
from tests.gpu.place import SCRIPTS, CommandError, Done, Place, kill_marked
from tests.gpu.stage import STAGES, Stage

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing torch is most of what the processes of these tests do."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "without_compiler"))


def check(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.gpu", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    pytest.importorskip("torch", reason="the check records, which needs torch")
    folder = tmp_path_factory.mktemp("gpu-check")
    words = ("--device", "cpu", "--jobs", "2", "--time-limit", "900")
    done = check(*words, "--out", str(folder / "out"), "--work", str(folder / "work"))
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, json.loads((folder / "out" / "result.json").read_text())


@pytest.mark.records
@pytest.mark.alone
@pytest.mark.thorough
def test_every_stage_runs_on_a_cpu(rehearsal: tuple[Path, dict[str, Any]]) -> None:
    folder, result = rehearsal
    assert {name: stage["status"] for name, stage in result["stages"].items()} == {
        stage.name: "complete" for stage in STAGES
    }
    assert not any(stage["failures"] for stage in result["stages"].values())
    capture = result["stages"]["capture"]["figures"]
    assert capture["recording"]["ending"] == "complete"
    assert set(capture["recording"]["windows"]) == {"untraced", "light", "detailed"}
    assert capture["check"]["status"] in (0, 1)
    account = result["stages"]["known"]["figures"]["parts"]["account_ms"]
    assert account["compute"] + account["idle"] == pytest.approx(account["window"], rel=1e-9)
    advice = [each["rule"] for each in result["stages"]["planted"]["figures"]["starved loader"]["advice"]]
    assert next(rule for rule in advice if rule != "DP405") == "DP501"  # DP405: CPUs that are slow in bf16
    assert "why" in result["stages"]["predict"]["figures"]["predicted"]["batch x2"]
    assert result["stages"]["ranks"]["figures"]["gloo fsdp2"]["collectives"]
    pairs = result["stages"]["pairs"]["figures"]["measured"]
    assert set(pairs["traced_steps"]) == {"pairs-ddp", "pairs-ddp-bucket-1", "pairs-fsdp"}
    assert all(steps == [1, 1] for steps in pairs["traced_steps"].values())
    assert all(len(rounds) == 1 and len(rounds[0]) == 2 for rounds in pairs["medians_ms"].values())
    assert set(result["stages"]["link"]["figures"]["measured"]["medians_ms"]) == {"1", "5"}
    _comes_back_whole(folder / "out", result)
    _again_runs_nothing(folder)


def _comes_back_whole(out: Path, result: dict[str, Any]) -> None:
    """No more than eight files under 16 MiB, and each recording in one of them."""
    files = list(out.iterdir())
    assert len(files) <= 8
    assert all(path.stat().st_size < 16 * 2**20 for path in files)
    names = set()
    for path in out.glob("traces-*.tar"):
        with tarfile.open(path) as archive:
            names.update(archive.getnames())
    assert "capture-all/rank-00000.trace.json.gz" in names
    assert {"ranks-gloo-fsdp2/rank-00000.facts.json", "ranks-gloo-fsdp2/rank-00001.facts.json"} <= names
    assert result["packed"]["traces-1.tar"]


def _again_runs_nothing(folder: Path) -> None:
    done = check("--device", "cpu", "--out", str(folder / "out"), "--work", str(folder / "work"))
    assert done.returncode == 0
    assert done.stdout.count("complete already") == len(STAGES)


def test_a_check_that_is_ended_writes_what_it_found(tmp_path: Path) -> None:
    words = ("--device", "cpu", "--stages", "known,link", "--out", str(tmp_path / "out"), "--work", str(tmp_path / "w"))
    process = subprocess.Popen([sys.executable, "-m", "tests.gpu", *words], cwd=ROOT, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not (tmp_path / "w" / "stage-known.log").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    process.terminate()
    assert process.wait(300) == 1
    stages = json.loads((tmp_path / "out" / "result.json").read_text())["stages"]
    assert stages["known"]["status"] in ("failed", "complete")  # the latter where it was over before the signal came
    assert stages["link"]["status"] == "no time"


def a_place(out: Path, seconds: float = 300.0) -> Place:
    return Place("made", "cpu", out, time.monotonic() + seconds)


def test_a_failing_case_is_put_down_and_the_next_one_runs(tmp_path: Path) -> None:
    place = a_place(tmp_path)
    place.case("fails", lambda: place.run([sys.executable, "-c", "print('what went wrong'); raise SystemExit(3)"]))
    place.case("runs", lambda: place.run([sys.executable, "-c", "print('{\"x\": 1}')"]).last_json)
    kept = json.loads((tmp_path / "stage-made.json").read_text())
    assert kept["figures"]["runs"] == {"x": 1}
    assert kept["failures"] == {"fails": "CommandError: exit status 3: what went wrong"}


def test_a_command_past_the_deadline_is_killed_with_its_children(tmp_path: Path) -> None:
    script = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).wait()"
    began = time.monotonic()
    with pytest.raises(CommandError, match="ran past the stage's time"):
        a_place(tmp_path, 1.0).run([sys.executable, "-c", script])
    assert time.monotonic() - began < 300  # however busy the machine is


def cut_off_after_a_word(out: Path, script: str) -> Done:
    """A script that prints and goes on, ended at its deadline: one that lets it start, however busy the machine is."""
    for seconds in (4.0, 20.0, 100.0):
        done = a_place(out, seconds).run([sys.executable, "-c", script], partial=True)
        assert done.cut_off
        if done.out:
            break
    return done


def test_ranks_in_sessions_of_their_own_are_killed_too(tmp_path: Path) -> None:
    sleeps = "import os, sys, time; print(os.getpid(), flush=True); time.sleep(600)"
    script = (
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {sleeps!r}], start_new_session=True).wait()"
    )
    done = cut_off_after_a_word(tmp_path, script)
    rank = Path("/proc") / done.out.strip() / "stat"
    deadline = time.monotonic() + 300
    while _runs(rank) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(rank)


def _runs(stat: Path) -> bool:
    """Whether a process is there and more than a zombie."""
    try:
        return ") Z" not in stat.read_text()
    except OSError:
        return False


def test_what_was_printed_before_the_deadline_is_kept(tmp_path: Path) -> None:
    script = 'import time; print(\'{"medians_ms": {"a": 1}}\', flush=True); time.sleep(600)'
    done = cut_off_after_a_word(tmp_path, script)
    assert (done.last_json, done.cut_off) == ({"medians_ms": {"a": 1}}, True)


def test_what_a_stage_left_behind_is_killed_by_its_mark(tmp_path: Path) -> None:
    script = [sys.executable, "-c", "import time; time.sleep(600)"]
    left = subprocess.Popen(script, env={**os.environ, "GPU_CHECK_STAGE": "made-1"}, start_new_session=True)
    other = subprocess.Popen(script, env={**os.environ, "GPU_CHECK_STAGE": "made-12"}, start_new_session=True)
    try:
        while b"GPU_CHECK_STAGE=made-1\0" not in Path(f"/proc/{left.pid}/environ").read_bytes():
            time.sleep(0.01)  # its program is being loaded
        kill_marked("GPU_CHECK_STAGE=made-1")
        assert left.wait(300) < 0
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_scripts_take_turns_on_the_card(tmp_path: Path) -> None:
    """Each holds its turn until it ends, also where it has children."""
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys, time; sys.path.insert(0, {str(SCRIPTS)!r})\n"
        "from turn import wait_for_turn\n"
        "wait_for_turn(); begun = time.monotonic(); time.sleep(0.3)\n"
        "print('{\"at\": [%r, %r]}' % (begun, time.monotonic()), flush=True)\n"
    )
    place = Place("made", "cuda", tmp_path, time.monotonic() + 300)
    place.cases({name: lambda: place.run([sys.executable, str(script)]).last_json["at"] for name in "abc"})
    assert place.failures == {}
    spans = sorted(place.figures[name] for name in "abc")
    assert all(earlier[1] <= later[0] for earlier, later in pairwise(spans))


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check does not start Python to ask torch for the machine."""
    monkeypatch.setattr(driver.Check, "_describe", lambda self, installing_s: None)


@pytest.mark.usefixtures("described")
def test_a_stage_that_overruns_keeps_what_it_found_and_the_next_one_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    def ended(process: subprocess.Popen[bytes], limit_s: float) -> int | None:
        process.kill()
        process.wait()
        name = process.args[3]  # type: ignore[index]
        started.append(name)
        (tmp_path / "work" / f"stage-{name}.json").write_text('{"figures": {"case": 1}, "failures": {}}')
        return None if name == "capture" else 0

    monkeypatch.setattr(driver, "_ended", ended)
    run = driver.Check("cpu", tmp_path / "out", tmp_path / "work", tmp_path / "none", 3600.0)
    assert run.run(STAGES[:2]) == 1
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert started == ["capture", "known"]
    assert [stage["status"] for stage in result["stages"].values()] == ["overran", "complete"]
    assert result["stages"]["capture"]["figures"] == {"case": 1}


@pytest.mark.usefixtures("described")
def test_without_time_a_stage_is_not_started(tmp_path: Path) -> None:
    run = driver.Check("cpu", tmp_path / "out", tmp_path / "work", tmp_path / "none", 1.0)
    assert run.run([Stage("known", 40)]) == 1
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["stages"]["known"]["status"] == "no time"


def test_without_a_card_it_says_so(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a card")
    run = driver.Check("cuda", tmp_path / "out", tmp_path / "work", tmp_path / "none", 3600.0)
    with pytest.raises(SystemExit, match="sees no CUDA device here"):
        run.run(STAGES)


def a_run(runs: Path, name: str, size: int) -> None:
    (runs / name).mkdir(parents=True)
    (runs / name / "run.json").write_text(json.dumps({"command": ["python", "/somewhere/train.py", "--x"]}))
    (runs / name / "rank-00000.trace.json.gz").write_bytes(b"0" * size)


def test_archives_are_bounded_and_what_does_not_fit_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MOST_BYTES", 10_000)
    monkeypatch.setattr(packing, "MOST_ARCHIVES", 2)
    for name, size in {"a": 5000, "b": 6000, "ranks-nccl-ddp": 6500, "c": 7000, "d": 20_000, "e": 500}.items():
        a_run(tmp_path / "runs", name, size)
    packed = packing.pack(tmp_path / "runs", tmp_path)
    # NCCL first although it is not small, then the smallest ones, wherever there is room
    assert packed == {
        "traces-1.tar": ["ranks-nccl-ddp"],
        "traces-2.tar": ["e", "a"],
        "left out": ["b", "c", "d"],
    }
    assert not (tmp_path / "traces-3.tar").exists()


def test_all_archives_fit_where_64_mib_may_come_back() -> None:
    assert packing.MOST_ARCHIVES * packing.MOST_BYTES < 63 * 2**20


def test_what_a_card_found_is_kept_with_small_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "ROOT", tmp_path)
    monkeypatch.setattr(keeping, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(keeping, "SAMPLES", tmp_path / "samples")
    out = tmp_path / "out"
    out.mkdir()
    for name, size in {"capture-all": 100, "ranks-nccl-ddp": 200, "planted-fp64": keeping.MOST_BYTES + 1}.items():
        a_run(tmp_path / "runs", name, size)
    packing.pack(tmp_path / "runs", out)
    machine = {"card": "NVIDIA H100 80GB HBM3", "torch": "2.11.0", "nccl": "2.28.9"}
    about = {"device": "cuda", "when": "2026-11-26T10:00:00+00:00", "commit": "unknown", "source": driver.source()}
    (out / "result.json").write_text(json.dumps({**about, "machine": machine, "stages": {}}))
    kept = list(keeping.keep(out))
    assert kept[0].startswith("results/nvidia-h100-80gb-hbm3-2026-11-26-")
    assert kept[1:] == ["samples/ranks-nccl-ddp", "samples/capture-all"]  # NCCL first; the largest is not kept
    assert json.loads((tmp_path / kept[0]).read_text())["commit"] == driver.commit()
    assert (
        "| `ranks-nccl-ddp` | `python train.py --x` | NVIDIA H100 80GB HBM3, torch 2.11.0, NCCL 2.28.9"
        in (tmp_path / "samples" / "README.md").read_text()
    )


def test_a_rehearsal_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text('{"device": "cpu"}')
    with pytest.raises(SystemExit, match="a rehearsal without a card"):
        list(keeping.keep(tmp_path))
