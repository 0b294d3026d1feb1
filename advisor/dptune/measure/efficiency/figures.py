"""FLOPs per step, what share of the device's peak they reach, and rates of samples and tokens."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from dptune.measure.device.architectures import Architecture
from dptune.measure.efficiency import peaks
from dptune.measure.efficiency.counting import NOT_OF_OPERATORS, UNKNOWN_TYPE, Operator, count
from dptune.measure.efficiency.kernel_time import KernelTime, kernel_time
from dptune.measure.efficiency.measured_peaks import MeasuredPeaks
from dptune.measure.efficiency.source import Source
from dptune.measure.shared_gpus import SharedGpus
from dptune.measured import (
    Account,
    DtypeFlops,
    EfficiencyFigures,
    FlopKind,
    KernelFigures,
    KindFlops,
    StepTime,
)

# Kinds of kernels that read and write more than they compute.
MEMORY_BOUND = ("indexing", "elementwise", "normalization", "optimizer", "softmax and loss", "pooling", "reduction")

_LEAST_COUNTED = 0.5  # of the time of matrix kernels
_MOST_UNCOUNTED = "operators with known sizes account for only {:.0f} % of the time of matrix kernels: too few FLOPs"
_NO_KERNELS = NOT_OF_OPERATORS
_NO_TIME = "their kernels were not recorded"
_COMPILED = (
    "the compiled backward pass computes more than the gradients of the forward pass, and the trace does not show how "
    "much of it is recomputation"
)
_DIFFERENTIATED = (
    "operators in the backward pass record gradients, as recomputation and `create_graph=True` do: the trace does not "
    "show how much of it is recomputation"
)
_ABOVE_PEAK = (
    "the counted FLOPs exceed the device's peak: a causal mask skips part of them, or operator sizes, step time or the "
    "device's name are not those of the run"
)
_ABOVE_MEASURED = (
    "the counted FLOPs exceed the measured peak: the CPU was slower while the peak was measured than in the steps, or "
    "operator sizes or step time are not those of the run"
)
_KIND_ABOVE_PEAK = (
    "{} kernels run at {:,.1f} TFLOP/s, above the peak of {:,.1f}: some kernels are missing, a causal mask skips part "
    "of the FLOPs, or operator sizes or the device's name are not those of the run"
)
_MODELS = "ranks compute on different GPU models, whose peaks differ: {}"
_EITHER = "fp32 or tf32"
_NOT_SHOWN = "the names of kernels do not show whether fp32 products ran in TF32, which has another peak"
_NO_KINDS = "no kernels were recorded"
_NO_TOKENS = "the trace does not show tokens (pass `--tokens-per-step N`)"


@dataclass(frozen=True)
class Steps:
    """What rates need besides operators. `samples`, `tokens`: per step over all ranks; `tokens` from the user.

    `no_samples`: why `samples` are not known. `replicas` of the model have tokens of their own: ranks of tensor and
    pipeline parallelism share them. `device_names`: those of all ranks. `memory_bound_share`: of the operators of a
    CPU; None on GPUs.
    """

    time: StepTime
    account: Account | None
    kernels: KernelFigures | None
    world_size: int | None
    replicas: int | None
    samples: int | None
    no_samples: str
    tokens: int | None
    shared_gpus: SharedGpus
    device_names: Collection[str] = ()
    memory_bound_share: float | None = None

    def sharing_ranks(self, rank: int) -> int:
        """How many ranks run on the GPU of this one, itself included."""
        return max(1, len(self.shared_gpus.ranks.get(rank, ())))

    @property
    def gpus(self) -> int | None:
        """The devices of the run where each rank has one, each counted once."""
        return None if self.shared_gpus.doubt else self.most_gpus

    @property
    def most_gpus(self) -> int | None:
        """The same, where ranks that may share a GPU do not."""
        if self.world_size is None:
            return None
        sharing = self.shared_gpus.ranks
        return self.world_size - len(sharing) + len({tuple(ranks) for ranks in sharing.values()})

    @property
    def gpus_between(self) -> list[int]:
        """The fewest and the most, where ranks may share a GPU; else nothing."""
        most = self.most_gpus
        return [self.shared_gpus.least, most] if self.shared_gpus.doubt and most else []

    @property
    def no_common_peak(self) -> str:
        """Why the peak of one rank's GPU is not that of all; "" where it is."""
        models = peaks.differing(self.device_names)
        return _MODELS.format(" and ".join(models)) if models else self.shared_gpus.doubt

    @property
    def per_second(self) -> float | None:
        """Steps per second."""
        step_ns = self.time.rate_ns
        return 1e9 / step_ns if step_ns else None

    @property
    def no_time(self) -> str:
        """The reason that there is no step time."""
        return self.time.missing.get("time_ns", "the step time is not known")


def efficiency(source: Source | str, steps: Steps) -> EfficiencyFigures:
    """All figures; `source` is the rank whose operators are read, or why there is none."""
    counted = source if isinstance(source, str) else count(source.view)
    devices = 0 if isinstance(source, str) else source.devices
    figures = _rates(source, devices, steps)
    about: dict[str, Any] = {"devices": devices, "shared_doubt": steps.shared_gpus.doubt}
    about["devices_between"] = steps.gpus_between if devices == 1 else []
    if not isinstance(source, str):
        about |= {"scope": source.scope, "sharing_ranks": steps.sharing_ranks(source.view.rank)}
    if isinstance(source, str) or isinstance(counted, str):
        unknown = dict.fromkeys(_OF_OPERATORS, (None, str(counted)))
        if not isinstance(source, str) and source.on_cpu and isinstance(source.cpu_peaks, str):
            unknown |= dict.fromkeys(("mfu", "hfu"), (None, source.cpu_peaks))  # sizes alone would not do
        return EfficiencyFigures.of({**unknown, **figures}, **about)
    about["uncounted"] = list(counted.uncounted)
    if not counted.operators:
        why = f"the sizes of these operators are not known: {', '.join(counted.uncounted)}"
        return EfficiencyFigures.of({**dict.fromkeys(_OF_OPERATORS, (None, why)), **figures}, **about)
    spent = kernel_time(source.view, counted.steps, counted.operators)
    if not spent.ran:
        return EfficiencyFigures.of({**dict.fromkeys(_OF_OPERATORS, (None, _NO_KERNELS)), **figures}, **about)
    figures |= _flops(spent, len(counted.steps) * devices, source, steps)
    return EfficiencyFigures.of(figures, **about, steps=len(counted.steps), packed=counted.packed)


def _rates(source: Source | str, devices: int, steps: Steps) -> dict[str, tuple[Any, str]]:
    """The figures that need no FLOPs."""
    per_second, gpus = steps.per_second, steps.gpus
    seen = None if steps.tokens or isinstance(source, str) else source.tokens
    whole_ns = None if isinstance(source, str) else source.whole_ns
    tokens_per_step = steps.tokens or (seen.per_step * steps.replicas if seen and steps.replicas else None)
    no_devices = source if isinstance(source, str) else steps.shared_gpus.doubt or "the number of ranks is not known"
    return {
        "step_ns": (whole_ns or steps.time.rate_ns, steps.no_time),
        "all_devices": (gpus * devices if gpus and devices else None, no_devices),
        "memory_bound_share": _memory_bound(
            whole_ns * devices if whole_ns else steps.account.window_ns if steps.account else 0, steps
        ),
        "samples_per_s": (
            steps.samples * per_second if steps.samples and per_second else None,
            f"{steps.no_samples} (pass `--samples-per-step N`)" if per_second else steps.no_time,
        ),
        "tokens_per_step": (tokens_per_step, _NO_TOKENS if per_second else steps.no_time),
        "tokens_per_s": (
            tokens_per_step * per_second if tokens_per_step and per_second else None,
            _NO_TOKENS if per_second else steps.no_time,
        ),
    }


_OF_OPERATORS = (
    *("rank", "window", "flops", "recomputed_flops", "optimizer_flops", "flops_per_step", "model_flops_per_step"),
    *("kinds", "dtypes", "counted_share", "flops_per_s", "total_flops_per_s", "peak_flops_per_s", "peak_basis"),
    *("peak_withheld_share", "mfu", "hfu"),
)


def _flops(spent: KernelTime, shared: int, source: Source, steps: Steps) -> dict[str, tuple[Any, str]]:
    """The figures that follow from operators; `shared`: number of steps times devices of the rank."""
    operators = spent.ran
    total = sum(operator.flops.total for operator in operators)
    optimizing = sum(operator.flops.total for operator in operators if operator.optimizer)
    recomputed = _recomputed(operators)
    again, no_model = (recomputed, "") if isinstance(recomputed, int) else (None, recomputed)
    model = None if again is None else (total - optimizing - again) / shared
    dtypes = [_dtype(name, flops, source) for name, flops in _by_dtype(spent, source).items()]
    peak, no_peak = _mixed_peak(dtypes)
    peak = None if peak is None else peak / steps.sharing_ranks(source.view.rank)
    if not source.on_cpu and (why := steps.no_common_peak):
        peak, no_peak = None, why
    if spent.counted_share is not None and spent.counted_share < _LEAST_COUNTED:
        peak, no_peak = None, _MOST_UNCOUNTED.format(spent.counted_share * 100)
    per_second = _per_second(source, steps)
    each = total / shared * per_second if per_second else None
    every = steps.world_size * source.devices if steps.world_size else None  # those that ranks share once for each
    no_rate = "" if each is not None else steps.no_time
    kinds = _kinds(spent)
    above = each is not None and peak is not None and each > peak
    above_peak = _ABOVE_MEASURED if source.on_cpu else _ABOVE_PEAK
    if not above and not source.on_cpu and (too_fast := _above_peak(kinds, dtypes)):
        above, above_peak = True, too_fast
    reached, no_share = (None, above_peak) if above else (peak, no_rate or no_peak)
    withheld = None if isinstance(source.cpu_peaks, str) else source.cpu_peaks.withheld_share
    return {
        "rank": (source.view.rank, ""),
        "window": (source.window, ""),
        "flops": (total, ""),
        "recomputed_flops": (again, no_model),
        "optimizer_flops": (optimizing, ""),
        "flops_per_step": (total / shared, ""),
        "model_flops_per_step": (model, no_model),
        "kinds": (kinds, ""),
        "dtypes": (dtypes, ""),
        "counted_share": (spent.counted_share, "a CPU runs no kernels" if source.on_cpu else _NO_TIME),
        "flops_per_s": (each, no_rate),
        "total_flops_per_s": (
            each * every if each is not None and every else None,
            no_rate or "the number of ranks is not known",
        ),
        "peak_flops_per_s": (peak, no_peak),
        "peak_basis": (None if peak is None else "measured" if source.on_cpu else "vendor", no_peak),
        "peak_withheld_share": (
            withheld if peak and source.on_cpu else None,
            "the CPU time of other processes was not counted" if source.on_cpu else "the peak was not measured",
        ),
        "mfu": (
            model * per_second / reached if model is not None and per_second and reached else None,
            no_model or no_share,
        ),
        "hfu": (each / reached if each is not None and reached else None, no_share),
    }


def _per_second(source: Source | str, steps: Steps) -> float | None:
    """Steps per second; of a recording without steps, which counts as one, how often it fits into a second."""
    if isinstance(source, str) or source.whole_ns is None:
        return steps.per_second
    return 1e9 / source.whole_ns


def _memory_bound(window_ns: int, steps: Steps) -> tuple[float | None, str]:
    """Of the measured time of all devices."""
    kinds = steps.kernels.known("kinds_ns") if steps.kernels else None
    if steps.memory_bound_share is not None:
        return steps.memory_bound_share, ""
    if not window_ns:
        return None, "no step was found"
    if kinds is None:
        return None, _NO_KINDS
    return sum(kinds.get(kind, 0) for kind in MEMORY_BOUND) / window_ns, ""


def _recomputed(operators: Sequence[Operator]) -> int | str:
    """FLOPs that repeat a forward pass, or why that is not known.

    A forward pass is repeated at most once, and a backward pass has two gradients: if there is more, it is not known.
    Nor is it beside gradients with a graph of their own: their products may have sizes of the forward pass.
    """
    forward = [operator for operator in operators if not operator.backward and not operator.optimizer]
    backward = [operator for operator in operators if operator.backward]
    of_forward = sum(operator.flops.total for operator in forward)
    repeated = sum(operator.flops.total for operator in backward if operator.recomputed)
    if repeated > of_forward or (repeated and any(operator.with_graph for operator in backward)):
        return _DIFFERENTIATED
    scores = sum(operator.flops.recomputed for operator in backward)
    gradients = sum(operator.flops.total for operator in backward) - repeated - scores
    if any(operator.compiled for operator in backward) and gradients > 2 * of_forward:
        return _COMPILED
    return repeated + scores


def _kinds(spent: KernelTime) -> list[KindFlops]:
    """The kind with the most FLOPs first."""
    flops: dict[FlopKind, int] = {}
    for operator in spent.ran:
        flops[operator.kind] = flops.get(operator.kind, 0) + operator.flops.total
    found = []
    for kind in sorted(flops, key=lambda kind: -flops[kind]):
        time_ns = spent.by_kind.get(kind) or None
        rate = flops[kind] / time_ns * 1e9 if time_ns else None
        figures = {"time_ns": (time_ns, _NO_TIME), "flops_per_s": (rate, _NO_TIME)}
        found.append(KindFlops.of(figures, kind=kind, flops=flops[kind]))
    return found


def _above_peak(kinds: Sequence[KindFlops], dtypes: Sequence[DtypeFlops]) -> str:
    """The kind whose kernels run faster than the highest peak of the types that are computed in; "" where none does."""
    if not dtypes or any(each.known("peak_flops_per_s") is None for each in dtypes):
        return ""
    highest = max(each.peak_flops_per_s for each in dtypes)
    rates = ((kind.kind, kind.known("flops_per_s") or 0.0) for kind in kinds)
    found = next(((kind, rate) for kind, rate in rates if rate > highest), None)
    return _KIND_ABOVE_PEAK.format(found[0], found[1] / 1e12, highest / 1e12) if found else ""


def _by_dtype(spent: KernelTime, source: Source) -> dict[str, int]:
    """FLOPs by element type, the most first; fp32 on the tensor cores of a GPU that has TF32 is TF32.

    An operator without a type in the trace is fp32 if most of its kernels are.
    """
    model = None if source.on_cpu else peaks.model_of(source.device_name)
    has_tf32 = model is not None and "tf32" in model.tflops
    flops: dict[str, int] = {}
    for operator, units in zip(spent.ran, spent.on_matrix_units, strict=True):
        name = "fp32" if operator.dtype == UNKNOWN_TYPE and units is False else operator.dtype
        if name == "fp32" and has_tf32 and units is not False:
            name = "tf32" if units else _EITHER
        flops[name] = flops.get(name, 0) + operator.flops.total
    return dict(sorted(flops.items(), key=lambda item: -item[1]))


def _dtype(name: str, flops: int, source: Source) -> DtypeFlops:
    peak = None if source.on_cpu else peaks.peak(source.device_name, name)
    if source.on_cpu:
        peak, why = _of_cpu(source.cpu_peaks, name)
    elif not source.device_name:
        peak, why = _of_architecture(source.architecture, name)
    elif name == UNKNOWN_TYPE:
        why = "the trace does not name the element type"
    elif name == _EITHER:
        peak, why = _alike(peaks.peak(source.device_name, "fp32"), peaks.peak(source.device_name, "tf32")), _NOT_SHOWN
    elif peaks.model_of(source.device_name) is None:
        why = f"dptune has no peak for {source.device_name}"
    else:
        why = f"dptune has no {name} peak for {source.device_name}"
    figures = {
        "peak_flops_per_s": (peak.flops_per_s if peak else None, why),
        "source": (peak.source if peak else None, why),
    }
    return DtypeFlops.of(figures, dtype=name, flops=flops)


def _alike(fp32: peaks.Peak | None, tf32: peaks.Peak | None) -> peaks.Peak | None:
    """The peak that holds for both."""
    return fp32 if fp32 is not None and tf32 is not None and fp32.flops_per_s == tf32.flops_per_s else None


def _of_cpu(measured: MeasuredPeaks | str, dtype: str) -> tuple[peaks.Peak | None, str]:
    """The measured peak of a CPU in an element type, or why there is none."""
    if isinstance(measured, str) or measured.unusable:
        return None, measured if isinstance(measured, str) else measured.unusable
    return measured.by_dtype.get(dtype), f"no {dtype} peak of the CPU was measured"


def _of_architecture(shown: Architecture | None, dtype: str) -> tuple[peaks.Peak | None, str]:
    """The peak of a device without a name, where its architecture has but one."""
    unnamed = "the trace does not name the device"
    if shown is None:
        return None, unnamed
    found = peaks.peaks_of_architecture(shown.name, dtype)
    if not found:
        return None, f"{unnamed}; its kernels show {shown.text}, which is too general for a peak"
    least, most = found[0], found[-1]
    if least == most:
        return least, ""
    between = f"{least.flops_per_s / 1e12:,.5g} to {most.flops_per_s / 1e12:,.5g} TFLOP/s in {dtype}"
    return None, f"{unnamed}; its kernels show {shown.text}, whose devices have {between}"


def _mixed_peak(dtypes: Sequence[DtypeFlops]) -> tuple[float | None, str]:
    """Peak FLOP/s of this mix: FLOPs over the least time that they can take; types below 0.1 % are left out."""
    total = sum(each.flops for each in dtypes)
    counted = [each for each in dtypes if each.flops * 1000 >= total and each.flops]
    seconds = 0.0
    for each in counted:
        peak = each.known("peak_flops_per_s")
        if peak is None:
            return None, each.missing["peak_flops_per_s"]
        seconds += each.flops / peak
    known = sum(each.flops for each in counted)
    return (known / seconds, "") if seconds else (None, "no operator computed anything")
