"""What holds of GPU predictions whatever the run: on hand-made programs, and on each public trace.

A trace is read once for all of them. Public traces are large, so most of them are read in thorough tests only.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path
from statistics import mean

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dptune.errors import DptuneError
from dptune.knobs import Value
from dptune.measured import Missing
from dptune.whatif.cpu.shared_link import Link
from dptune.whatif.gpu.assumed import Side
from dptune.whatif.gpu.changes import OF_LINK, PREDICTED, changed
from dptune.whatif.gpu.graph import COMPUTING, Kind
from dptune.whatif.gpu.program import Program
from dptune.whatif.gpu.uncertainty import unchanged
from dptune.whatif.scenarios import named

from .. import reading  # noqa: TID252 - tests are no installed package
from .test_gpu_units import simulated

SAMPLES = Path(__file__).parents[2] / "sample_traces" / "gpu"
TRACES = Path(__file__).parents[3] / "shared" / "real_traces"
SIMULATED = "units of fully_shard, simulated"
RECORDED = (f"sample/ranks-nccl-{strategy}" for strategy in ("fsdp", "ddp"))
of_links = pytest.mark.parametrize(
    "program", [SIMULATED, *(pytest.param(name, marks=pytest.mark.thorough) for name in RECORDED)], indirect=True
)
# Of units simulated ones, and of DDP a public one, which are smaller than our own.
QUICK = (SIMULATED, "torchrec_resnet18_2xv100", "single_gpu/1eeffb3_trace_05.json.gz")
FASTER: dict[str, dict[str, Value]] = {
    "link": {"link.gb_per_s": 1e6},
    "compute": {"compute.times": 0.5},
    "host": {"host.times": 0.5},
    "syncs": {"syncs.removed": True},
    "straggler": {"straggler.removed": True},
    "graphs": {"cuda.graphs": True},
    "gpu": {"gpu.model": "B200"},
    "view": {"ddp.gradient_as_bucket_view": True},
}
SAME: tuple[dict[str, Value], ...] = (
    {},
    {"host.times": 1.0},
    {"compute.times": 1.0},
    {"ddp.comm_hook": "none"},
    {"syncs.removed": False},
    {"straggler.removed": False},
)


def names() -> list[str]:
    """Each folder of public traces that is one run, each file of the others, and the recordings of this repository."""
    folders = (TRACES / name for name in ("nanogpt_8xh100", "torchrec_4xv100", "torchrec_qcomm_a_4xv100"))
    more = (TRACES / name for name in ("torchrec_qcomm_b_4xv100", "torchrec_straggler_4xv100", "single_gpu_mi300"))
    files = (
        path
        for folder in ("hta_training", "kineto_resnet50_loader", "nanogpt_adam_hook_h100", "single_gpu")
        for path in sorted((TRACES / folder).glob("*.json*"))
    )
    public = [str(path.relative_to(TRACES)) for path in (*folders, *more, *files)]
    samples = [f"sample/{path.name}" for path in sorted(SAMPLES.iterdir()) if path.is_dir()]
    return [name for name in (*public, *samples) if name not in QUICK]


ALL = [*QUICK, *(pytest.param(name, marks=pytest.mark.thorough) for name in names())]


@cache
def program_of(name: str) -> Program | None:
    """The program of a trace; None where it has none."""
    if name == SIMULATED:
        return simulated()
    path = SAMPLES / name.removeprefix("sample/") if name.startswith("sample/") else TRACES / name
    try:
        model = reading.modelled(path).model
    except (DptuneError, Missing):
        return None
    assert isinstance(model, Program)
    return model


@pytest.fixture
def program(request: pytest.FixtureRequest, real_traces: Path) -> Program:
    found = program_of(request.param)
    if found is None:
        pytest.skip("the trace holds no two GPU steps to replay")
    return found


each_trace = pytest.mark.parametrize("program", ALL, indirect=True)
# Where a program is changed dozens of times, the largest of those read each time is thorough, too.
small_ones = pytest.mark.parametrize(
    "program", [*QUICK[1:], pytest.param(QUICK[0], marks=pytest.mark.thorough), *ALL[len(QUICK) :]], indirect=True
)


def known(program: Program, change: dict[str, Value]) -> Program | None:
    try:
        return changed(program, change)
    except Missing:
        return None


@each_trace
def test_no_change_changes_nothing(program: Program) -> None:
    for change in SAME:
        assert unchanged(program, changed(program, change)), change


@each_trace
def test_what_is_quicker_makes_no_item_later(program: Program) -> None:
    """But for a straggler, each call of which takes what it takes on the others, and links that more may share then."""
    before, step_ns = program.run(), program.step_ns()
    for name, change in FASTER.items():
        after = known(program, change)
        if after is None:
            continue
        assert after.step_ns() <= step_ns * (1 + 1e-3), change
        if name != "straggler" and not program.transfers:
            assert max(now - then for now, then in zip(after.run(), before, strict=True)) <= 1e-3, change


@each_trace
def test_what_is_kept_of_a_program_holds_after_a_change(program: Program) -> None:
    """Where edges of a kind are, and when items come to pass: as of a program of the same edges that keeps nothing."""
    program.step_ns()
    for change in (*FASTER.values(), *SAME):
        after = known(program, change)
        if after is None:
            continue
        anew = replace(after, edges=[[*edges] for edges in after.edges])
        assert after.run() == anew.run(), change
        assert (after.step_ns(), after.busy_ns()) == (anew.step_ns(), anew.busy_ns()), change
        for kind in Kind:
            assert {*anew.places((kind,))} <= {*after.places((kind,))}, change


@of_links
def test_only_changes_of_the_link_differ_with_it(program: Program) -> None:
    other, seen = program.over(Link(5e3, 7.0)), 0
    for name in PREDICTED - OF_LINK:
        for value in values(name):
            mine, same = known(program, {name: value}), known(other, {name: value})
            seen += mine is not None
            assert (None if mine is None else mine.edges) == (None if same is None else same.edges), (name, value)
    assert seen > 20
    assert changed(program, {"world_size": 4}).edges != changed(other, {"world_size": 4}).edges


def values(name: str) -> list[Value]:
    """Some that a change takes."""
    found: list[Value] = []
    for word in (*named(name).choices, "true", "false", "2", "0.5"):
        try:
            found.append(named(name).parse(word))
        except DptuneError:
            continue
    return found


@each_trace
def test_a_faster_link_never_lengthens_a_step(program: Program) -> None:
    if program.link is None or not program.messages:  # no collective of known size
        with pytest.raises(Missing):
            changed(program, {"link.gb_per_s": 1.0})
        return
    steps = []
    for rate in (0.1, 0.5, 1.0, 2.0, 10.0):
        relinked = changed(program, {"link.gb_per_s": rate * program.link.bytes_per_ns})
        steps.append(relinked.step_ns())
    assert steps == sorted(steps, reverse=True)


@each_trace
def test_a_step_follows_what_limits_it(program: Program) -> None:
    """Twice the kernels' time adds at least what a step's kernels take beyond the step, and at most all of it.

    A step that kernels fill scales with them; one that waits for its host has room for them.
    """
    step_ns, kernels_ns = program.step_ns(), busiest_ns(program)
    twice = changed(program, {"compute.times": 2.0}).step_ns()
    assert twice >= min(2 * kernels_ns, 1.9 * step_ns) * 0.98
    idle = changed(program, {"host.times": 0.0}).step_ns()
    assert idle <= step_ns * (1 + 1e-3)
    if kernels_ns > 0.97 * step_ns:
        assert twice == pytest.approx(2 * step_ns, rel=0.06)
        assert idle > 0.9 * step_ns


def busiest_ns(program: Program) -> float:
    """The time of kernels in the mean settled step, of the rank with most of them: less than any step can take."""
    starts = {place: (step.rank, step.number) for place, step in enumerate(program.steps) if place in program.settled}
    spent: dict[int, list[float]] = defaultdict(list)
    for place, (rank, _) in starts.items():
        first, last = program.steps[place].first, program.steps[place].last
        total = 0.0
        until = program.recorded_ns[first]
        for item in range(first, last + 1):
            for edge in program.edges[item]:
                if program.ranks[item] == rank and edge.kind in COMPUTING:
                    begin, end = program.recorded_ns[edge.item], program.recorded_ns[item]
                    total += max(0, end - max(begin, until))
                    until = max(until, end)
        spent[rank].append(total)
    return max(mean(each) for each in spent.values())


@small_ones
def test_two_changes_save_what_the_better_of_them_does(program: Program) -> None:
    """At least, but for 2 %: where a step begins moves as well."""
    quick = {name: after.step_ns() for name, change in FASTER.items() if (after := known(program, change)) is not None}
    for first, second in combinations(quick, 2):
        both = known(program, {**FASTER[first], **FASTER[second]})
        assert both is not None
        assert both.step_ns() <= min(quick[first], quick[second]) + 0.02 * program.step_ns(), (first, second)


WITH_A_RANGE: tuple[dict[str, Value], ...] = (
    {"ddp.comm_hook": "bf16"},
    {"batch.times": 2.0},
    {"copies.non_blocking": True},
    {"precision.float32_matmul": "high"},
    {"precision.autocast": "bf16"},
    {"fsdp.reshard_after_forward": False},
    {"fsdp.param_dtype": "bf16"},
    {"fsdp.units": 2},
    {"fsdp.units": 8},
    {"wrapper": "ddp"},
    {"optimizer.fused": True},
    {"cuda.graphs": True},
)


@of_links
def test_what_is_assumed_to_save_more_does(program: Program) -> None:
    """But for 1 %: where a step begins moves as well."""
    slack, found = 0.01 * program.step_ns(), 0
    for change in WITH_A_RANGE:
        try:
            least, middle, most = (changed(program, change, side).step_ns() for side in Side)
        except Missing:
            continue
        assert most - slack <= middle <= least + slack, change
        found += 1
    assert found >= 5


@each_trace
def test_a_larger_change_saves_more(program: Program) -> None:
    """But for 2 %: where a step begins moves as well."""
    step_ns, slack = program.step_ns(), 0.02 * program.step_ns()
    for name in ("compute.times", "host.times"):
        half, none = (step_ns - changed(program, {name: times}).step_ns() for times in (0.5, 0.0))
        quarter = step_ns - changed(program, {name: 0.25}).step_ns()
        assert half <= quarter + slack <= none + 2 * slack


few = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
factors = st.floats(0.05, 1.0)
RESOURCES = ("host.times", "compute.times", "link.gb_per_s")


def scaled(program: Program, resource: str, factor: float) -> Program | None:
    """With a resource that takes so many times as long; of the link, but for its latency."""
    if resource != "link.gb_per_s":
        return known(program, {resource: factor})
    return None if program.link is None else known(program, {resource: program.link.bytes_per_ns / factor})


@few
@given(resource=st.sampled_from(RESOURCES), factor=factors, seed=st.integers(0, 1 << 30))
@each_trace
def test_no_step_is_shorter_than_a_path_through_it(program: Program, resource: str, factor: float, seed: int) -> None:
    """Whatever is changed: along any chain of waits in a step their times add up to no more than the step takes.

    Collectives that share links are left out: they are shorter where fewer do.
    """
    made, chance = scaled(program, resource, factor), random.Random(seed)
    if made is None:
        return
    times, walked = made.run(), 0
    for step in made.steps:
        item, path_ns = step.last, 0.0
        while inside := [edge for edge in made.edges[item] if edge.item >= step.first]:
            edge = chance.choice(inside)
            shares = program.transfers and edge.kind == Kind.COLLECTIVE
            item, path_ns = edge.item, path_ns + (0 if shares else edge.lag_ns)
            walked += 1
        assert path_ns <= times[step.last] - times[item] + 1e-3
    assert walked


@few
@given(resource=st.sampled_from(RESOURCES), first=factors, second=factors)
@each_trace
def test_two_changes_to_a_resource_save_at_most_their_sum(
    program: Program, resource: str, first: float, second: float
) -> None:
    """But for 1 %: where a step begins moves as well."""
    step_ns = program.step_ns()
    made = [scaled(program, resource, factor) for factor in (first, second, first * second)]
    alone, other, both = (step_ns - (program if each is None else each).step_ns() for each in made)
    assert both <= alone + other + 0.01 * step_ns


@few
@given(slower=factors, faster=factors)
@each_trace
def test_no_drawn_link_that_is_faster_lengthens_a_step(program: Program, slower: float, faster: float) -> None:
    """But for 0.1 %: a faster link lets more collectives share it."""
    steps = [scaled(program, "link.gb_per_s", factor) for factor in sorted((slower, faster))]
    if steps[0] is not None and steps[1] is not None:
        assert steps[0].step_ns() <= steps[1].step_ns() * (1 + 1e-3)
