"""The lines that findings name: where a setting is passed, what is turned on, and how a function is called."""

from dataclasses import replace

import pytest

from dptune.measured import CopyFigures, InputFigures
from dptune.runfile.communication import DdpFacts
from dptune.runfile.facts import CheckpointingFacts, DeviceFacts, OptimizerFacts
from dptune.runfile.library_calls import LibraryCallFacts
from dptune.runfile.loader import LoaderFacts, PreparingFacts
from dptune.runfile.loss_scaling import LossScalingFacts
from dptune.runfile.padding import PaddingFacts
from dptune.runfile.schedules import SchedulerFacts
from dptune.runfile.window import SampledFacts, Window

SENDS = DdpFacts("Net", "train.py:31", broadcast_buffers=True, buffer_bytes=4_000_000)
ARGUMENTS = LibraryCallFacts(
    "TrainingArguments",
    "train.py:50",
    {"ddp_broadcast_buffers": "train.py:52", "gradient_checkpointing": "train.py:53", "eval_steps": "train.py:54"},
)
TRAINER = LibraryCallFacts("Trainer", "train.py:60", {"strategy": "train.py:62", "detect_anomaly": "train.py:63"})


def labelled(advice, label):
    return [evidence.value for evidence in advice.evidence if evidence.label == label]


@pytest.mark.parametrize(
    ("through", "calls", "place"),
    [
        ("transformers.Trainer.train", [ARGUMENTS], "train.py:52"),
        ("transformers.Trainer.train", [replace(ARGUMENTS, arguments={})], "train.py:50"),
        ("lightning.Trainer.fit", [LibraryCallFacts("DDPStrategy", "train.py:40"), TRAINER], "train.py:40"),
        ("pytorch_lightning.Trainer.fit", [TRAINER], "train.py:62"),
        ("accelerate.Accelerator.prepare", [LibraryCallFacts("Accelerator", "train.py:9")], "train.py:9"),
        ("accelerate.Accelerator.prepare", [], "None"),
        ("", [ARGUMENTS, TRAINER], "train.py:31"),
    ],
)
def test_an_argument_of_ddp(ask, make_measured, make_facts, hand_made, through, calls, place):
    sent = hand_made.all_reduce(4_000_000, 1, kind="broadcast")
    run = make_measured(overlap=hand_made.overlap(("broadcast", "forward", 0.08)), collectives=[sent])
    (advice,) = ask("DP104", run, [make_facts(ddp=[replace(SENDS, through=through)], library_calls=calls)])
    assert [str(change.at) for change in advice.changes] == [place]


@pytest.mark.parametrize(
    ("checkpointing", "place", "runs_at"),
    [
        (CheckpointingFacts("train.py:70", "transformers.Trainer.train"), "train.py:53", ["train.py:70"]),
        (
            CheckpointingFacts("train.py:70", "transformers.Trainer.train", enabled_where="train.py:44"),
            "train.py:44",
            ["train.py:70"],
        ),
        (CheckpointingFacts("net.py:7"), "net.py:7", []),
        (CheckpointingFacts("net.py:7", enabled_where="train.py:20"), "train.py:20", ["net.py:7"]),
    ],
)
def test_what_turns_checkpointing_on(ask, make_measured, make_facts, checkpointing, place, runs_at):
    window = Window("untraced", 3, [10_000_000] * 9, recomputed_ns=[3_000_000] * 9)
    facts = make_facts(
        windows=[window],
        device=DeviceFacts("cpu", available_bytes=2**40),
        checkpointing=replace(checkpointing, kept_bytes=2**30),
        library_calls=[ARGUMENTS],
    )
    (advice,) = ask("DP803", make_measured(device="cpu"), [facts])
    assert [str(change.at) for change in advice.changes] == [place]
    assert labelled(advice, "runs at") == runs_at


@pytest.mark.parametrize(
    ("through", "where", "paste"),
    [
        ("", "train.py:12", "DataLoader(dataset, ..., num_workers=2, persistent_workers=True)"),
        ("transformers.Trainer.train", "train.py:50", "TrainingArguments(..., dataloader_num_workers=2)"),
    ],
)
def test_workers_of_a_loader(ask, make_measured, make_facts, through, where, paste):
    loader = LoaderFacts("train.py:12", num_workers=0, dataset="Images", through=through)
    facts = make_facts(loaders=[loader], library_calls=[ARGUMENTS], device=DeviceFacts("cuda", usable_cores=3))
    (advice,) = ask("DP501", make_measured(wait_share=0.45, world=1), [facts])
    change = advice.changes[0]
    assert (change.knob, str(change.at), change.paste) == ("loader.num_workers", where, paste)
    assert labelled(advice, "loader created at") == ["train.py:12"]


def test_page_locked_memory_of_a_trainers_loader(ask, make_measured, make_facts):
    loader = LoaderFacts("train.py:70", pin_memory=False, batches_drawn=9, through="transformers.Trainer.train")
    known = {
        "direction",
        "pinned",
        "calls",
        "calls_per_step",
        "total_ns",
        "exposed_ns",
        "most_share",
        "most_held_share",
    }
    copy = CopyFigures(
        direction="h2d",
        pinned=False,
        calls=1,
        calls_per_step=1.0,
        total_ns=1,
        exposed_ns=1,
        most_share=0.2,
        most_held_share=0.0,
        missing=dict.fromkeys({*CopyFigures.model_fields} - known - {"missing"}, "it is made by hand"),
    )
    (advice,) = ask("DP503", make_measured(copies=[copy]), [make_facts(loaders=[loader], library_calls=[ARGUMENTS])])
    (change,) = advice.changes
    assert (str(change.at), change.paste) == ("train.py:50", "TrainingArguments(..., dataloader_pin_memory=True)")


def test_the_argument_of_a_call_of_several_lines(ask, make_measured, make_facts):
    """The change is at the call, which a patch edits; the argument is evidence, unless it is on the same line."""
    for line, shown in (("train.py:15", ["train.py:15"]), ("train.py:12", [])):
        loader = LoaderFacts(
            "train.py:12", num_workers=0, argument_lines={"num_workers": line, "batch_size": "train.py:14"}
        )
        facts = make_facts(loaders=[loader], device=DeviceFacts("cuda", usable_cores=3))
        (advice,) = ask("DP501", make_measured(wait_share=0.45, world=1), [facts])
        assert (str(advice.changes[0].at), labelled(advice, "num_workers is passed at")) == ("train.py:12", shown)


def test_a_schedule_with_the_line_that_steps_it(ask, make_measured, make_facts):
    loader = LoaderFacts("train.py:9", batches_drawn=40, epoch_length=100)
    schedule = SchedulerFacts(
        "CosineAnnealingLR",
        "train.py:30",
        length=5,
        advanced=[2, 22],
        optimizer_steps=[2, 22],
        argument_lines={"optimizer": "train.py:31", "T_max": "train.py:32"},
        stepped_at="train.py:50",
    )
    (advice,) = ask("DP303", make_measured(), [make_facts(loaders=[loader], schedulers=[schedule])])
    assert labelled(advice, "stepped at") == ["train.py:50"]
    assert labelled(advice, "T_max is passed at") == ["train.py:32"]


def test_a_scaler_that_is_off_beside_fp16(ask, make_measured, make_facts):
    facts = make_facts(
        autocast="cuda:float16",
        autocast_where="train.py:40",
        grad_scaler=False,
        grad_scaler_where="train.py:33",
        losses=[2.0] * 4,
        loss_scaling=LossScalingFacts(4, 4, 1.0),
        optimizers=[OptimizerFacts("SGD")],
    )
    (advice,) = ask("DP403", make_measured(), [facts])
    assert labelled(advice, "GradScaler, not enabled, created at") == ["train.py:33"]


def test_the_epoch_before_which_set_epoch_is_missing(ask, make_measured, make_facts):
    loader = LoaderFacts(
        "train.py:20",
        batch_size=4,
        dataset="Rows",
        dataset_samples=40,
        replicas=2,
        batches_drawn=12,
        sampler="DistributedSampler",
        sampler_epoch=0,
        distributed_sampler=True,
        sampler_where="train.py:18",
        iterated_at="train.py:61",
    )
    (advice,) = ask("DP504", make_measured(), [make_facts(ddp=[SENDS], loaders=[loader])])
    assert advice.title == (
        "The loop at train.py:61 never calls DistributedSampler.set_epoch: every epoch has the same batches in the "
        "same order"
    )
    assert labelled(advice, "sampler created at") == ["train.py:18"]


def test_the_line_that_pads_comes_before_the_first_line_of_its_function(ask, make_measured, make_facts):
    padding = PaddingFacts(10, 1280, 640, 0.3, ["data.py:15", "data.py:16"])
    preparing = PreparingFacts(10, collated_by="Collator.__call__ (data.py:12)")
    loader = LoaderFacts("train.py:40", batches_drawn=10, padding=padding, preparing=preparing)
    (advice,) = ask("DP506", make_measured(device="cpu"), [make_facts(loaders=[loader])])
    assert "(`Collator.__call__`, data.py:15)" in advice.title
    assert labelled(advice, "padded at") == ["data.py:15, data.py:16"]
    padding.lines = ["tokens.py:7"]  # of a tokenizer, before
    (advice,) = ask("DP506", make_measured(device="cpu"), [make_facts(loaders=[loader])])
    assert "(tokens.py:7)" in advice.title


def test_what_turns_anomaly_detection_on(ask, make_measured, make_facts):
    on = {"settings": {"anomaly_mode": True}, "anomaly_where": "train.py:14"}
    (advice,) = ask("DP605", make_measured(), [make_facts(**on)])
    assert labelled(advice, "turned on at") == ["train.py:14"]
    (advice,) = ask("DP605", make_measured(), [make_facts(**on, library_calls=[TRAINER])])
    assert labelled(advice, "turned on at") == ["train.py:63"]
    (advice,) = ask("DP605", make_measured(), [make_facts(settings={"anomaly_mode": True})])
    assert labelled(advice, "turned on at") == []


def test_where_a_needless_scaler_is_created(ask, make_measured, make_facts):
    scaler = {"grad_scaler": True, "grad_scale": 65536.0, "grad_scaler_where": "train.py:33"}
    (advice,) = ask("DP403", make_measured(), [make_facts(autocast="cuda:bfloat16", **scaler)])
    assert advice.title.startswith("A GradScaler is enabled (train.py:33), and autocast uses bf16")
    assert labelled(advice, "scaler created at") == ["train.py:33"]


def sampled(path, ms, **more):
    return SampledFacts(path, looks=25, steps=list(range(25)), spent_ns=[ms * 1_000_000] * 25, **more)


def test_how_a_function_of_the_loader_is_called(ask, make_measured, make_facts):
    """Of 8 ms of a step, 6 are in `pieces`: 4 in its line 45 and 2 in line 46."""
    window = Window("untraced", 3, [10_000_000] * 25)
    way = ["main (train.py:90)", "Texts.__getitem__ (train.py:80)", "Texts.encode (train.py:71)"]
    window.sampled = [
        sampled([*way, "pieces (train.py:45)"], 4, phase="loader"),
        sampled([*way, "pieces (train.py:46)"], 2, phase="loader"),
        sampled(["main (train.py:92)"], 2, phase="forward"),
    ]
    lacking = {"preparing": "it was not metered"}
    waits = InputFigures(wait_share=0.6, wait_ns=1, computed_share=1.0, missing=lacking)
    cpu = DeviceFacts("cpu", cores=2, usable_cores=2, torch_threads=1)
    facts = make_facts(windows=[window], loaders=[LoaderFacts("train.py:88", num_workers=0)], device=cpu)
    (advice,) = ask("DP501", make_measured(device="cpu", input=waits, world=1), [facts], {"handover_ms": 0.0})
    assert "`pieces` (train.py:45)" in advice.title
    assert labelled(advice, "called at") == ["train.py:90, train.py:80, train.py:71"]
    assert labelled(advice, "lines that take most time") == ["train.py:45 (67 %), train.py:46 (33 %)"]


def test_a_slow_step_has_the_line_in_the_method_and_of_the_setting(ask, make_measured, make_facts):
    """25 steps of 10 ms; each fifth takes 90 ms longer, in a method of another file or in a library."""
    durations_ns = [(100 if at % 5 == 4 else 10) * 10**6 for at in range(25)]
    window = Window("untraced", 3, durations_ns)
    usual = sampled(["fit (train.py:9)"], 9, phase="forward")
    slow = SampledFacts(
        ["fit (train.py:12)", "Saver.save (saver.py:58)"], looks=9, steps=[4, 9, 14, 19, 24], spent_ns=[90 * 10**6] * 5
    )
    window.sampled = [usual, slow]
    (advice,) = ask("DP703", make_measured(world=1), [make_facts(windows=[window])])
    assert advice.title.startswith("`Saver.save` (train.py:12) adds 90.0 ms to one step in 5")
    window.sampled = [usual, replace(slow, path=[slow.path[0], "Saver.save (train.py:58)"])]
    (advice,) = ask("DP703", make_measured(world=1), [make_facts(windows=[window])])
    assert advice.why.endswith(" Most of it is at train.py:58.")
    evaluates = {"through": "transformers.Trainer.evaluate", "kind": "evaluation", "phase": "forward"}
    window.sampled = [usual, replace(slow, path=["fit (train.py:9)"], **evaluates)]
    (advice,) = ask("DP703", make_measured(world=1), [make_facts(windows=[window], library_calls=[ARGUMENTS])])
    assert labelled(advice, "frequency set at") == ["train.py:54"]
