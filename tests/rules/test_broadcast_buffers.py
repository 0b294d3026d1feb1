from dataclasses import replace

import pytest

from dptune.measured import Missing
from dptune.runfile.communication import DdpFacts
from dptune.runfile.window import Window

SENDS = DdpFacts("Net", "train.py:31", broadcast_buffers=True, buffer_bytes=4_000_000)


def test_broadcasts_before_forward_passes(ask, make_measured, make_facts, hand_made):
    sent = hand_made.all_reduce(4_000_000, 1, kind="broadcast")
    rows = hand_made.overlap(("broadcast", "forward", 0.08), ("all_reduce", "backward", 0.3), most=0.16)
    run = make_measured(overlap=rows, collectives=[sent])
    (advice,) = ask("DP104", run, [make_facts(ddp=[SENDS])])
    assert advice.title == "Exposed buffer broadcasts take 8 % of a step (3.81 MiB)"
    (change,) = advice.changes
    assert (change.knob, change.now, change.then, str(change.at)) == (
        "ddp.broadcast_buffers",
        True,
        False,
        "train.py:31",
    )
    assert (advice.impact, advice.saves.basis, advice.numerics) == ("medium", "bound", "changes")
    assert advice.saves.high_share == pytest.approx(0.16)  # rank 0 sends, and waits for none


@pytest.mark.parametrize(("device", "idle", "saved"), [("cuda", 0.3, 0.2), ("cuda", 0.1, 0.1), ("cuda", 0.01, None)])
def test_buffers_that_keep_the_host_busy_while_the_gpu_idles(ask, make_facts, hand_made, device, idle, saved):
    """The host takes 20 % of the step for them, and the broadcasts themselves nothing."""
    whole = hand_made.STEP_NS
    idle_ns = round(idle * whole)
    made = hand_made.measured_run(
        spent=[hand_made.Account(window_ns=whole, compute_ns=whole - idle_ns, launch_idle_ns=idle_ns)],
        device=device,
        overlap=hand_made.overlap(("broadcast", "forward", 0.0)),
        collectives=[hand_made.all_reduce(400, 1, kind="broadcast")],
        buffer_sync_share=0.2,
    )
    said = ask("DP104", made, [make_facts(ddp=[DdpFacts("Net", broadcast_buffers=True, buffer_bytes=400)])])
    assert [one.saves.high_share for one in said] == ([] if saved is None else [pytest.approx(saved)])
    assert all(one.impact != "low" for one in said)  # however few bytes they are


def test_on_a_cpu_copies_of_the_buffers_count_too(ask, make_measured, make_facts, hand_made):
    """Of a step, 8 % are exposed broadcasts, 16 % on the rank that waits longest; with the copies 20 % on average.

    They may cost the compute beside them as much again.
    """
    sent = hand_made.all_reduce(4_000_000, 1, kind="broadcast")
    rows = hand_made.overlap(("broadcast", "forward", 0.08), most=0.16)
    run = make_measured(device="cpu", overlap=rows, collectives=[sent], buffer_sync_share=0.2)
    (advice,) = ask("DP104", run, [make_facts(ddp=[SENDS])])
    assert advice.title == "The host spends 20 % of a step on DDP's buffer broadcasts (3.81 MiB)"
    assert (advice.impact, advice.saves.high_share) == ("high", pytest.approx(2 * 0.28))
    small = make_measured(
        device="cpu",
        overlap=rows,
        collectives=[hand_made.all_reduce(400, 1, kind="broadcast")],
        buffer_sync_share=0.2,
    )
    (advice,) = ask("DP104", small, [make_facts(ddp=[replace(SENDS, buffer_bytes=400)])])
    assert advice.impact == "low"  # mostly latency and waiting
    assert advice.saves.high_share == pytest.approx(0.28)


@pytest.mark.parametrize(
    ("through", "paste", "place"),
    [
        ("", "DistributedDataParallel(model, ..., broadcast_buffers=False)", "train.py:31"),
        ("unheard.of", "DistributedDataParallel(model, ..., broadcast_buffers=False)", "train.py:31"),
        ("transformers.Trainer.train", "TrainingArguments(..., ddp_broadcast_buffers=False)", "None"),
        ("lightning.Trainer.fit", "Trainer(..., strategy=DDPStrategy(broadcast_buffers=False))", "None"),
        (
            "accelerate.Accelerator.prepare",
            "Accelerator(..., kwargs_handlers=[DistributedDataParallelKwargs(broadcast_buffers=False)])",
            "None",
        ),
    ],
)
def test_the_setting_is_that_of_what_makes_the_module(ask, make_measured, make_facts, hand_made, through, paste, place):
    """Libraries take it in arguments of their own, at another line than that which has them wrap the module."""
    sent = hand_made.all_reduce(4_000_000, 1, kind="broadcast")
    run = make_measured(overlap=hand_made.overlap(("broadcast", "forward", 0.08)), collectives=[sent])
    (advice,) = ask("DP104", run, [make_facts(ddp=[replace(SENDS, through=through)])])
    assert [(change.paste, str(change.at)) for change in advice.changes] == [(paste, place)]


@pytest.mark.parametrize(
    ("batch_norms", "words"),
    [
        (0, "The model has no batch norm: "),
        (3, "Each rank then keeps its own running statistics: "),
        (None, "If the model has batch norm: each rank then keeps its own running statistics: "),
    ],
)
def test_only_a_model_with_batch_norm_has_statistics(ask, make_measured, make_facts, hand_made, batch_norms, words):
    sent = hand_made.all_reduce(4_000_000, 1, kind="broadcast")
    run = make_measured(overlap=hand_made.overlap(("broadcast", "forward", 0.08)), collectives=[sent])
    (advice,) = ask("DP104", run, [make_facts(ddp=[replace(SENDS, batch_norms=batch_norms)])])
    assert advice.watch.startswith(words)


def test_the_ceiling_takes_in_how_far_processes_lie_apart(ask, make_measured, make_facts, hand_made):
    rows = hand_made.overlap(("broadcast", "forward", 0.08))
    sent = hand_made.all_reduce(4_000_000, 1, kind="broadcast")
    run = make_measured(overlap=rows, collectives=[sent])
    step = run.step.model_copy(update={"repeats_ns": [int(1.02 * hand_made.STEP_NS), int(0.96 * hand_made.STEP_NS)]})
    (alone,) = ask("DP104", run, [make_facts(ddp=[SENDS])])
    (advice,) = ask("DP104", run.model_copy(update={"step": step}), [make_facts(ddp=[SENDS])])
    assert advice.saves.high_share - alone.saves.high_share == pytest.approx(0.03)  # of 0.96, 1 and 1.02 steps


def test_a_few_bytes_are_a_note_whatever_they_hold_up(ask, make_measured, make_facts, hand_made):
    rows = hand_made.overlap(("broadcast", "forward", 0.2))
    for buffer_bytes, impact in ((2**16 - 1, "low"), (2**16, "high")):
        ddp = DdpFacts("Net", broadcast_buffers=True, buffer_bytes=buffer_bytes)
        sent = hand_made.all_reduce(buffer_bytes, 1, kind="broadcast")
        (advice,) = ask("DP104", make_measured(overlap=rows, collectives=[sent]), [make_facts(ddp=[ddp])])
        assert advice.impact == impact


@pytest.mark.parametrize(
    ("ddp", "rows"),
    [
        (SENDS, [("broadcast", "forward", 0.01)]),
        (SENDS, [("broadcast", "backward", 0.3), ("all_reduce", "forward", 0.3)]),
        (DdpFacts("Net", broadcast_buffers=False, buffer_bytes=4_000_000), [("broadcast", "forward", 0.3)]),
        (DdpFacts("Net", broadcast_buffers=True, buffer_bytes=0), [("broadcast", "forward", 0.3)]),
    ],
)
def test_quiet(ask, make_measured, make_facts, hand_made, ddp, rows):
    assert ask("DP104", make_measured(overlap=hand_made.overlap(*rows)), [make_facts(ddp=[ddp])]) == []


def test_what_the_script_broadcasts_itself_is_not_theirs(ask, make_measured, make_facts, hand_made):
    sent = hand_made.all_reduce(4_000_000, 2, kind="broadcast")
    run = make_measured(overlap=hand_made.overlap(("broadcast", "forward", 0.08)), collectives=[sent])
    with pytest.raises(Missing, match="the script has broadcasts of its own"):
        ask("DP104", run, [make_facts(ddp=[SENDS])])


def timed(make_facts, *of_ranks, **changed):
    """Ranks with these ms in each of two steps of 10 ms."""
    windows = [
        Window("untraced", 3, [10_000_000] * 2, buffer_sync_ns=[int(ms * 1e6) for ms in of_steps])
        for of_steps in of_ranks
    ]
    ddp = replace(SENDS, **changed)
    return [make_facts(rank=rank, ddp=[ddp], windows=[window]) for rank, window in enumerate(windows)]


def test_on_a_cpu_the_rank_that_arrives_last_shows_what_is_saved_at_least(ask, make_measured, make_facts, hand_made):
    """Rank 0 spends 1 and 4 ms, rank 1 3 and 2: 15 % of the steps without waiting, 25 % in all; twice 28 % at most."""
    sent = hand_made.all_reduce(4_000_000, 1, kind="broadcast")
    rows = hand_made.overlap(("broadcast", "forward", 0.08), most=0.16)
    run = make_measured(device="cpu", overlap=rows, collectives=[sent], buffer_sync_share=0.2)
    (advice,) = ask("DP104", run, timed(make_facts, (1, 4), (3, 2)))
    assert advice.saves.basis == "timed"
    assert (advice.saves.low_share, advice.saves.high_share) == pytest.approx((0.8 * 0.15, 2 * 0.28))
    assert advice.saves.predicted_share == pytest.approx((0.15 + 0.25) / 2)
    # One rank was not timed, or a rank spends nothing: a bound.
    for ranks in (((1, 4),), ((1, 4), (0, 0))):
        (advice,) = ask("DP104", run, timed(make_facts, *ranks))
        assert (advice.saves.basis, advice.saves.low_share) == ("bound", 0)


def test_on_a_gpu_or_of_few_bytes_the_host_time_is_no_prediction(ask, make_measured, make_facts, hand_made):
    rows = hand_made.overlap(("broadcast", "forward", 0.08), most=0.16)
    few = make_measured(
        device="cpu",
        overlap=rows,
        collectives=[hand_made.all_reduce(400, 1, kind="broadcast")],
        buffer_sync_share=0.2,
    )
    (advice,) = ask("DP104", few, timed(make_facts, (1, 4), (3, 2), buffer_bytes=400))
    assert advice.saves.basis == "bound"
    gpu = make_measured(overlap=rows, collectives=[hand_made.all_reduce(4_000_000, 1, kind="broadcast")])
    (advice,) = ask("DP104", gpu, timed(make_facts, (1, 4), (3, 2)))
    assert advice.saves.basis == "bound"
