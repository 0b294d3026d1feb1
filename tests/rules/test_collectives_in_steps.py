import pytest

from dptune.runfile.clipping import ClippingFacts
from dptune.runfile.communication import CallFacts, DdpFacts, FsdpFacts
from dptune.runfile.facts import OptimizerFacts
from dptune.runfile.gathered_embeddings import GatheredEmbeddingFacts
from dptune.runfile.window import SampledFacts, Window

PICKLED = "each call pickles objects: send tensors, or call it every N steps"
DDP = DdpFacts("Net", "train.py:31", broadcast_buffers=True, buffer_bytes=0)
ROWS = ("barrier", "forward", 0.02), ("all_gather", "forward", 0.07), ("all_reduce", "backward", 0.3)


def test_what_the_script_calls_itself(ask, make_measured, make_facts, hand_made):
    (advice,) = ask("DP105", make_measured(overlap=hand_made.overlap(*ROWS)), [make_facts(ddp=[DDP])])
    assert advice.title == "Exposed collectives outside of backward passes take 9 % of a step: all_gather, barrier"
    assert advice.saves.high_share == pytest.approx(0.09)
    assert (advice.impact, advice.saves.basis, advice.changes) == ("medium", "bound", [])
    assert [(one.label, one.unit) for one in advice.evidence] == [
        ("barrier (forward phase)", "of a step, 1 call per step"),
        ("all_gather (forward phase)", "of a step, 1 call per step"),
    ]


def test_a_rank_that_waits_longer_than_another_may_save_all_that_it_waits(ask, make_measured, make_facts, hand_made):
    """One reads and sends for two: it hardly waits itself, the other one for 40 % of its steps."""
    overlap = hand_made.overlap(("broadcast", "forward", 0.2), most=0.4)
    (advice,) = ask("DP105", make_measured(overlap=overlap), [make_facts(ddp=[DDP])])
    assert "take 20 % of a step" in advice.title
    assert advice.saves.high_share == pytest.approx(0.4)


def test_not_what_wrappers_send(ask, make_measured, make_facts, hand_made):
    buffers = make_facts(ddp=[DdpFacts("Net", broadcast_buffers=True, buffer_bytes=100)])
    run = make_measured(overlap=hand_made.overlap(("broadcast", "forward", 0.3)))
    assert ask("DP105", run, [buffers]) == []
    assert len(ask("DP105", run, [make_facts(ddp=[DDP])])) == 1
    run = make_measured(overlap=hand_made.overlap(("broadcast", "optimizer", 0.3)))
    assert ask("DP105", run, [make_facts(ddp=[DDP], optimizers=[OptimizerFacts("ZeroRedundancyOptimizer")])]) == []
    assert len(ask("DP105", run, [make_facts(ddp=[DDP], optimizers=[OptimizerFacts("AdamW")])])) == 1
    run = make_measured(overlap=hand_made.overlap(*ROWS))
    assert ask("DP105", run, [make_facts(fsdp=[FsdpFacts(2)])]) == []  # no line: the model may need them
    assert ask("DP105", run, [make_facts(ddp=[DDP], engine="deepspeed")]) == []


def test_quiet_where_it_is_little(ask, make_measured, make_facts, hand_made):
    run = make_measured(overlap=hand_made.overlap(("barrier", "forward", 0.015)))
    assert ask("DP105", run, [make_facts(ddp=[DDP])]) == []
    (advice,) = ask("DP105", run, [make_facts(ddp=[DDP])], {"worth_share": 0.01})  # below what a note is, and asked for
    assert advice.impact == "low"


def test_the_functions_that_the_script_calls_are_named_with_their_lines(ask, make_measured, make_facts, hand_made):
    calls = [
        CallFacts("barrier", "train.py:9", [0, 1], calls=20, host_ns=40_000_000),
        CallFacts("all_gather_object", "train.py:8", [0, 1], calls=20, host_ns=80_000_000),
        CallFacts("all_reduce", "eval.py:3", [0, 1], calls=2, host_ns=900_000_000),  # not in each step
    ]
    facts = make_facts(ddp=[DDP], calls=calls, calls_steps=20)
    (advice,) = ask("DP105", make_measured(overlap=hand_made.overlap(*ROWS)), [facts])
    assert advice.title.endswith(f"9 % of a step: all_gather_object (train.py:8), barrier (train.py:9); {PICKLED}")
    assert [(one.label, one.value, one.unit) for one in advice.evidence[2:]] == [
        ("all_gather_object at train.py:8", 4.0, "ms per call on this rank, 1 call per step"),
        ("barrier at train.py:9", 2.0, "ms per call on this rank, 1 call per step"),
    ]


@pytest.mark.parametrize(
    ("call", "may_be_needed"),
    [
        ({"function": "all_reduce"}, True),
        ({"function": "all_gather", "library": "accelerate", "through": "accelerate.Accelerator.gather"}, True),
        ({"function": "barrier"}, False),
        ({"function": "all_gather_object"}, False),
    ],
)
def test_a_result_that_the_loss_uses_is_needed(ask, make_measured, make_facts, hand_made, call, may_be_needed):
    """As the number of tokens over all ranks is."""
    known = {"where": "train.py:9", "ranks": [0, 1], "calls": 20, "host_ns": 40_000_000, **call}
    facts = make_facts(ddp=[DDP], calls=[CallFacts(**known)], calls_steps=20)
    (advice,) = ask("DP105", make_measured(overlap=hand_made.overlap(*ROWS)), [facts])
    assert advice.watch.startswith("Keep a call whose result the loss") == may_be_needed


@pytest.mark.parametrize(
    ("library", "through", "said"),
    [
        ("lightning", "lightning.LightningModule.log", "LightningModule.log (train.py:9); pass sync_dist=False, or"),
        ("torchmetrics", "pytorch_lightning.LightningModule.log_dict", "log_dict (train.py:9); pass sync_dist=False"),
        ("accelerate", "accelerate.DataLoaderDispatcher.__iter__", "(train.py:9); set dispatch_batches=False"),
        ("accelerate", "accelerate.Accelerator.gather", "Accelerator.gather (train.py:9); call it every N steps"),
        ("torchmetrics", "torchmetrics.Metric.forward", "Metric.forward (train.py:9); compute the metric once an"),
        ("lightning", "lightning.Trainer.fit", ""),
        ("open_clip", "open_clip.ClipLoss.forward", ""),
        ("accelerate", "accelerate.gather_object", ""),  # of tensors: an object is pickled
    ],
)
def test_what_a_library_calls_for_a_line_is_named_with_its_setting(
    ask, make_measured, make_facts, hand_made, library, through, said
):
    """What it calls by itself, or what the loss needs, is not."""
    theirs = {"library": library, "through": through, "calls": 20}
    calls = [
        CallFacts("barrier", "train.py:9", [0, 1], host_ns=20_000_000, **theirs),
        CallFacts("all_reduce", "train.py:9", [0, 1], host_ns=60_000_000, **theirs),
    ]
    facts = make_facts(ddp=[DDP], calls=calls, calls_steps=20)
    found = ask("DP105", make_measured(overlap=hand_made.overlap(*ROWS)), [facts])
    assert len(found) == bool(said)
    for advice in found:
        assert said in advice.title
        (line,) = advice.evidence[2:]
        assert (line.value, line.unit) == (4.0, "ms per call on this rank, 1 call per step")


@pytest.mark.parametrize(
    ("function", "through", "named"),
    [
        ("all_gather_object", "accelerate.gather_object", True),
        ("broadcast_object_list", "anything.comm.broadcast_object", True),
        ("scatter_object_list", "anything.scatter_batch", True),
        ("all_gather_object", "anything.Trainer.fit", False),
        ("all_reduce", "anything.gather_object", False),
    ],
)
def test_objects_that_a_library_sends_for_a_line_are_named(
    ask, make_measured, make_facts, hand_made, function, through, named
):
    """A library that runs the loop itself sends them by itself."""
    call = CallFacts(function, "train.py:9", [0, 1], calls=20, library=through.partition(".")[0], through=through)
    facts = make_facts(ddp=[DDP], calls=[call], calls_steps=20)
    found = ask("DP105", make_measured(overlap=hand_made.overlap(*ROWS)), [facts])
    assert [one.title.partition("of a step: ")[2] for one in found] == (
        [f"{through.partition('.')[2]} (train.py:9); {PICKLED}"] if named else []
    )
    assert all("pickles and unpickles objects" in one.why for one in found)


def test_quiet_where_ranks_share_a_model(ask, make_measured, make_facts, hand_made):
    """Gradients are all-reduced among ranks 0 and 2, and something else in each step among 0 and 1."""
    run, ddp = make_measured(overlap=hand_made.overlap(*ROWS)), DdpFacts("Net", ranks=[0, 2])
    for ranks, said in (([0, 1], 0), ([0, 2], 1)):
        calls = [CallFacts("all_reduce", "train.py:9", ranks, calls=20)]
        assert len(ask("DP105", run, [make_facts(ddp=[ddp], calls=calls, calls_steps=20)])) == said


def test_quiet_where_only_a_library_calls_any(ask, make_measured, make_facts, hand_made):
    run = make_measured(overlap=hand_made.overlap(*ROWS))
    theirs = CallFacts("broadcast", "train.py:9", [0, 1], calls=20, library="lightning")
    own = CallFacts("barrier", "train.py:12", [0, 1], calls=20)
    assert ask("DP105", run, [make_facts(ddp=[DDP], calls=[theirs], calls_steps=20)]) == []
    (advice,) = ask("DP105", run, [make_facts(ddp=[DDP], calls=[theirs, own], calls_steps=20)])
    assert advice.title.endswith("of a step: barrier (train.py:12)")


def called(function, where, untraced_ms, **more):
    """A call in each of 20 steps, 10 of them without the profiler, where it takes so many ms; twice that beside it."""
    timed = {"untraced_calls": 10, "untraced_ns": int(10 * untraced_ms * 1e6)}
    return CallFacts(function, where, [0, 1], calls=20, host_ns=int(30 * untraced_ms * 1e6), **timed, **more)


def sharded(make_facts, calls, rank=0, mesh=(2,)):
    """Facts of a rank that shards its model, and took 10 steps of 10 ms without the profiler."""
    windows = [Window("untraced", 3, durations_ns=[10_000_000] * 10)]
    fsdp = [FsdpFacts(2, units=4, where="train.py:20", mesh=list(mesh))]
    return make_facts(fsdp=fsdp, calls=calls, calls_steps=20, windows=windows, rank=rank)


OF_FSDP = ("all_gather", "forward", 0.2, "sharding"), ("reduce_scatter", "forward", 0.1, "sharding")
HOOKS = {"library": "torch", "through": ""}


def test_what_the_script_gathers_of_sharded_parameters(ask, make_measured, make_facts, hand_made):
    """1.2 and 1.6 ms of steps of 10 ms on the two ranks; what FSDP gathers itself, and a norm, are not counted."""
    overlap = hand_made.overlap(*OF_FSDP, ("all_gather", "forward", 0.11), ("all_reduce", "forward", 0.05))
    clipping = called("redistribute_local_tensor", "train.py:30", 2.0, library="torch", through="torch.clip_grad_norm_")
    own = called("all_gather_single", "train.py:29", 3.0, **HOOKS)
    each = [[own, clipping, called("full_tensor", "train.py:33", ms)] for ms in (1.2, 1.6)]
    facts = [sharded(make_facts, calls, rank) for rank, calls in enumerate(each)]
    (advice,) = ask("DP105", make_measured(overlap=overlap, device="cpu"), facts)
    assert advice.title == (
        "Exposed collectives outside of backward passes take 14 % of a step: full_tensor() (train.py:33); "
        "reduce each rank's shard with to_local(), and log every N steps"
    )
    # Each rank spends at least 12 % of its steps in the calls, of which a fifth may stay; one spends 16 %.
    assert advice.saves.basis == "timed"
    assert (advice.saves.low_share, advice.saves.high_share) == pytest.approx((0.8 * 0.12, 1.1 * 0.16))
    assert [one.label for one in advice.evidence] == ["all_gather (forward phase)", "full_tensor() at train.py:33"]
    assert advice.evidence[1].value == pytest.approx(1.2)  # ms without the profiler


@pytest.mark.parametrize(
    ("function", "after_updates", "sent", "hook", "redundant"),
    [
        ("broadcast", 200, 20 * 4000, None, True),
        ("all_reduce", 200, 20 * 4000, None, True),
        ("all_reduce", 199, 20 * 4000, None, False),  # some before the optimizer steps
        ("all_reduce", 200, 20 * 3000, None, False),  # less than the parameters: metrics
        ("broadcast", 200, 20 * 4000, "powerSGD_hook", False),
        ("barrier", 200, 20 * 4000, None, False),
    ],
)
def test_weights_that_are_sent_after_each_step_are_equal_already(
    ask, make_measured, make_facts, hand_made, function, after_updates, sent, hook, redundant
):
    """Ten tensors of 400 bytes, in each of 20 steps."""
    call = CallFacts(
        function, "train.py:8", [0, 1], 200, host_ns=80_000_000, sent_bytes=sent, after_updates=after_updates
    )
    ddp = DdpFacts("Net", "train.py:31", gradient_bytes=4000, comm_hook=hook)
    facts = make_facts(ddp=[ddp], calls=[call], calls_steps=20)
    (advice,) = ask("DP105", make_measured(overlap=hand_made.overlap(*ROWS)), [facts])
    assert advice.title.endswith("which keeps equal weights equal") == redundant


def test_an_operator_on_a_sharded_tensor_is_named_with_its_line(ask, make_measured, make_facts, hand_made):
    overlap = hand_made.overlap(*OF_FSDP, ("all_reduce", "forward", 0.08))
    facts = sharded(make_facts, [called("redistribute_local_tensor", "train.py:33", 0.8)])
    (advice,) = ask("DP105", make_measured(overlap=overlap, device="cpu"), [facts])
    assert "take 8 % of a step: DTensor operator (train.py:33)" in advice.title


def test_quiet_of_sharded_models_whose_script_calls_none(ask, make_measured, make_facts, hand_made):
    own = called("all_gather_single", "train.py:29", 3.0, **HOOKS)
    clipping = called("redistribute_local_tensor", "train.py:30", 2.0, library="torch", through="torch.clip_grad_norm_")
    run = make_measured(overlap=hand_made.overlap(*OF_FSDP, ("all_reduce", "forward", 0.2)), device="cpu")
    assert ask("DP105", run, [sharded(make_facts, [own, clipping])]) == []
    line = called("full_tensor", "train.py:33", 1.0)
    assert len(ask("DP105", run, [sharded(make_facts, [own, line])])) == 1
    assert ask("DP105", run, [sharded(make_facts, [own, line], mesh=(1,))]) == []  # tensors are parallel, too


@pytest.mark.parametrize(("clipped", "found"), [(51 * 4, 1), (2 * 4, 0)])
def test_gradients_of_shards_that_are_clipped_one_by_one(ask, make_measured, make_facts, hand_made, clipped, found):
    """51 parameters, or two optimizers that share the line, in each of four warm-up steps."""
    clipping = called("redistribute_local_tensor", "train.py:30", 2.0, library="torch", through="torch.clip_grad_norm_")
    facts = [sharded(make_facts, [clipping], rank) for rank in (0, 1)]
    for rank_facts in facts:
        rank_facts.clipping = [ClippingFacts("train.py:30", "AdamW", calls=clipped, steps=4)]
    run = make_measured(overlap=hand_made.overlap(*OF_FSDP, ("all_reduce", "forward", 0.15)), device="cpu")
    advice = ask("DP105", run, facts)
    assert len(advice) == found
    for one in advice:
        assert one.title.endswith(
            "take 20 % of a step: clip_grad_norm_ (train.py:30); clip all parameters in one clip_grad_norm_ call, "
            "which all-reduces one norm"
        )
        assert (one.numerics, one.saves.basis) == ("changes", "timed")
        assert one.watch.startswith("One call scales all gradients by one norm")


def test_a_script_that_does_not_wait_pays_what_is_exposed(ask, make_measured, make_facts, hand_made):
    """Asynchronous calls return at once, and so do those on GPUs: what the step pays is in the trace."""
    started = CallFacts("all_reduce", "train.py:33", [0, 1], calls=20, host_ns=20_000)
    run = make_measured(overlap=hand_made.overlap(*OF_FSDP, ("all_reduce", "forward", 0.07)), device="cpu")
    (advice,) = ask("DP105", run, [sharded(make_facts, [started])])
    assert "take 7 % of a step: all_reduce (train.py:33)" in advice.title
    run = make_measured(overlap=hand_made.overlap(*OF_FSDP, ("all_reduce", "forward", 0.07)), device="cuda")
    (advice,) = ask("DP105", run, [sharded(make_facts, [called("all_reduce", "train.py:33", 0.01)])])
    assert "take 7 % of a step" in advice.title


def test_quiet_while_the_rank_that_dispatches_batches_waits_for_its_own_loader(
    ask, make_measured, make_facts, hand_made
):
    """Rank 1 waits 30 % of a step in the broadcast, while rank 0 waits 40 % for its own loader."""
    calls = [
        CallFacts(
            "broadcast",
            "train.py:9",
            [0, 1],
            calls=20,
            host_ns=60_000_000,
            library="accelerate",
            through="accelerate.DataLoaderDispatcher.__iter__",
        )
    ]
    facts = [make_facts(ddp=[DDP], calls=calls, calls_steps=20)]

    def advised(*waits):
        run = make_measured(overlap=hand_made.overlap(("broadcast", "forward", 0.3)))
        ranks = [
            one.model_copy(update={"loader_wait_share": wait, "missing": {**one.missing} | {"loader_wait_share": ""}})
            for one, wait in zip(run.ranks, waits, strict=True)
        ]
        return ask("DP105", run.model_copy(update={"ranks": ranks}), facts)

    assert len(advised(0.05, 0.0)) == 1
    assert advised(0.4, 0.0) == []


@pytest.mark.parametrize(
    ("function", "waiting", "unsplit", "low"),
    [
        ("full_tensor", 0.5, 0.0, 0.8 * (0.12 - 0.055)),  # half of 11 %
        ("full_tensor", 1.0, 0.0, 0.8 * (0.12 - 0.11)),
        ("all_gather_object", 0.5, 0.0, 0.8 * (0.12 - 0.055)),
        ("broadcast_object_list", 0.0, 0.0, None),  # one rank sends to the others
        ("full_tensor", 0.5, 0.2, None),  # of the exposed communication a fifth may be waiting, too
    ],
)
def test_waiting_for_another_rank_is_not_sure_to_be_saved(
    ask, make_measured, make_facts, hand_made, function, waiting, unsplit, low
):
    """The ranks spend 12 and 16 % of their steps in the calls; 11 % of a step is exposed in them."""
    overlap = hand_made.overlap(*OF_FSDP, ("all_gather", "forward", 0.11), waiting=waiting)
    run = make_measured(overlap=overlap, device="cpu")
    spent = run.account.model_copy(
        update={"exposed_transfer_ns": int(1e9 * (1 - unsplit)), "exposed_unsplit_ns": int(1e9 * unsplit)}
    )
    facts = [sharded(make_facts, [called(function, "train.py:33", ms)], rank) for rank, ms in enumerate((1.2, 1.6))]
    (advice,) = ask("DP105", run.model_copy(update={"account": spent}), facts)
    if low is None:
        assert (advice.saves.basis, advice.saves.low_share) == ("bound", 0)
    else:
        assert (advice.saves.basis, advice.saves.low_share) == ("timed", pytest.approx(low))
    assert advice.saves.high_share == pytest.approx((1.0 if low is None else 1.1) * 0.16)


@pytest.mark.parametrize(("function", "basis", "times"), [("all_reduce", "timed", 1.1), ("broadcast", "bound", 1.0)])
def test_a_function_that_only_makes_these_calls_goes_with_them(
    ask, make_measured, make_facts, hand_made, function, basis, times
):
    """20 % of the steps are in the calls, and 24 % in `synchronise`, which divides what they give."""

    def asked(own_ms, **more):
        """`synchronise` takes 2 ms of each 10 in the calls, and so many besides; the rest is the backward pass."""
        ms = {("collective", 8): 2.0, ("", 9): own_ms}
        sampled = [sample(f"synchronise (train.py:{line})", phase, each) for (phase, line), each in ms.items()]
        sampled.append(sample("main (train.py:30)", "backward", 10 - 2 - own_ms))
        window = Window("untraced", 3, durations_ns=[10_000_000] * 10, sampled=sampled)
        calls = [called(function, "train.py:8", 2.0, caller="synchronise", **more)]
        facts = [make_facts(ddp=[DDP], calls=calls, calls_steps=20, windows=[window], rank=rank) for rank in (0, 1)]
        run = make_measured(overlap=hand_made.overlap((function, "optimizer", 0.2)), device="cpu")
        (advice,) = ask("DP105", run, facts)
        assert advice.saves.basis == basis
        return advice.saves

    alone = asked(0.4)
    assert alone.high_share == pytest.approx(times * 0.24, abs=0.011)  # all steps alike: known to half a sample
    assert alone.high_share > times * 0.24
    assert "at most the time of `synchronise`" in alone.how
    assert asked(4.0).high_share == pytest.approx(times * 0.2)  # it does other work, too


def sample(line, phase, ms):
    """Stack samples of 10 steps, one each 0.2 ms."""
    looks = round(10 * ms / 0.2)
    return SampledFacts([line], phase, looks=looks, steps=[*range(10)], spent_ns=[round(ms * 1e6)] * 10)


def test_embeddings_that_a_loss_uses_are_not_gathered_less_often(ask, make_measured, make_facts, hand_made):
    known = {"library": "accelerate", "through": "accelerate.Accelerator.gather", "ranks": [0, 1], "calls": 20}
    ours = make_facts(ddp=[DDP], calls=[CallFacts("all_gather", "train.py:9", host_ns=40_000_000, **known)])
    ours.calls_steps = 20
    ours.gathered_embeddings = [GatheredEmbeddingFacts("from_all (train.py:9)", "all_gather")]
    (advice,) = ask("DP105", make_measured(overlap=hand_made.overlap(*ROWS)), [ours])
    assert (advice.impact, advice.confidence) == ("low", "low")
    assert "every N steps" not in advice.title


@pytest.mark.parametrize("trained", [True, False])
def test_a_result_that_the_source_shows_in_training_has_low_impact(ask, make_measured, make_facts, hand_made, trained):
    through = {"library": "accelerate", "through": "accelerate.Accelerator.gather"}
    known = {"ranks": [0, 1], "calls": 20, "host_ns": 40_000_000, **through}
    calls = [CallFacts("all_gather", "train.py:9", trained=trained, **known)]
    run = make_measured(overlap=hand_made.overlap(*ROWS))
    (advice,) = ask("DP105", run, [make_facts(ddp=[DDP], calls=calls, calls_steps=20)])
    assert (advice.impact, advice.confidence) == (("low", "low") if trained else ("medium", "medium"))
    assert ("every N steps" in advice.title) is not trained
    assert ("training uses the result" in advice.remedy) is trained
    # Beside one that it does not use, the rest is still worth a change.
    calls.append(CallFacts("barrier", "train.py:12", [0, 1], calls=20, host_ns=40_000_000))
    (advice,) = ask("DP105", run, [make_facts(ddp=[DDP], calls=calls, calls_steps=20)])
    assert (advice.impact, advice.confidence) == ("medium", "medium")
