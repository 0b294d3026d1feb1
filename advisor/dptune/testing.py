"""Synthetic runs for testing rules: healthy except for what a test sets.

`measured_run` builds the figures of a run, `facts_of` the facts of one rank; `ask` runs one rule and returns its
advice. Figures without a default are missing unless the test sets them: reading one raises Missing, as on a trace that
lacks it.

    from acme_rules import exposed_copies
    from dptune.testing import ask, measured_run

    assert ask(exposed_copies, measured_run()) == []
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from dptune.advice import Advice
from dptune.knobs import Value
from dptune.measured import (
    Account,
    AccumulationFigures,
    ArrivalFigures,
    CollectiveFigures,
    CommunicationFigures,
    DeviceFigures,
    InputFigures,
    MatmulFigures,
    Measured,
    Missing,
    OverlapFigures,
    PhaseFigures,
    RankFigures,
    StepAccount,
    StepLag,
    StepTime,
)
from dptune.measured.figure import Figures
from dptune.predicted import Prediction
from dptune.rule import Predictor, RunView
from dptune.runfile.communication import DdpFacts
from dptune.runfile.facts import DeviceFacts, Facts
from dptune.runfile.loader import LoaderFacts

STEP_NS = 10_000_000  # every step of a synthetic run
STEPS = 5

_REDUCED = ("all_reduce", "backward")
F = TypeVar("F", bound=Figures)


class RuleModule(Protocol):
    """A module of a rule pack."""

    def check(self, run: RunView, /) -> Iterator[Advice]:
        """The advice of the rule."""


def ask(
    rule: RuleModule,
    measured: Measured,
    facts: Sequence[Facts] = (),
    limits: Mapping[str, float] | None = None,
    predictor: Predictor | None = None,
) -> list[Advice]:
    """The advice of one rule on a run; raises Missing if the rule reads a missing figure or fact.

    `limits` overrides thresholds of the rule by name; `predictor` is a step model, see `predicting`.
    """
    return list(rule.check(RunView(measured, facts, limits or {}, predictor)))


def measured_run(
    *,
    exposed_share: float = 0.0,
    hidden_share: float = 0.1,
    wait_share: float | None = 0.0,
    collectives: Sequence[CollectiveFigures] | None = (),
    synchronised: int | None = 1,
    device: str = "cuda",
    device_name: str | None = "NVIDIA A100-SXM4-80GB",
    tensor_cores: bool | None = True,
    fp32_share: float | None = 0.0,
    operators: Mapping[str, float] | None = None,
    world: int = 2,
    steps: int = STEPS,
    samples: int | None = 64,
    lags_ms: Sequence[Sequence[float]] = (),
    causes: Mapping[int, tuple[str, float]] = MappingProxyType({}),
    spent: Sequence[Account] = (),
    **changed: Any,
) -> Measured:
    """The figures of a run of `world` ranks: each step takes STEP_NS, by default mostly compute.

    `spent` is the account of a step, one per rank or one for all ranks; `lags_ms` is how late each rank arrives in each
    step, by rank, and `causes` why, with the share of the lag. Set any other figure of Measured by name.
    """
    waited = changed["input"].known("wait_share") if "input" in changed else wait_share
    spent = [*spent] or [account(exposed_share, hidden_share, waited or 0.0)]
    spent *= world // len(spent)
    total = sum(spent[1:] * steps + spent[:1] * (steps - 1), start=spent[0]) if spent else None
    devices = [
        DeviceFigures(
            device=f"{device}:0",
            steps=[StepAccount(number=n, start_ns=n * STEP_NS, account=rank_account) for n in range(steps)],
            whole=rank_account,
            device_operations=1000,
            kernels=0 if device == "cpu" else 900,
        )
        for rank_account in spent
    ]
    known: dict[str, Any] = {
        "world_size": world,
        "backend": "nccl",
        "device_kind": device,
        "samples_per_step": samples,
        "account": total if steps and world else None,
        "collectives": None if collectives is None else list(collectives),
        "copies": [],
        "delayed": [] if steps and world else None,
        "step": StepTime(
            basis="untraced",
            time_ns=STEP_NS,
            untraced_median_ns=STEP_NS,
            untraced_q1_ns=int(0.99 * STEP_NS),
            untraced_q3_ns=int(1.01 * STEP_NS),
            untraced_steps=20,
            light_median_ns=int(1.2 * STEP_NS),
            light_q1_ns=int(1.18 * STEP_NS),
            light_q3_ns=int(1.22 * STEP_NS),
            light_steps=steps,
            detailed_median_ns=2 * STEP_NS,
            detailed_steps=3,
        ),
        "ranks": [
            figures(
                RankFigures,
                rank=r,
                device_name=device_name,
                source=f"{r}.json",
                events=9,
                devices=[devices[r]],
                arrival=arrival(lags_ms[r] if r < len(lags_ms) else [0.0] * steps, *(causes.get(r, ())))
                if steps
                else None,
            )
            for r in range(world)
        ],
        "input": figures(InputFigures, wait_share=wait_share, basis="untraced"),
        "accumulation": figures(AccumulationFigures, synchronised_backwards_per_step=synchronised),
        "matmul": figures(
            MatmulFigures,
            fp32_share=fp32_share,
            unaligned_share=0.0,
            fp32_convolution_share=0.0,
            layout_share=0.0,
            layout_calls=0.0,
            tensor_cores=tensor_cores,
            operator_shares=operators and {**operators},
        ),
    }
    return figures(Measured, **{**known, **changed})


def facts_of(
    *, ddp: Iterable[DdpFacts] = (), loaders: Iterable[LoaderFacts] = (), rank: int = 0, cores: int = 16, **more: Any
) -> Facts:
    """The facts of one rank of two, on a GPU with tensor cores."""
    device = DeviceFacts("cuda", compute_capability="8.0", cores=cores, usable_cores=cores)
    return Facts(
        **{"rank": rank, "local_rank": rank, "host": "one", "world_size": 2, "device": device, **more},
        ddp=list(ddp),
        loaders=list(loaders),
    )


def figures(kind: type[F], /, **known: Any) -> F:
    """A record of figures in which every figure that is not passed is missing."""
    names = {name for name, field in kind.model_fields.items() if field.default is None and name != "missing"}
    missing = {name: f"{name} was not measured" for name in names - {n for n, v in known.items() if v is not None}}
    return kind(**known, missing=missing)


def account(
    exposed_share: float = 0.0, hidden_share: float = 0.1, input_share: float = 0.0, window_ns: int = STEP_NS
) -> Account:
    """The account of a step; all time except exposed communication and waiting for the loader is compute."""
    exposed, waiting = int(exposed_share * window_ns), int(input_share * window_ns)
    hidden = int(hidden_share * window_ns)
    return Account(
        window_ns=window_ns,
        compute_ns=window_ns - exposed - waiting,
        exposed_unsplit_ns=exposed,
        input_idle_ns=waiting,
        communication_ns=exposed + hidden,
        hidden_communication_ns=hidden,
    )


def arrival(lags_ms: Sequence[float], cause: str | None = None, covers: float | None = None) -> ArrivalFigures:
    """How late a rank arrives at collectives in each step, and the cause with the share of the lag it explains."""
    steps = [StepLag(number=n, lag_ns=int(lag * 1e6)) for n, lag in enumerate(lags_ms)]
    return figures(
        ArrivalFigures,
        collectives=2 * len(steps),
        last_share=0.5,
        lag_ns=int(statistics.median(lags_ms) * 1e6),
        steps=steps,
        cause=cause,
        cause_share=covers,
    )


def all_reduce(
    message_bytes: int | None,
    calls_per_step: float,
    shortest_ns: int = 50_000,
    kind: str = "all_reduce",
    dtype: str | None = None,
) -> CollectiveFigures:
    """Calls of one kind and size on two ranks; each transfer takes `shortest_ns`."""
    calls = int(calls_per_step * STEPS * 2)
    return figures(
        CollectiveFigures,
        kind=kind,
        message_bytes=message_bytes,
        dtype=dtype,
        calls=calls,
        calls_per_step=calls_per_step,
        median_ns=2 * shortest_ns,
        shortest_ns=shortest_ns,
        total_ns=2 * shortest_ns * calls,
    )


def overlap(
    *rows: tuple[str, str, float] | tuple[str, str, float, str | None],
    steps: int = STEPS,
    world: int = 2,
    most: float | None = None,
    waiting: float = 0.0,
) -> OverlapFigures:
    """Communication by kind, phase, the exposed share of a step, and purpose; one call per step and rank.

    Without a purpose, all-reduces in backward passes carry gradients, and all other calls are the script's. `most` is
    the share on the rank with most communication, if ranks differ; `waiting` is the part of exposed time spent waiting.
    """
    found = [
        figures(
            CommunicationFigures,
            kind=kind,
            phase=phase,
            purpose=purpose[0] if purpose else "gradients" if (kind, phase) == _REDUCED else "other",
            calls=steps * world,
            communication_ns=int(share * STEP_NS * steps * world),
            hidden_ns=0,
            exposed_ns=int(share * STEP_NS * steps * world),
            exposed_transfer_ns=int(share * (1 - waiting) * STEP_NS * steps * world),
            most_share=share if most is None else most,
        )
        for kind, phase, share, *purpose in rows
    ]
    return figures(OverlapFigures, rows=found)


def phases(forward: float, backward: float, optimizer: float) -> list[PhaseFigures]:
    """The phases of a step, from their shares of host time."""
    shares = {"forward": forward, "backward": backward, "optimizer": optimizer}
    nothing = dict.fromkeys(
        ("compute_ns", "communication_ns", "hidden_communication_ns", "exposed_communication_ns"), 0
    )
    return [
        figures(PhaseFigures, phase=phase, host_ns=int(share * STEP_NS * STEPS), **nothing)
        for phase, share in shares.items()
    ]


def predicting(knob: str, shares: Mapping[Value, float], grown: float = 1.0) -> Predictor:
    """A step model of one knob: `shares` maps each value to its step / STEP_NS, with an interval of 0.05 either way."""

    def predict(changes: Mapping[str, Value]) -> Prediction:
        if changes.keys() != {knob}:
            raise Missing("the model cannot predict these changes")
        times = shares[changes[knob]]
        return figures(
            Prediction,
            changes=dict(changes),
            step_ns=int(times * STEP_NS),
            low_ns=int((times - 0.05) * STEP_NS),
            high_ns=int((times + 0.05) * STEP_NS),
            global_batch=int(64 * grown),
        )

    return predict


def ranging(knob: str, shares: Mapping[Value, tuple[float, float]], batch: int = 64) -> Predictor:
    """A step model that knows a range only: `shares` maps each value to both ends of its step / STEP_NS."""

    def predict(changes: Mapping[str, Value]) -> Prediction:
        if changes.keys() != {knob}:
            raise Missing("the model cannot predict these changes")
        low_ns, high_ns = (int(share * STEP_NS) for share in shares[changes[knob]])
        figures = {"low_ns": low_ns, "high_ns": high_ns, "global_batch": batch}
        return Prediction.only("no single step time is predicted", changes=dict(changes), **figures)

    return predict


def bounding(least: float, batch: int = 64) -> Predictor:
    """A step model whose replay does not match the recorded steps: it gives only a lower bound of the step."""
    low_ns = int(least * STEP_NS)
    return lambda changes: Prediction.only(
        "the replay misses", changes=dict(changes), low_ns=low_ns, global_batch=batch
    )
