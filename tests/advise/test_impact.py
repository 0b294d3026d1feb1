import pytest

from dptune.advise.impact import impact_of_saving, saving_time, with_impact


def saves(make_advice, low, high, basis):
    return make_advice().saves.model_copy(update={"low_share": low, "high_share": high, "basis": basis})


@pytest.mark.parametrize(
    ("low", "high", "basis", "confidence", "paid", "impact"),
    [
        # a prediction counts by its middle, whatever the rule says that a step pays
        (0.1, 0.2, "replayed", "medium", "low", "high"),
        (0.1, 0.19, "replayed", "high", "high", "medium"),
        (0.04, 0.06, "replayed", "medium", "high", "medium"),
        (0.04, 0.059, "replayed", "medium", "high", "low"),
        (0.6, 0.9, "replayed", "medium", "low", "high"),
        (0.1, 0.2, "measured", "high", "low", "high"),
        # a bound counts half, and no more than what a step pays
        (0, 0.3, "bound", "medium", "high", "high"),
        (0, 0.29, "bound", "high", "high", "medium"),
        (0, 0.1, "bound", "medium", "high", "medium"),
        (0, 0.09, "bound", "medium", "high", "low"),
        (0, 0.5, "bound", "medium", "low", "low"),
        # above half of the step it is no saving: what a step pays counts
        (0, 0.51, "bound", "medium", "high", "high"),
        (0, 1, "bound", "medium", "medium", "medium"),
        (0, 1, "bound", "high", "low", "low"),
        # of low confidence it is low, whatever the gain
        (0.6, 0.9, "replayed", "low", "high", "low"),
        (0.6, 0.9, "measured", "low", "high", "low"),
        (0.05, 0.06, "replayed", "low", "high", "low"),
        (0.02, 0.04, "replayed", "low", "high", "low"),
        (0, 1, "bound", "low", "high", "low"),
    ],
)
def test_impact_follows_from_gain_and_confidence(make_advice, low, high, basis, confidence, paid, impact):
    assert impact_of_saving(saves(make_advice, low, high, basis), confidence, paid) == impact


@pytest.mark.parametrize("kind", ["risk", "convergence"])
def test_what_saves_no_time_has_the_impact_of_its_rule(make_advice, kind):
    risk = make_advice(kind=kind, impact="high", confidence="low")
    assert with_impact(risk) == risk
    nothing = make_advice(kind=kind, saves=saves(make_advice, 0, 0.1, "replayed"))
    assert saving_time([nothing]) == ([nothing], [])


@pytest.mark.parametrize(
    ("low", "basis", "kept"), [(0, "replayed", False), (0.001, "replayed", True), (0, "bound", True)]
)
def test_a_prediction_that_includes_zero_is_dropped(make_advice, low, basis, kept):
    advice, dropped = saving_time([make_advice(saves=saves(make_advice, low, 0.1, basis))])
    assert (len(advice), len(dropped)) == (int(kept), int(not kept))


def test_of_a_larger_batch_it_is_a_samples_time_that_may_not_get_less(make_advice):
    batch = saves(make_advice, 0, 0.123, "replayed").model_copy(update={"samples_times": 2.0})
    _, (dropped,) = saving_time([make_advice(saves=batch)])
    assert dropped.reason == "the predicted saving, 0 to 12.3 % of a sample's time, includes zero"
