"""Twice the batch with its learning rate, as a candidate: it may change training results."""

from __future__ import annotations

import math
from collections.abc import Iterator

from dptune.advice import Change
from dptune.knobs import SETS_RATE, Value, listed_betas, scaled_with_batch
from dptune.measured import Measured
from dptune.runfile.facts import Facts
from dptune.runfile.loader import LoaderFacts
from dptune.tune.candidate import Candidate, settings_at, unpredicted_candidate

_TIMES = 2


def larger_batch(measured: Measured, facts: Facts) -> Iterator[Candidate]:
    """Twice the batch, with the learning rate that goes with it: only where that rate is known and can be set."""
    drawn = [loader for loader in facts.loaders if loader.batches_drawn]
    if len(drawn) != 1 or not drawn[0].batch_size or drawn[0].own_batches or not _may_grow(measured, drawn[0]):
        return
    loader, size = drawn[0], drawn[0].batch_size
    rates = _scaled_rate(facts)
    if rates:
        changes = settings_at(loader.where, {"loader.batch_size": _TIMES * size}) + rates
        yield unpredicted_candidate(changes, "loader.batch_size")


def _may_grow(measured: Measured, loader: LoaderFacts) -> bool:
    """Whether the data set has a step of that many samples, and its gradient noise, if measured, is large enough."""
    samples = measured.known("samples_per_step")
    noise = measured.known("noise")
    most = None if noise is None else noise.known("high")
    enough = loader.dataset_samples is None or (samples or 0) * _TIMES <= loader.dataset_samples
    return samples is not None and enough and (most is None or samples * _TIMES <= most)


def _scaled_rate(facts: Facts) -> tuple[Change, ...]:
    """The settings of the optimizer for the larger batch; none where nothing is known to follow it."""
    if len(facts.optimizers) != 1 or any(scheduler.name in SETS_RATE for scheduler in facts.schedulers):
        return ()
    optimizer = facts.optimizers[0]
    rate, default = optimizer.first_learning_rate, optimizer.default_learning_rate
    rate = rate or next(iter(optimizer.learning_rates), None)
    if not rate or not default or not math.isclose(rate, default, rel_tol=1e-3):  # the script sets another one itself
        return ()
    settings = scaled_with_batch(optimizer.name, _TIMES, rate, optimizer.betas, optimizer.eps)
    before: dict[str, Value] = {
        "optimizer.lr": rate,
        "optimizer.betas": listed_betas(optimizer.betas),
        "optimizer.eps": optimizer.eps,
    }
    return settings_at(optimizer.where, settings, before)
