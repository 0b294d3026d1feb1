"""`dptune whatif` on a recording of two ranks, and what it says where it cannot tell."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dptune.measured.inferred import InferredFacts
from dptune.runfile import json_files
from dptune.runfile.facts import Facts
from dptune.runfile.links import KindTimes, LinkRecord, SizeTimes
from dptune.runfile.loader import LoaderFacts
from dptune.runfile.record import RunRecord
from dptune.trace import load
from dptune.whatif.cpu.buckets import Caps, assign
from dptune.whatif.predicting import _has, _more_workers, _offered

from .. import in_process  # noqa: TID252 - tests are no installed package
from ..kept_traces import keeping  # noqa: TID252 - tests are no installed package
from ..quiet import as_if_alone  # noqa: TID252 - tests are no installed package

WITHOUT_COMPILER = Path(__file__).parents[1] / "without_compiler"
TRAIN = """\
import torch
import torch.distributed as dist
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(1)
dist.init_process_group("gloo")
model = nn.Sequential(*[nn.Linear(300, 300) for _ in range(6)])
model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(200):
    model(torch.randn(256, 300)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
dist.destroy_process_group()
"""

pytestmark = pytest.mark.records


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    pytest.importorskip("torch", reason="recording needs torch")
    folder = tmp_path_factory.mktemp("whatif")
    (folder / "train.py").write_text(TRAIN)
    words = ("profile", "-q", "--no-links", "--run-dir", "base", "--nproc-per-node", "2", "train.py")
    done = recording(folder, *words)
    assert done.returncode == 0, done.stderr
    as_if_alone(folder / "base")
    json_files.write(folder / "base" / "links.json", swept())
    with keeping(folder):
        yield folder


def swept() -> LinkRecord:
    """A link of 100 us and 1 GB/s, as `dptune links` would find it if nothing disturbed it."""
    sizes = []
    for size in (4096, 65536, 2**20, 4 * 2**20):
        took = 100e-6 + size / 1e9
        sizes.append(SizeTimes(size, took, 0.99 * took, 1.01 * took, samples=5, calls=50))
    kind = KindTimes("all_reduce", [0, 1], sizes)
    return LinkRecord(backend="gloo", world_size=2, hosts=["a", "a"], devices=["cpu", "cpu"], kinds=[kind])


def run(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return in_process.dptune(*words, "--no-cache", cwd=cwd)  # what is decoded and measured is kept: kept_traces.py


def recording(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(WITHOUT_COMPILER)}
    return in_process.recording(*words, cwd=cwd, env=env)


def told(folder: Path, *words: str) -> dict[str, Any]:
    done = run(folder, "whatif", "base", "--format", "json", *words)
    assert done.returncode in (0, 1), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_buckets_are_those_that_torch_made(recorded: Path) -> None:
    for facts in load([recorded / "base"]).facts.values():
        (ddp,) = facts.ddp
        sizes = [ddp.gradient_sizes[index] for index in ddp.grad_ready_order]
        assert sum(sizes) == ddp.gradient_bytes == 6 * (300 * 300 + 300) * 4
        assert ddp.first_bucket_bytes == ddp.bucket_cap_bytes == 2**19
        made = [sum(sizes[place] for place in bucket) for bucket in assign(sizes, Caps((2**19,)))]
        assert made == ddp.rebuilt_bucket_sizes


def test_what_it_rests_on_is_told_and_the_present_setting_changes_nothing(recorded: Path) -> None:
    found = told(recorded, "--sweep", "ddp.bucket_cap_mb=0.5,0.1,100")
    assert found["error_share"] == pytest.approx(
        abs(found["replayed_ns"] - found["measured_ns"]) / found["measured_ns"],
        abs=1e-6,  # what is told is in whole nanoseconds
    )
    assert found["link"] == "dptune links (base/links.json)"
    day_ago = datetime.fromisoformat(json_files.read(recorded / "base" / "run.json", RunRecord).recorded) - timedelta(
        hours=26
    )
    json_files.write(recorded / "old.json", replace(swept(), measured=day_ago.isoformat()))
    old = told(recorded, "--links", "old.json", "--set", "ddp.bucket_cap_mb=100")
    assert old["link"] == "dptune links (old.json, measured 26 hours before this run)"
    same, *others = found["predictions"]
    assert [one["changes"]["ddp.bucket_cap_mb"] for one in found["predictions"]] == [0.5, 0.1, 100]
    if max(found["error_share"], found["held_out_share"]) > 0.10:
        assert same["step_ns"] == found["measured_ns"]  # it changes nothing, whatever the replay misses
        assert {one["step_ns"] for one in others} == {None}
        assert all("the unchanged replay misses" in one["missing"]["step_ns"] for one in others)
        assert found["floor_ns"] is None
    else:
        assert 0 <= found["floor_ns"] <= found["measured_ns"]
        assert same["step_ns"] == found["measured_ns"]
        assert all(one["low_ns"] <= one["step_ns"] <= one["high_ns"] for one in [same, *others])


def test_the_best_is_looked_for(recorded: Path) -> None:
    found = told(recorded)
    if max(found["error_share"], found["held_out_share"]) > 0.10:
        assert found["curve"] == found["predictions"] == []
        return
    default, *others = found["curve"]
    assert default["cap_mb"] is None
    assert default["buckets"] == 2
    assert [one["buckets"] for one in others] == sorted((one["buckets"] for one in others), reverse=True)
    assert others[-1]["buckets"] == 1
    quickest = min(one["step_ns"] for one in found["curve"])
    for one in found["predictions"]:
        if one["step_ns"] is not None:
            assert one["step_ns"] <= quickest + 2


@pytest.mark.thorough
def test_the_page_of_a_search(recorded: Path) -> None:
    found = told(recorded)
    missed = max(found["error_share"], found["held_out_share"]) > 0.10
    done = run(recorded, "whatif", "base")
    assert missed or done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert ("so no search was run" in said) == missed != ("Predicted step by bucket size" in said)


def test_a_bound_is_no_prediction(recorded: Path) -> None:
    (one,) = told(recorded, "--set", "optimizer.fused=true")["predictions"]
    assert one["low_ns"] > 0
    assert one["step_ns"] is None
    too_far = "the unchanged replay misses" in one["missing"]["high_ns"]
    assert too_far or one["missing"]["high_ns"].startswith("the model gives only")


def test_what_no_model_tells_of_is_said(recorded: Path) -> None:
    done = run(recorded, "whatif", "base", "--set", "cudnn.benchmark=true")
    assert done.returncode == 1
    assert "Not available" in done.stdout
    found = told(recorded, "--set", "cudnn.benchmark=true")
    why = found["predictions"][0]["missing"]["step_ns"]
    assert why == "no step model predicts cudnn.benchmark" or "the unchanged replay misses" in why


def test_a_value_that_is_swept_twice_is_predicted_once(recorded: Path) -> None:
    found = told(recorded, "--sweep", "ddp.bucket_cap_mb=1,25,1.0")
    assert [one["changes"]["ddp.bucket_cap_mb"] for one in found["predictions"]] == [1.0, 25.0]
    usual = told(recorded, "--sweep", "loader.num_workers")
    assert [one["changes"]["loader.num_workers"] for one in usual["predictions"]] == [1, 2, 4, 8]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--set", "ddp.bucket"), "--set takes a knob and its value"),
        (("--sweep", "ddp.bucket_cap"), "unknown knob 'ddp.bucket_cap'"),
        (("--sweep", "world_size=4", "--world-size", "8"), "only one sweep at a time"),
        (("--set", "world_size=4", "--world-size", "8"), "world_size is both set and swept"),
        (
            ("--set", "ddp.bucket_cap_mb=1", "--sweep", "ddp.bucket_cap_mb=5,25"),
            "ddp.bucket_cap_mb is both set and swept",
        ),
        (("--sweep", "ddp.bucket_cap_mb_list=1,2"), "ddp.bucket_cap_mb_list cannot be swept"),
        (("--sweep", "optimizer.betas"), "give one: --set optimizer.betas=0.9,0.999"),
        (("--set", "ddp.bucket_cap_mb_list=1,0,5"), "numbers with commas between of MiB, at least 1e-06"),
        (("--links", "base/run.json"), "run.json has no link measurements"),
        (("--world-size", "x"), "world_size cannot be 'x'"),
        (("--set", "world_size=4,8"), "to try several: --sweep world_size=4,8"),
        (("--sweep", "link.alpha_us"), "--sweep link.alpha_us needs values"),
        (("--sweep", "ddp.bucket_cap_mb="), "--sweep ddp.bucket_cap_mb needs values"),
        (("--sweep", "ddp.no_sync="), "like --sweep ddp.no_sync=true,false"),
        (("--sweep", "allreduce.algorithm"), "like --sweep allreduce.algorithm=ring,tree,hierarchical"),
        (("--sweep", "ddp.no_sync", "--sweep", "ddp.comm_hook"), "only one sweep at a time"),
        (("--set", "ddp.bucket_cap_mb=1", "--set", "ddp.bucket_cap_mb_list=1,2"), "bucket sizes are set twice"),
        (("--sweep", "ddp.bucket_cap_mb=1,x"), "ddp.bucket_cap_mb cannot be 'x'"),
    ],
)
def test_what_is_no_change_is_refused(recorded: Path, words: tuple[str, ...], said: str) -> None:
    done = run(recorded, "whatif", "base", *words)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_rank_without_facts_is_named(recorded: Path, tmp_path: Path) -> None:
    shutil.copytree(recorded / "base", tmp_path / "base")
    (tmp_path / "base" / "rank-00001.facts.json").unlink()
    for words, status in (((), 1), (("--strategies",), 0), (("--set", "ddp.no_sync=true"), 1)):
        with keeping(tmp_path):
            done = run(tmp_path, "whatif", "base", *words)
        assert done.returncode == status  # strategies have memory without a model of the step
        said = " ".join(done.stdout.split())
        assert "Rank 1 has a trace but no facts." in said
        assert said.startswith("Partial ")


def test_of_what_cannot_be_judged_nothing_is_told(real_traces: Path, tmp_path: Path) -> None:
    damaged = str(real_traces / "damaged" / "two_ranks_overwritten_tail.json")
    done = run(tmp_path, "whatif", damaged, "--no-cache", "--set", "host.times=0", "--format", "json")
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert "several ranks wrote to one file" in found["missing"]["measured_ns"]
    assert found["predictions"][0]["low_ns"] is None


def test_a_trace_of_gpus_that_dptune_did_not_record(real_traces: Path, tmp_path: Path) -> None:
    words = ("whatif", str(real_traces / "torchrec_resnet18_2xv100"), "--no-cache")
    done = run(tmp_path, *words, "--set", "ddp.bucket_cap_mb=1")
    assert done.returncode == 1, done.stderr
    said = " ".join(done.stdout.split())
    assert "per step, traced: the profiler slows the host." in said
    assert "Not available: the trace does not show when DDP's gradients are ready" in said
    done = run(tmp_path, *words, "--sweep", "host.times=0,0.5,1", "--format", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    without_host, *_, same = found["predictions"]
    assert without_host["step_ns"] is None, "ranks wait in collectives that were not matched: a range"
    assert without_host["missing"]["step_ns"].startswith("no single step time is predicted")
    for end in ("low_ns", "high_ns"):
        ends = [one[end] for one in found["predictions"]]
        assert ends == sorted(ends)
    assert same["step_ns"] == found["measured_ns"]


def test_the_straggler_of_a_trace_is_listed_and_samples_have_their_own_reason(
    real_traces: Path, tmp_path: Path
) -> None:
    """Its rank 2 is 1,005 ms late in the median step, which its collectives show although their sizes are unknown.

    In one of its two steps the others wait in the allocator, which the trace does not show.
    """
    words = ("whatif", str(real_traces / "torchrec_straggler_4xv100"), "--no-cache")
    done = run(tmp_path, *words, "--format", "json")
    found = json.loads(done.stdout)
    by_name = {next(iter(one["changes"])): one for one in found["predictions"]}
    removed = by_name["straggler.removed"]
    assert removed["step_ns"] == pytest.approx(found["measured_ns"] - 1005e6, abs=30e6)
    assert removed["low_ns"] < removed["step_ns"] < removed["high_ns"] < 0.2 * found["measured_ns"]
    (of_more,) = json.loads(run(tmp_path, *words, "--set", "world_size=8", "--format", "json").stdout)["predictions"]
    assert "do not record the sizes of collectives" in of_more["missing"]["step_ns"]
    bound = by_name["precision.autocast"]
    assert "only an upper bound" in bound["missing"]["step_ns"]
    assert bound["missing"]["global_batch"] == found["missing"]["global_batch"] != bound["missing"]["step_ns"]
    done = run(tmp_path, *words, "--strategies")
    assert done.returncode == 1
    assert "--strategies needs a recording of a DistributedDataParallel module" in " ".join(done.stdout.split())


def test_a_rank_that_is_no_longer_late_lengthens_no_step(real_traces: Path, tmp_path: Path) -> None:
    """Three steps, of which its removal lengthens one and shortens another: little is known, and no more than that."""
    words = ("whatif", str(real_traces / "torchrec_resnet18_2xv100"), "--no-cache", "--set", "straggler.removed=true")
    found = json.loads(run(tmp_path, *words, "--format", "json").stdout)
    (removed,) = found["predictions"]
    assert removed["low_ns"] < found["measured_ns"] < removed["high_ns"] <= 1.02 * found["measured_ns"]


@pytest.mark.long
def test_a_bound_of_another_gpu_is_none_of_the_traced_host(real_traces: Path, tmp_path: Path) -> None:
    """The profiler slows the host, which limits these traced steps: a replay hides what another GPU may save, which is
    no less than what 16-bit precision on this one may.
    """
    trace = real_traces / "kineto_resnet50_loader" / "234cf25_worker0.1623212756351.pt.trace.json.gz"
    low_ns = []
    for setting in ("gpu.model=H100 80GB HBM3", "precision.autocast=fp16", "gpu.model=V100-SXM2-16GB"):
        done = run(tmp_path, "whatif", str(trace), "--no-cache", "--set", setting, "--format", "json")
        found = json.loads(done.stdout)
        low_ns.append(found["predictions"][0]["low_ns"])
    assert low_ns[0] < low_ns[1] < 0.5 * found["measured_ns"]
    assert low_ns[2] == found["measured_ns"], "the same GPU saves nothing"


def test_a_trace_of_a_cpu_that_dptune_did_not_record_has_no_model(real_traces: Path, tmp_path: Path) -> None:
    trace = real_traces / "cpu_only" / "84dcf76_local_test_forward_hf_gpt2.json.gz"
    done = run(tmp_path, "whatif", str(trace), "--set", "ddp.bucket_cap_mb=1", "--no-cache")
    assert done.returncode == 1, done.stderr
    assert "No model " in " ".join(done.stdout.split())


def test_the_model_is_of_the_middle_process(recorded: Path, tmp_path: Path) -> None:
    """Two further processes compute half as much again in backward passes; on two hosts collectives take the rest."""
    from dptune.commands.shared.reading import measured_of
    from dptune.whatif.run_model import RunModel

    def ground(folder: Path, hosts: str, processes: int) -> tuple[float, float]:
        shutil.copytree(recorded / "base", folder)
        for rank, host in enumerate(hosts):
            name = f"rank-{rank:05d}.facts.json"
            facts = json.loads((folder / name).read_text())
            facts["host"], facts["device"] = host, {**facts["device"], "cores": 2, "usable_cores": 2}
            (folder / name).write_text(json.dumps(facts))
            for window in facts["windows"]:
                window["backward_cpu_ns"] = [round(1.5 * ns) for ns in window["backward_cpu_ns"]]
            for number in range(1, processes):
                other = folder / "repeats" / str(number)
                other.mkdir(parents=True, exist_ok=True)
                facts["windows"][0]["durations_ns"][0] += 1  # or it would be a copy
                (other / name).write_text(json.dumps(facts))
                shutil.copy(recorded / "base" / "run.json", other)
        model = RunModel.of(*measured_of([str(folder)])).model
        return model.steps[0][0].passes[0].backward_ns, model.communication_times

    crowded, unchanged = ground(tmp_path / "crowded", "aa", 1)
    apart, times = ground(tmp_path / "apart", "ab", 3)
    assert (apart, unchanged) == (pytest.approx(1.5 * crowded), 1)
    assert times != 1


def test_settings_of_fsdp_are_none_of_a_trace_without_it() -> None:
    """Where nothing was inferred of it, they may be."""
    none = InferredFacts(facts=Facts(rank=0, fsdp=[]), confidence={"fsdp": "medium"})
    unknown = InferredFacts(facts=Facts(rank=0), confidence={})
    for inferred, has in ((none, False), (unknown, True)):
        measured = SimpleNamespace(known={"inferred": inferred}.get)
        assert _has(measured, "fsdp.prefetch") == has  # type: ignore[arg-type]
        assert _has(measured, "host.times")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("architecture", "peaks", "dtype"),
    [
        ("Volta or later", (), "fp16"),
        ("Turing or later", (), "fp16"),
        ("", (), "bf16"),
        ("", ("fp32", "fp16"), "fp16"),  # a V100 that is named
        ("", ("fp32", "fp16", "bf16"), "bf16"),
    ],
)
def test_bf16_is_offered_only_where_the_gpu_may_have_it(architecture: str, peaks: tuple[str, ...], dtype: str) -> None:
    measured = SimpleNamespace(matmul=SimpleNamespace(architecture=architecture, peaks=dict.fromkeys(peaks, 1.0)))
    offered = dict(_offered(measured, 3))  # type: ignore[arg-type]
    assert (offered["precision.autocast"], offered["loader.num_workers"]) == (dtype, 3)


@pytest.mark.parametrize(
    ("workers", "has_workers", "more"), [(4, True, 8), (0, False, 1), (None, True, 8), (None, False, 1)]
)
def test_more_workers_than_the_script_has_are_offered(workers: int | None, has_workers: bool, more: int) -> None:
    """A step with one worker is no change worth predicting where four wait."""
    loaders = [] if workers is None else [LoaderFacts(num_workers=workers)]
    program: Any = SimpleNamespace(has_workers=has_workers)
    assert _more_workers(program, [Facts(rank=0, loaders=loaders)]) == more
