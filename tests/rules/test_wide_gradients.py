import pytest

from dptune.measured import Missing
from dptune.runfile.communication import DdpFacts

DDP = DdpFacts("Net", "train.py:31", gradient_dtypes=["float32"], gradient_bytes=4_200_000, comm_hook="")


def test_the_hook_that_is_predicted_to_save_more(ask, make_measured, make_facts, predict):
    """Of a step of 10 ms fp16 leaves 70 % and bf16 72 %, 5 % more or less."""
    told = predict("ddp.comm_hook", {"bf16": 0.72, "fp16": 0.7})
    (advice,) = ask("DP103", make_measured(exposed_share=0.5), [make_facts(ddp=[DDP])], predictor=told)
    assert advice.title == (
        "4.01 MiB of gradients travel as 32-bit floats, and 50 % of a step waits for them: "
        "with 16 bits a step takes 30 % less"
    )
    (change,) = advice.changes
    assert (change.knob, change.now, change.then, str(change.at)) == ("ddp.comm_hook", "none", "fp16", "train.py:31")
    assert (advice.impact, advice.numerics, advice.saves.basis) == ("high", "changes", "replayed")
    assert (advice.saves.low_ms, advice.saves.high_ms) == (pytest.approx(2.5), pytest.approx(3.5))


def test_of_two_that_are_alike_the_one_with_the_range_of_fp32(ask, make_measured, make_facts, predict):
    told = predict("ddp.comm_hook", {"bf16": 0.7, "fp16": 0.7})
    (advice,) = ask("DP103", make_measured(exposed_share=0.5), [make_facts(ddp=[DDP])], predictor=told)
    assert advice.changes[0].then == "bf16"


@pytest.mark.parametrize(
    "ddp",
    [
        DdpFacts("Net", gradient_dtypes=["float32"], comm_hook="fp16_gradients"),
        DdpFacts("Net", gradient_dtypes=["bfloat16"]),
        None,
    ],
)
def test_quiet_where_nothing_is_to_be_halved(ask, make_measured, make_facts, predict, ddp):
    told = predict("ddp.comm_hook", {"bf16": 0.7, "fp16": 0.7})
    facts = [make_facts(ddp=[ddp] if ddp else [])]
    assert ask("DP103", make_measured(exposed_share=0.5), facts, predictor=told) == []


def test_quiet_where_it_is_hidden_or_saves_nothing(ask, make_measured, make_facts, predict):
    told = predict("ddp.comm_hook", {"bf16": 0.7, "fp16": 0.7})
    assert ask("DP103", make_measured(exposed_share=0.03), [make_facts(ddp=[DDP])], predictor=told) == []
    slower = predict("ddp.comm_hook", {"bf16": 1.02, "fp16": 0.97})
    assert ask("DP103", make_measured(exposed_share=0.5), [make_facts(ddp=[DDP])], predictor=slower) == []


def test_waiting_for_a_late_rank_is_no_transfer(ask, make_measured, make_facts, predict, hand_made):
    told = predict("ddp.comm_hook", {"bf16": 0.7, "fp16": 0.7})
    ns = 5_000_000
    waits = hand_made.Account(window_ns=2 * ns, compute_ns=ns, exposed_waiting_ns=ns, communication_ns=ns)
    assert ask("DP103", make_measured(account=waits), [make_facts(ddp=[DDP])], predictor=told) == []


def test_where_the_replay_misses_too_much_a_bound_is_told(ask, make_measured, make_facts, bounding):
    """Half of the 50 % that wait for the transfer, and no more than the 30 % that the replay leaves at most."""
    (advice,) = ask("DP103", make_measured(exposed_share=0.5), [make_facts(ddp=[DDP])], predictor=bounding(0.7))
    assert advice.title.endswith("waits for them: 16 bits are half as much to send")
    assert (advice.impact, advice.confidence, advice.saves.basis) == ("high", "low", "bound")
    assert (advice.saves.low_share, advice.saves.high_share) == (0, pytest.approx(0.3))
    assert advice.saves.unpredicted == "the replay misses"
    assert ask("DP103", make_measured(exposed_share=0.08), [make_facts(ddp=[DDP])], predictor=bounding(0.7)) == []
    assert ask("DP103", make_measured(exposed_share=0.5), [make_facts(ddp=[DDP])], predictor=bounding(0.97)) == []


def test_nothing_is_said_without_a_step_model(ask, make_measured, make_facts):
    with pytest.raises(Missing, match="no step model"):
        ask("DP103", make_measured(exposed_share=0.5), [make_facts(ddp=[DDP])])


def test_a_bound_is_no_more_than_what_is_exposed(ask, make_measured, make_facts, bounding):
    """Of a step of 8 ms 5 are exposed, in a traced step of 10: 62.5 %. The replay leaves 20 % at least."""
    step = make_measured().step.model_copy(update={"median_ns": 8_000_000, "unprofiled_median_ns": 8_000_000})
    run = make_measured(exposed_share=0.5, step=step)
    (advice,) = ask("DP103", run, [make_facts(ddp=[DDP])], predictor=bounding(0.16))
    assert advice.title == (
        "4.01 MiB of gradients travel as 32-bit floats, and 62 % of a step waits for them: "
        "16 bits are half as much to send"
    )
    assert advice.saves.high_share == advice.evidence[0].value == pytest.approx(0.625)
    assert (advice.saves.how, advice.saves.unpredicted) == (
        "no more than the exposed communication",
        "the replay misses",
    )
