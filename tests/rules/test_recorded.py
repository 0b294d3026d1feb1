"""Each rule on a run that has its fault, and on the same run with the fault mended: real recordings.

Most stand in recorded/runs, made by recorded/record.py; those of GPUs are public traces. A rule that is in no table is
no stable one.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from dptune.advise import packs
from dptune.commands.shared.engine import Engine
from dptune.commands.shared.reading import read_run
from dptune.compare.settings import facts
from dptune.compare.sides import Sides

from .. import reading  # noqa: TID252 - tests are no installed package

RUNS = Path(__file__).parent / "recorded" / "runs"
SAMPLES = Path(__file__).parents[2] / "sample_traces"
FAULTS = {
    "DP103": "wide-gradients",
    "DP104": "broadcast-buffers",
    "DP105": "collectives-in-steps",
    "DP106": "unused-parameters-searched",
    "DP107": "unsynchronized-gradients",
    "DP108": "unsynchronized-ranks",
    "DP109": "unused-gradients",
    "DP110": "averaged-one-by-one",
    "DP111": "dense-tables",
    "DP112": "unfrozen-after-wrapping",
    "DP113": "parameters-without-optimizer",
    "DP202": "sharded-optimizer",
    "DP203": "rank-placement",
    "DP204": "sharded-parameters",
    "DP205": "small-shard-units",
    "DP209": "flat-parameters",
    "DP301": "small-batch",
    "DP302": "frozen-batch-norm",
    "DP303": "schedule-out-of-step",
    "DP304": "gradients-discarded",
    "DP305": "gradients-not-cleared",
    "DP306": "optimizer-without-gradients",
    "DP307": "clipping-without-effect",
    "DP308": "unreached-parameters",
    "DP309": "zero-learning-rate",
    "DP310": "loss-not-divided",
    "DP311": "few-samples-normalized",
    "DP312": "optimizer-not-restored",
    "DP313": "target-with-gradients",
    "DP315": "uneven-target-counts",
    "DP314": "ratio-always-one",
    "DP316": "view-for-transpose",
    "DP317": "causal-mask-missing",
    "DP318": "gathered-without-gradients",
    "DP319": "softmax-dimension",
    "DP320": "padding-attended",
    "DP321": "kl-weight",
    "DP402": "double-precision",
    "DP403": "scaler-without-need",
    "DP405": "unsupported-dtype",
    "DP406": "updates-lost",
    "DP407": "softmax-before-cross-entropy",
    "DP408": "loss-broadcast",
    "DP412": "not-finite",
    "DP413": "wrapped-integers",
    "DP502": "workers-restart",
    "DP504": "same-data",
    "DP505": "iterable-dataset",
    "DP506": "padded-batches",
    "DP507": "new-iterators",
    "DP508": "same-random-numbers",
    "DP509": "labels-shifted-twice",
    "DP510": "samples-changed-in-place",
    "DP511": "split-by-rank",
    "DP512": "padding-learned",
    "DP513": "uneven-epochs",
    "DP514": "state-carried-over",
    "DP515": "windows-split-at-random",
    "DP516": "samples-sorted",
    "DP602": "garbage-collection",
    "DP603": "unfused-optimizer",
    "DP604": "oversubscribed-cores",
    "DP605": "debug-switches",
    "DP607": "recompiles",
    "DP608": "per-tensor-loops",
    "DP609": "work-between-steps",
    "DP610": "operator-loops",
    "DP611": "separate-backward-passes",
    "DP612": "repeated-forward",
    "DP613": "matrix-decompositions",
    "DP615": "long-convolutions",
    "DP616": "ignored-targets",
    "DP617": "one-hot-products",
    "DP618": "full-sorts",
    "DP619": "eager-attention",
    "DP621": "broadcast-reductions",
    "DP622": "slice-gradients",
    "DP623": "weight-penalty",
    "DP624": "upsampled-convolutions",
    "DP625": "same-results",
    "DP627": "unread-results",
    "DP628": "forward-hooks",
    "DP701": "late-rank",
    "DP702": "uneven-ranks",
    "DP703": "slow-steps",
    "DP704": "same-file-saved",
    "DP705": "own-scores",
    "DP802": "growing-memory",
    "DP803": "checkpointing-without-need",
    "DP804": "evaluation-mode-kept",
    "DP805": "kept-by-reference",
    "DP806": "training-mode-in-evaluation",
    "DP901": "uncovered-cost",
    "DP902": "memory-bound-functions",
}
PLAIN = {"DP114": "gradients-after-backward"}  # traces of torch.profiler, made by recorded/plain.py
OF_CARDS = {"DP206": ("ranks-nccl-fsdp", "ranks-nccl-ddp")}  # where it fires, and where it is quiet
MADE = {"DP115"}  # simulated GPUs, by tests/simulator/test_traces.py: several cards are needed to record it
OF_SAMPLES = {"DP101": "tiny_buckets", "DP102": "accumulation_without_no_sync", "DP501": "starved_loader"}
# Where it fires, and where it is quiet; a sample where no public trace has a place for the evidence.
PUBLIC = {
    "DP116": ("hta_training/b4b6dce_nccl_data.json.gz", "torchrec_resnet18_2xv100"),
    "DP207": ("nanogpt_8xh100", "hta_training/b4b6dce_nccl_data.json.gz"),
    "DP401": ("single_gpu/d4c3f21_trace_04.json.gz", "nanogpt_8xh100"),
    "DP404": ("kineto_resnet50_loader/234cf25_worker0.1623212756351.pt.trace.json.gz", "torchrec_resnet18_2xv100"),
    "DP409": ("hta_training/b1ceb4c_control.json.gz", "nanogpt_8xh100"),
    "DP410": (
        "hta_training/b4b6dce_nccl_data.json.gz",
        "kineto_resnet50_loader/234cf25_worker0.1623212756351.pt.trace.json.gz",
    ),
    "DP503": ("kineto_resnet50_loader/234cf25_worker0.1623212756351.pt.trace.json.gz", "nanogpt_8xh100"),
    "DP601": ("hta_training/b4b6dce_nccl_data.json.gz", "single_gpu/d4c3f21_trace_04.json.gz"),
    "DP606": ("hta_training/b1ceb4c_control.json.gz", "hta_training/b4b6dce_nccl_data.json.gz"),
    "DP626": ("nanogpt_8xh100", "single_gpu/1eeffb3_trace_05.json.gz"),
    "DP801": (SAMPLES / "gpu" / "planted-empty_cache-in-every-step", "single_gpu/1eeffb3_trace_05.json.gz"),
}
RARELY = {"DP801"}  # which reads a trace that no other test reads each time; its rule has tests with made figures
# Further ones, which `make test-thorough` reads.
MORE_PUBLIC = {
    "DP116": (
        "hta_training/b4b6dce_nccl_data.json.gz",
        "hta_training/e8fe4d1_rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
    ),
    "DP503": ("single_gpu/29571b7_resnet_kineto.json.gz", "nanogpt_8xh100"),
    "DP601": (
        "kineto_resnet50_loader/2d19c63_worker0.pt.trace.json.gz",
        "kineto_resnet50_loader/4a9c9ae_worker0.pt.trace.json.gz",
    ),
}
# What an engineer who read the raw events would change first, and then.
EXPERTS = {
    "single_gpu/29571b7_resnet_kineto.json.gz": ["DP501", "DP404", "DP503"],
    "hta_training/b1ceb4c_control.json.gz": ["DP606"],
    "hta_training/b4b6dce_nccl_data.json.gz": ["DP601", "DP104", "DP116"],
    "torchrec_resnet18_2xv100": ["DP601"],
    "kineto_resnet50_loader/234cf25_worker0.1623212756351.pt.trace.json.gz": ["DP404", "DP603"],
    "single_gpu/d4c3f21_trace_04.json.gz": ["DP401"],
    "nanogpt_8xh100": ["DP701", "DP626", "DP207"],
    "kineto_resnet50_loader/2d19c63_worker0.pt.trace.json.gz": ["DP501", "DP603"],
    "kineto_resnet50_loader/4a9c9ae_worker0.pt.trace.json.gz": ["DP501"],
}
# Of these, what `make test` reads; of the others there is a sample, or another trace, whose first advice is the same.
EXPERTS_EACH_TIME = {
    *("hta_training/b1ceb4c_control.json.gz", "hta_training/b4b6dce_nccl_data.json.gz", "torchrec_resnet18_2xv100"),
    "kineto_resnet50_loader/234cf25_worker0.1623212756351.pt.trace.json.gz",
    *("single_gpu/d4c3f21_trace_04.json.gz", "nanogpt_8xh100"),
}
# A second fault of one rule.
SECOND = {"same-order", "periodic-steps", "kept-outputs", "written-optimizer", "repeated-rows", "sharded-micro-batches"}
SECOND.add("different-weights")
# Further faults of a rule that is in the table, and another rule that must not take them for its own.
BESIDE = {"gathered-for-logging": ("DP105", "DP204"), "metrics-reduced": ("DP105", "DP103")}
QUIET = {  # and nothing to mend
    "tiny-gradients": ["DP103"],
    "equation-residual": ["DP313"],
    "look-alikes": ["DP504", "DP511", "DP612", "DP623", "DP625", "DP902"],
}


# Recordings of 19,000 to 158,000 events, and of 12,500 of DP802, which has another; `make test-thorough` reads them.
# Their rules have tests with made figures.
LARGE = {
    *("operator-loops", "per-tensor-loops", "work-between-steps", "slice-gradients", "memory-bound-functions"),
    *("small-shard-units", "unfused-optimizer", "unused-parameters-searched", "small-batch", "averaged-one-by-one"),
    *("matrix-decompositions", "eager-attention", "tiny-gradients", "weight-penalty", "wide-gradients"),
    *("ignored-targets", "one-hot-products", "full-sorts", "rank-placement", "growing-memory"),
}
# Whose mended recordings `make test` reads, one of each family; `make test-thorough` reads the others.
MENDED = {*{code[:3]: FAULTS[code] for code in sorted(FAULTS, reverse=True) if FAULTS[code] not in LARGE}.values()}
EACH_TIME = {*FAULTS.values()} - LARGE


told = reading.reported


def rarely(fault: str) -> Any:
    return () if fault in MENDED else pytest.mark.thorough


def of_faults(codes: Iterable[str]) -> list[Any]:
    """Each code; those whose recording is large are thorough."""
    rare = {code for code in codes if FAULTS.get(code) in LARGE or code in RARELY}
    return [pytest.param(code, marks=pytest.mark.thorough if code in rare else ()) for code in codes]


def speaking(place: Path) -> list[str]:
    return [one.rule for one in told(place).advice]


def test_every_rule_stands_in_a_table():
    ours = {one.rule.code for one in packs.load_packs() if one.module.startswith("dptune_rules")}
    ours -= {one.rule.code for one in packs.load_packs() if one.rule.preview}
    tables = {*FAULTS, *OF_SAMPLES, *PUBLIC, *PLAIN, *OF_CARDS, *MADE}
    assert ours == tables, "each rule that is not in preview is in a table: see CONTRIBUTING.md"
    faults = {*FAULTS.values(), *SECOND, *BESIDE}
    assert {code[:3] for code in FAULTS} == {code[:3] for code, fault in FAULTS.items() if fault in MENDED}
    assert {one.name for one in RUNS.iterdir()} == {*faults, *QUIET, *(f"{name}-mended" for name in faults)}


@pytest.mark.parametrize("code", of_faults(FAULTS))
def test_it_speaks_of_its_fault_before_anything_else_of_that_kind(code):
    (own,) = [one for one in told(RUNS / FAULTS[code]).advice if one.rule == code]
    others = [one for one in told(RUNS / FAULTS[code]).advice if one.kind == own.kind]
    assert others[0] == own


@pytest.mark.parametrize("code", of_faults(FAULTS))
def test_a_risk_says_what_to_do_and_next_starts_with_that(code):
    report = told(RUNS / FAULTS[code])
    risks = [one for one in report.advice if one.kind == "risk"]
    assert [one.rule for one in risks if not (one.remedy or one.changes)] == []
    if first := next((one for one in risks if one.rule == report.headline.rule and one.remedy), None):
        assert f"{first.remedy}" in report.headline.next
        assert first.title not in report.headline.next


@pytest.mark.parametrize(
    "faults",
    [pytest.param(EACH_TIME, id="small"), pytest.param({*FAULTS.values()}, marks=pytest.mark.thorough, id="all")],
)
@pytest.mark.parametrize("code", FAULTS)
def test_it_is_quiet_of_other_faults_and_has_looked(code, faults):
    """Of most of those of other families."""
    others = [name for other, name in FAULTS.items() if other[:3] != code[:3] and name in faults]
    assert [name for name in others if code in told(RUNS / name).quiet]
    assert len([name for name in others if code in speaking(RUNS / name)]) < len(others) / 4


@pytest.mark.parametrize("code", [pytest.param(code, marks=rarely(fault)) for code, fault in FAULTS.items()])
def test_it_is_quiet_where_the_fault_is_mended_and_has_looked(code):
    report = told(RUNS / f"{FAULTS[code]}-mended")
    assert code in report.quiet


@pytest.mark.parametrize("name", BESIDE)
def test_a_fault_is_not_taken_for_that_of_another_rule(name):
    code, other = BESIDE[name]
    times = [one for one in told(RUNS / name).advice if one.kind == "time"]
    assert times[0].rule == code
    assert other in told(RUNS / name).quiet
    assert "train.py:" in times[0].title


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "code"),
    [
        *(("same-order", "DP504"), ("kept-outputs", "DP802"), ("written-optimizer", "DP603")),
        *(("repeated-rows", "DP612"), ("different-weights", "DP108")),
        *((name, code) for name, (code, _) in BESIDE.items()),
    ],
)
def test_it_is_quiet_where_a_further_fault_is_mended(name, code):
    assert code in told(RUNS / f"{name}-mended").quiet


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough if name in LARGE else ()) for name in QUIET]
)
def test_it_is_quiet_of_what_looks_like_its_fault_and_has_looked(name):
    assert {*QUIET[name]} <= {*told(RUNS / name).quiet}
    assert [one for one in told(RUNS / name).advice if one.impact != "low"] == []


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=rarely(name)) for name in sorted([*FAULTS.values(), *SECOND, *BESIDE])]
)
def test_where_it_is_mended_nothing_is_said_above_a_note(name):
    assert [one for one in told(RUNS / f"{name}-mended").advice if one.impact != "low"] == []


def test_a_sampler_that_is_not_told_the_epoch():
    (advice,) = [one for one in told(RUNS / "same-order").advice if one.rule == "DP504"]
    assert "never calls DistributedSampler.set_epoch" in advice.title


def test_outputs_that_an_object_keeps():
    """Of 768 rows of 384 floats and a loss each: 1,179,652 bytes a step, without a detailed window."""
    (advice,) = [one for one in told(RUNS / "kept-outputs").advice if one.rule == "DP802"]
    assert "kept in `Epoch.outputs` (train.py:" in advice.title
    assert (advice.evidence[0].value, advice.evidence[2].value) == (768 * 384 * 4 + 4, 2)


def test_a_step_that_the_script_wrote():
    """Eight operators for each of 24 tensors, in place of one call of the fused AdamW."""
    (advice,) = [one for one in told(RUNS / "written-optimizer").advice if one.rule == "DP603"]
    assert "`WrittenAdam` (train.py:" in advice.title
    assert "calling 8 operators for each of 24 tensors: use torch.optim.AdamW" in advice.title
    assert not {"DP610", "DP901"} & {*speaking(RUNS / "written-optimizer")}


def test_rows_that_a_module_computes_again():
    """64 rows, each of them for six candidates."""
    (advice,) = [one for one in told(RUNS / "repeated-rows").advice if one.rule == "DP612"]
    assert advice.title.startswith("`rows` computes each row of its input 6 times (train.py:")


def test_gradients_that_are_averaged_for_different_weights():
    (advice,) = [one for one in told(RUNS / "different-weights").advice if one.kind == "risk"]
    assert advice.rule == "DP108"
    assert advice.title.startswith("2 ranks apply the same gradients to different weights: ")
    assert "AdamW (train.py:" in advice.title


def test_the_line_that_collects_garbage():
    (advice,) = [one for one in told(RUNS / "garbage-collection").advice if one.rule == "DP602"]
    assert "main (train.py:" in advice.title
    assert "calls gc.collect() 20 times in 20 steps" in advice.title


def test_the_line_that_keeps_evaluation_mode():
    (advice,) = [one for one in told(RUNS / "evaluation-mode-kept").advice if one.rule == "DP804"]
    assert "1 dropout layer is off" in advice.title
    assert "validate (train.py:" in advice.title


def test_the_lines_that_wrap_and_unfreeze():
    (advice,) = [one for one in told(RUNS / "unfrozen-after-wrapping").advice if one.rule == "DP112"]
    assert "DDP (train.py:" in advice.title
    assert "main (train.py:" in advice.title


@pytest.mark.parametrize("code", OF_SAMPLES)
def test_it_speaks_of_a_sample_and_not_of_the_healthy_one(code):
    assert speaking(SAMPLES / OF_SAMPLES[code])[0] == code
    assert code in told(SAMPLES / "healthy").quiet


def test_how_long_pageable_copies_block_the_script(real_traces):
    """Six copies of 19 MB hold it for 40.0, 3.1, 3.1, 3.1, 3.9 and 3.0 ms, and their waits for 0.35 ms."""
    report = told(real_traces / PUBLIC["DP404"][0])
    (advice,) = [one for one in report.advice if one.rule == "DP503"]
    (share,) = [each.value for each in advice.evidence if each.label == "script blocked in these copies"]
    assert share * report.measured.step.time_ns / 1e6 == pytest.approx(9.43, abs=0.02)


@pytest.mark.parametrize(
    "trace",
    [pytest.param(trace, marks=() if trace in EXPERTS_EACH_TIME else pytest.mark.thorough) for trace in EXPERTS],
)
def test_what_is_said_first_is_what_an_engineer_would_change_first(real_traces, trace):
    assert speaking(real_traces / trace)[: len(EXPERTS[trace])] == EXPERTS[trace]


@pytest.mark.parametrize(
    ("code", "fires", "quiet"),
    [
        *((code, *pair) for code, pair in PUBLIC.items() if code not in RARELY),
        *(pytest.param(code, *PUBLIC[code], marks=pytest.mark.thorough) for code in sorted(RARELY)),
        *(pytest.param(code, *pair, marks=pytest.mark.thorough) for code, pair in MORE_PUBLIC.items()),
    ],
)
def test_it_speaks_of_one_public_trace_and_not_of_another(real_traces, code, fires, quiet):
    assert code in speaking(real_traces / fires)
    assert code in told(real_traces / quiet).quiet


@pytest.mark.parametrize("code", PLAIN)
def test_it_speaks_of_a_fault_in_a_trace_of_torch_alone_before_anything_else(code):
    place = RUNS.parent / "plain" / PLAIN[code]
    assert speaking(place)[0] == code
    assert told(place).advice[0].evidence[0].start_ns is not None
    assert code in told(place.with_name(f"{place.name}-mended")).quiet


def test_small_units_in_a_trace_of_torch_alone():
    """The units are counted by their hooks."""
    (advice,) = told(RUNS.parent / "plain" / "small-shard-units").advice
    assert advice.title.startswith("10 FSDP units are too small: ")
    assert "DP205" in told(RUNS.parent / "plain" / "small-shard-units-mended").quiet


@pytest.mark.parametrize("code", OF_CARDS)
def test_it_speaks_of_one_recording_of_a_card_and_not_of_another(code):
    fires, quiet = OF_CARDS[code]
    assert code in speaking(SAMPLES / "gpu" / fires)
    assert code in told(SAMPLES / "gpu" / quiet).quiet


@pytest.mark.thorough  # reads one more recording of a card; the same setting is replayed of that of DP206
def test_tf32_is_predicted_where_steps_were_timed_without_the_profiler(real_traces):
    """89 % of a step is fp32 products, whose peak on that card rises 7.4 times: to at least 1 - 0.89 + 0.89 / 7.4."""
    (timed,) = [
        advice for advice in told(SAMPLES / "gpu" / "planted-fp32-without-TF32").advice if advice.rule == "DP401"
    ]
    assert (timed.saves.basis, timed.saves.is_range) == ("replayed", True)
    assert 0 < timed.saves.low_share < timed.saves.central_share < 0.89 * (1 - 1 / 7.4)
    (traced,) = [advice for advice in told(real_traces / PUBLIC["DP401"][0]).advice if advice.rule == "DP401"]
    assert (traced.saves.basis, traced.saves.low_share) == ("bound", 0)


def test_the_saving_of_prefetching_holds_what_prefetching_saved():
    """13 % of a step with two units gathered ahead, on that card: tests/benchmarks/GPU.md."""
    (advice,) = [advice for advice in told(SAMPLES / "gpu" / "ranks-nccl-fsdp").advice if advice.rule == "DP206"]
    assert advice.saves.basis == "replayed"
    assert 0.05 < advice.saves.low_share < 0.13 < advice.saves.high_share < 0.15


# Rules of which nothing can be shown in a trace, and why.
PLACELESS = {
    "DP209": "the module that wraps is a fact",
    "DP107": "gradients are not in the trace",
    "DP108": "what is not there has no place",
    "DP109": "followed in the live process",
    "DP110": "counted in the live process",
    "DP112": "followed in the live process",
    "DP113": "followed in the live process",
    "DP302": "what is trained is not in the trace",
    "DP303": "counted in the live process",
    "DP304": "followed in the live process",
    "DP305": "followed in the live process",
    "DP306": "followed in the live process",
    "DP307": "followed in the live process",
    "DP308": "followed in the live process",
    "DP309": "counted in the live process",
    "DP310": "followed in the live process",
    "DP311": "counted in the live process",
    "DP312": "watched in the live process",
    "DP313": "followed in the live process",
    "DP315": "counted in the live process",
    "DP314": "followed in the live process",
    "DP316": "followed in the live process",
    "DP317": "read in the live process",
    "DP319": "read in the live process",
    "DP321": "read in the live process",
    "DP320": "read in the live process",
    "DP318": "followed in the live process",
    "DP403": "the scaler is not in the trace",
    "DP406": "followed in the live process",
    "DP407": "followed in the live process",
    "DP408": "followed in the live process",
    "DP412": "read in the live process",
    "DP413": "computed again in the live process",
    "DP502": "seen in steps without the profiler",
    "DP504": "what is drawn is not in the trace",
    "DP506": "what is drawn is not in the trace",
    "DP507": "seen in steps without the profiler",
    "DP508": "read in the live process",
    "DP509": "followed in the live process",
    "DP510": "read in the live process",
    "DP511": "read in the live process",
    "DP512": "followed in the live process",
    "DP513": "read in the live process",
    "DP514": "followed in the live process",
    "DP515": "read in the live process",
    "DP516": "read in the live process",
    "DP605": "a switch",
    "DP607": "seen in steps without the profiler",
    "DP608": "seen in the detailed window",
    "DP609": "seen in steps without the profiler",
    "DP610": "seen in the detailed window",
    "DP611": "followed in the live process",
    "DP612": "watched in the live process",
    "DP613": "seen in the detailed window",
    "DP615": "seen in the detailed window",
    "DP616": "seen in the detailed window",
    "DP617": "seen in the detailed window",
    "DP618": "seen in the detailed window",
    "DP619": "seen in the detailed window",
    "DP621": "seen in the detailed window",
    "DP622": "seen in the detailed window",
    "DP623": "seen in the detailed window",
    "DP624": "seen in the detailed window",
    "DP625": "watched in the live process",
    "DP627": "watched in the live process",
    "DP628": "watched in the live process",
    "DP703": "seen in steps without the profiler",
    "DP704": "watched in the live process",
    "DP705": "read in the live process",
    "DP802": "between steps",
    "DP804": "the mode is not in the trace",
    "DP805": "followed in the live process",
    "DP806": "watched in the live process",
    "DP901": "seen in the detailed window",
    "DP902": "seen in the detailed window",
}


@pytest.mark.parametrize("code", of_faults([*FAULTS, *OF_SAMPLES]))
def test_evidence_names_a_rank_and_a_time_inside_one_of_its_steps(code):
    report = told(RUNS / FAULTS[code] if code in FAULTS else SAMPLES / OF_SAMPLES[code])
    (own,) = [one for one in report.advice if one.rule == code]
    places = [(one.rank, one.start_ns, one.end_ns) for one in own.evidence if one.start_ns is not None]
    assert bool(places) == (code not in PLACELESS), f"either {code} is in PLACELESS, or its evidence has a place"
    for number, start, end in places:
        (rank,) = [one for one in report.measured.ranks if one.rank == number]
        steps = [(step.start_ns, step.start_ns + step.account.window_ns) for own in rank.devices for step in own.steps]
        assert start < end
        assert any(begin <= start < until for begin, until in steps)
        assert any(begin < end <= until for begin, until in steps)


@pytest.mark.parametrize("code", of_faults(PUBLIC))
def test_evidence_of_public_traces_names_a_rank_and_a_time(real_traces, code):
    (own,) = [one for one in told(real_traces / PUBLIC[code][0]).advice if one.rule == code]
    assert any(one.start_ns is not None and one.rank is not None for one in own.evidence)


@pytest.mark.parametrize(
    "name",
    [
        "workers-restart",
        *(
            pytest.param(name, marks=pytest.mark.thorough)
            for name in ("same-data", "broadcast-buffers", "sharded-parameters")
        ),
    ],
)
def test_what_two_recordings_differ_in_are_settings_and_no_times(name):
    runs = [read_run(str(RUNS / each), Engine(cached=False)) for each in (name, f"{name}-mended")]
    found, why = facts(Sides(runs[:1], runs[1:]))
    assert found, why
    for one in found:
        assert all(isinstance(value, bool | int | float | str | None) for value in (*one.a, *one.b)), one.name
        assert not one.name.endswith("preparing")
