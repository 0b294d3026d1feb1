"""A small run built by hand: healthy unless a test says what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from dptune import testing
from dptune.advice import Advice
from dptune.advise.packs import LoadedRule, load_packs
from dptune.measured import CollectiveFigures, KernelFigures, KernelTime, Measured
from dptune.rule import Predictor, RunView
from dptune.runfile.facts import Facts

MIB = 2**20
RULES = {loaded.rule.code: loaded for loaded in load_packs()}


def spent_in(operator: str) -> RunView:
    """A run without stacks whose steps are spent in one operator."""
    top = [KernelTime(name=operator, kind="other", calls_per_step=1, total_ns=9, median_ns=9, step_share=0.9)]
    known: dict[str, Any] = {"short_share": 0.0, "launch_bound_share": 0.0, "kinds_ns": {}}
    kernels = testing.figures(KernelFigures, counted="operators", per_step=1, median_ns=1, total_ns=9, top=top, **known)
    return RunView(testing.measured_run(kernels=kernels), [])


MakeMeasured = Callable[..., Measured]
MakeFacts = Callable[..., Facts]
MakeAllReduce = Callable[..., CollectiveFigures]
Ask = Callable[..., list[Advice]]


def ask_rule(
    code: str,
    measured: Measured,
    facts: Sequence[Facts] = (),
    limits: Mapping[str, float] | None = None,
    predictor: Predictor | None = None,
    *,
    times_hold: bool = True,
) -> list[Advice]:
    """What one rule says of a run; figures that are missing raise Missing."""
    return list(RULES[code].check(RunView(measured, facts, limits or {}, predictor, times_hold=times_hold)))


@pytest.fixture(name="bounding")
def bounding_fixture() -> Callable[..., Predictor]:
    """A model that gives a lower bound of the step only."""
    return testing.bounding


@pytest.fixture
def make_measured() -> MakeMeasured:
    return testing.measured_run


@pytest.fixture
def make_facts() -> MakeFacts:
    return testing.facts_of


@pytest.fixture
def make_all_reduce() -> MakeAllReduce:
    return testing.all_reduce


@pytest.fixture
def ask() -> Ask:
    return ask_rule


@pytest.fixture
def predict() -> Callable[..., Predictor]:
    return testing.predicting


@pytest.fixture
def predict_range() -> Callable[..., Predictor]:
    """A model that predicts a range of steps, of which none is named."""
    return testing.ranging


@pytest.fixture(scope="session")
def hand_made() -> Any:
    """The builder itself, for tests that draw many runs."""
    return testing


@pytest.fixture(scope="session", params=RULES.values(), ids=lambda loaded: loaded.rule.code)
def installed_rule(request: pytest.FixtureRequest) -> LoadedRule:
    """Every rule of every installed pack in turn."""
    return request.param
