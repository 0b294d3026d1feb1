"""What every rule of every installed pack keeps to."""

import ast
import functools
import importlib
import inspect
import re

import pytest

import dptune_rules
from dptune.advise import packs
from dptune.advise.declared import CODE
from dptune.knobs import KNOBS, PATCHED
from dptune.measured import CopyFigures, EfficiencyFigures, KernelFigures, MemoryFigures, Missing
from dptune.rule import Rule, Threshold
from dptune.runfile.communication import ChannelFacts, DdpFacts, NcclFacts
from dptune.runfile.facts import OptimizerFacts
from dptune.runfile.loader import LoaderFacts
from dptune.runfile.window import SampledFacts, Window

HEADINGS = [
    "## What it measures",
    "## Why it matters",
    "## What to change",
    "## When to leave it alone",
    "## References",
]
OURS = [
    *("DP101", "DP102", "DP103", "DP104", "DP105", "DP106", "DP107", "DP108", "DP109", "DP110", "DP111", "DP112"),
    *("DP113", "DP114", "DP115", "DP116"),
    *("DP201", "DP202", "DP203", "DP204", "DP205", "DP206", "DP207", "DP208"),
    *("DP209", "DP210", "DP211"),
    *("DP301", "DP302", "DP303", "DP304", "DP305", "DP306", "DP307", "DP308", "DP309", "DP310"),
    "DP311",
    *("DP312", "DP313", "DP314", "DP315", "DP316", "DP317", "DP318", "DP319", "DP320", "DP321"),
    *("DP401", "DP402", "DP403", "DP404", "DP405", "DP406", "DP407", "DP408", "DP409", "DP410", "DP411"),
    *("DP412", "DP413"),
    *("DP501", "DP502", "DP503", "DP504", "DP505", "DP506", "DP507", "DP508", "DP509", "DP510"),
    *("DP511", "DP512", "DP513", "DP514", "DP515", "DP516"),
    *("DP601", "DP602", "DP603", "DP604", "DP605", "DP606", "DP607", "DP608", "DP609"),
    *("DP610", "DP611", "DP612", "DP613", "DP615", "DP616", "DP617", "DP618", "DP619", "DP620"),
    *("DP621", "DP622", "DP623", "DP624", "DP625", "DP626", "DP627", "DP628"),
    *("DP701", "DP702", "DP703", "DP704", "DP705"),
    *("DP801", "DP802", "DP803", "DP804", "DP805", "DP806"),
    *("DP901", "DP902"),
]
MAY_IMPORT = {"dptune.advice", "dptune.rule", "dptune.knobs", "dptune.measured"}


@functools.cache
def source_of(module):
    return inspect.getsource(importlib.import_module(module))


@functools.cache
def tree_of(module):
    return ast.parse(source_of(module))


def test_our_own_rules_are_all_there():
    assert packs.problems() == []
    assert [loaded.rule.code for loaded in packs.load_packs()] == OURS
    assert packs.find_rule("DP101").module.startswith(dptune_rules.__name__)


def test_docstring_has_the_headings_in_order_with_text_under_each(installed_rule):
    lines = inspect.cleandoc(installed_rule.doc).splitlines()
    assert lines[0].endswith(".")
    assert [line for line in lines if line.startswith("#")] == HEADINGS
    sections = re.split(r"^## .*$", installed_rule.doc, flags=re.MULTILINE)
    assert all(section.strip() for section in sections)
    assert "http" in sections[-1]


def test_declaration(installed_rule):
    rule = installed_rule.rule
    assert isinstance(rule, Rule)
    assert CODE.match(rule.code)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.name)
    assert rule.kind in ("time", "risk", "convergence")
    assert rule.summary
    assert rule.summary[-1] != "."
    assert re.fullmatch(r"\d+\.\d+", rule.since)
    *_, family, file = installed_rule.module.split(".")
    assert rule.family == family
    assert rule.name.replace("-", "_") == file


def test_codes_and_names_are_unique():
    rules = [loaded.rule for loaded in packs.load_packs()]
    assert len({rule.code for rule in rules}) == len({rule.name for rule in rules}) == len(rules)


def test_each_threshold_is_a_constant_with_a_reason_and_is_asked_for(installed_rule):
    module = importlib.import_module(installed_rule.module)
    constants = {name: value for name, value in vars(module).items() if isinstance(value, Threshold)}
    assert set(constants.values()) == set(installed_rule.rule.thresholds)
    assert len({threshold.name for threshold in constants.values()}) == len(constants)
    calls = [node for node in ast.walk(tree_of(installed_rule.module)) if isinstance(node, ast.Call)]
    asking = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr in ("limit", "impact")]
    limits = [call.args[-1] for call in asking]
    assert {argument.id for argument in limits if isinstance(argument, ast.Name)} == set(constants)
    assert all(len(threshold.reason) > 20 for threshold in constants.values())


def test_imports_only_the_words_of_a_rule(installed_rule):
    tree = tree_of(installed_rule.module)
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert {name for name in imported if name.split(".")[0] == "dptune"} <= MAY_IMPORT


def test_names_only_registered_knobs(installed_rule):
    source = source_of(installed_rule.module)
    assert set(re.findall(r'knob="([^"]+)"', source)) <= {*KNOBS, *PATCHED}


def test_quiet_on_a_healthy_run(installed_rule, make_measured, make_facts, make_all_reduce, ask, hand_made):
    """One in which each rule has what it looks at, and a step model that knows of no change that gains."""
    light = hand_made.figures
    measured = make_measured(
        exposed_share=0.03,
        hidden_share=0.2,
        wait_share=0.01,
        fp32_share=0.01,
        collectives=[make_all_reduce(2**20, 1), make_all_reduce(25 * 2**20, 4, 2_000_000)],
        overlap=hand_made.overlap(("all_reduce", "backward", 0.02), ("all_reduce", "forward", 0.01)),
        memory=[light(MemoryFigures, rank=0, device="cuda:0", peak_share=0.5, malloc_share=0.001)],
        kernels=light(
            KernelFigures, counted="kernels", per_step=900, median_ns=20_000, total_ns=1, loss_share=0.01, top=[]
        ),
        efficiency=light(EfficiencyFigures, mfu=0.5, counted_share=1.0),
        phases=hand_made.phases(0.3, 0.6, 0.1),
        copies=[
            light(
                CopyFigures,
                direction="h2d",
                pinned=True,
                calls=9,
                calls_per_step=1,
                total_ns=9,
                exposed_ns=9,
                most_share=0.0,
                most_held_share=0.0,
                gb_per_s=20,
            )
        ],
    )
    window = Window("untraced", 3, [10_000_000] * 20, loader_batches=[1] * 20, gc_ns=[1000] * 20)
    window.unsynced_updates = [False] * 20
    window.sampled = [SampledFacts(["main (train.py:9)"], "backward", looks=20, steps=[0], spent_ns=[9_000_000])]
    loader = LoaderFacts(
        "train.py:9",
        batch_size=256,
        num_workers=4,
        persistent_workers=True,
        pin_memory=True,
        dataset="Clips",
        dataset_samples=100_000,
        batches_drawn=30,
        sampler="DistributedSampler",
        distributed_sampler=True,
        sampler_epoch=0,
    )
    ddp = DdpFacts("Net", "train.py:10", gradient_dtypes=["float32"], broadcast_buffers=True, buffer_bytes=1000)
    ddp.find_unused_parameters = False
    facts = [
        make_facts(
            rank=rank,
            ddp=[ddp],
            loaders=[loader],
            optimizers=[OptimizerFacts("AdamW", "train.py:11", [1e-3], fused=True)],
            windows=[window],
            losses=[2.0 + rank, 1.5 + rank, 1.2 + rank],
            nccl=NcclFacts(channels=[ChannelFacts(rank, 1 - rank, "P2P", 16)]),
            autocast="cuda:bfloat16",
            grad_scaler=False,
        )
        for rank in (0, 1)
    ]

    def no_gain(changes):
        grown = changes.get("loader.batch_size", 256) / 256
        took = int(grown * hand_made.STEP_NS)
        return light(
            hand_made.Prediction,
            changes=dict(changes),
            step_ns=took,
            low_ns=took,
            high_ns=took,
            global_batch=int(64 * grown),
        )

    assert ask(installed_rule.rule.code, measured, facts, predictor=no_gain) == []


def test_says_what_is_missing_on_a_run_without_anything(installed_rule, make_measured, ask, hand_made):
    empty = make_measured(
        world=0,
        wait_share=None,
        fp32_share=None,
        tensor_cores=None,
        synchronised=None,
        collectives=None,
        device_kind=None,
        account=None,
        step=hand_made.figures(hand_made.StepTime, basis="traced"),
    )
    with pytest.raises(Missing):
        ask(installed_rule.rule.code, empty)
