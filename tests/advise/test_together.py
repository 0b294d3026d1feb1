import pytest

from dptune.advice import Change
from dptune.advise.together import together, weighed
from dptune.measured import Missing
from dptune.rule import RunView

CAP, BATCH = Change(knob="ddp.bucket_cap_mb", now=0.01, then=1), Change(knob="loader.batch_size", now=32, then=64)
SYNC, HOOK = Change(knob="ddp.no_sync", now=False, then=True), Change(knob="ddp.comm_hook", now="none", then="fp16")


@pytest.fixture
def predicted(make_advice):
    """Advice that is predicted to leave so much of a step."""

    def make(rule, change, leaves, numerics="same"):
        saves = make_advice(rule).saves.model_copy(
            update={"basis": "replayed", "predicted_share": 1 - leaves, "low_share": 0.0, "high_share": 1 - leaves}
        )
        return make_advice(rule, changes=[change], saves=saves, numerics=numerics)

    return make


@pytest.fixture
def view(hand_made):
    def make(**leaves):
        """How much of the step is left by sets of changes: `cap_sync=0.4`."""
        words = {"cap": CAP, "batch": BATCH, "sync": SYNC, "hook": HOOK}
        told = {frozenset(words[one].knob for one in name.split("_")): times for name, times in leaves.items()}

        def predict(changes):
            if frozenset(changes) not in told:
                raise Missing("not told")
            grown = 2 if "loader.batch_size" in changes else 1
            ns = int(told[frozenset(changes)] * hand_made.STEP_NS)
            return hand_made.figures(
                hand_made.Prediction, changes=changes, step_ns=ns, low_ns=ns, high_ns=ns, global_batch=64 * grown
            )

        return RunView(hand_made.measured_run(), [], predictor=predict)

    return make


def test_what_is_worth_nothing_on_top_of_safe_advice_is_dropped(predicted, view):
    """Twice the batch takes half of the time per sample, but with larger buckets 0.49 of 0.5: 2 % less."""
    cap, batch = predicted("XX101", CAP, 0.5), predicted("XX301", BATCH, 0.5, "changes")
    kept, (dropped,) = weighed([cap, batch], view(cap=0.5, cap_batch=0.98))
    assert [one.rule for one in kept] == ["XX101"]
    assert (dropped.rule, dropped.reason) == (
        "XX301",
        "it would save only 2 % on top of XX101",
    )


def test_what_is_worth_it_says_how_much_on_top(predicted, view):
    """With larger buckets a sample takes 0.5 of its time, with twice the batch too 0.8 / 2: a fifth less."""
    cap, batch = predicted("XX101", CAP, 0.5), predicted("XX301", BATCH, 0.5, "changes")
    kept, dropped = weighed([cap, batch], view(cap=0.5, cap_batch=0.8))
    assert not dropped
    (on_top,) = [one for one in kept[1].evidence if one.label == "saved on top of XX101"]
    assert on_top.value == pytest.approx(0.2)
    assert kept[0] == cap


def test_alone_or_untold_it_stays(predicted, view, make_advice):
    batch = predicted("XX301", BATCH, 0.5, "changes")
    assert weighed([batch], view()) == ([batch], [])
    bounded = make_advice("XX101", changes=[CAP])
    assert weighed([bounded, batch], view())[1] == []
    assert weighed([predicted("XX101", CAP, 0.5), batch], view(cap=0.5))[1] == []


def test_what_advice_saves_together_is_predicted_as_one(predicted, view, make_advice):
    """Never added: 50 and 40 % are 55 % together, and with half of the bytes 60."""
    cap, sync = predicted("XX101", CAP, 0.5), predicted("XX102", SYNC, 0.6)
    hook, bounded = predicted("XX103", HOOK, 0.7, "changes"), make_advice("XX104", changes=[])
    safe, first = together([cap, sync, hook, bounded], view(cap_sync=0.45, cap_sync_hook=0.4))
    assert (safe.rules, safe.numerics, safe.saves.predicted_share) == (["XX101", "XX102"], "same", pytest.approx(0.55))
    assert (first.rules, first.numerics) == (["XX101", "XX102", "XX103"], "changes")
    assert first.saves.predicted_share == pytest.approx(0.6)


def test_one_setting_with_two_values_is_not_predicted(predicted, view):
    """Of two modules, each with its own: the model has one for all."""
    other = Change(knob="ddp.bucket_cap_mb", now=0.01, then=9)
    cap, larger = predicted("XX101", CAP, 0.5), predicted("XX102", other, 0.6)
    assert together([cap, larger], view(cap=0.5)) == []
    with pytest.raises(Missing, match="different values"):
        view(cap=0.5).predict([CAP, other])


def test_one_alone_is_no_set_and_the_same_set_is_said_once(predicted, view):
    cap, sync = predicted("XX101", CAP, 0.5), predicted("XX102", SYNC, 0.6)
    assert together([cap], view(cap=0.5)) == []
    assert len(together([cap, sync], view(cap_sync=0.45))) == 1
    assert together([cap, sync], view()) == []


def test_a_set_that_may_save_nothing_is_not_said(predicted, view):
    cap, sync = predicted("XX101", CAP, 0.5), predicted("XX102", SYNC, 0.6)
    assert together([cap, sync], view(cap_sync=0.99)) != []
    assert together([cap, sync], view(cap_sync=1)) == []


@pytest.fixture
def ranging(hand_made):
    def make(**ends):
        """Both ends of what is left of the step: `cap_batch=(0.4, 0.9)`."""
        words = {"cap": "ddp.bucket_cap_mb", "batch": "loader.batch_size"}
        told = {frozenset(words[one] for one in name.split("_")): shares for name, shares in ends.items()}

        def predict(changes):
            low_ns, high_ns = (int(share * hand_made.STEP_NS) for share in told[frozenset(changes)])
            figures = {"low_ns": low_ns, "high_ns": high_ns, "global_batch": 64}
            return hand_made.Prediction.only("a range", changes=changes, **figures)

        return RunView(hand_made.measured_run(), [], predictor=predict)

    return make


def test_of_a_range_no_share_on_top_is_named(predicted, ranging):
    """Its middle decides: 0.5 are left of 0.65, or 0.64."""
    cap, batch = predicted("XX101", CAP, 0.5), predicted("XX301", BATCH, 0.5, "changes")
    kept, dropped = weighed([cap, batch], ranging(cap=(0.4, 0.9), cap_batch=(0.3, 0.7)))
    assert (kept, dropped) == ([cap, batch], [])
    _, (given_way,) = weighed([cap, batch], ranging(cap=(0.4, 0.9), cap_batch=(0.4, 0.88)))
    assert given_way.reason == "it would save little on top of XX101"
    (both,) = together([cap, batch], ranging(cap_batch=(0.3, 0.7)))
    assert both.saves.is_range
    assert (both.saves.low_share, both.saves.high_share) == pytest.approx((0.3, 0.7))
