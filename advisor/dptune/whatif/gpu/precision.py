"""Other precisions of matrix products and convolutions: how long kernels take on matrix units.

A kernel's time beyond that of the smallest kernel shrinks by the ratio of the device's peaks, and by how much of each
peak matrix products reach.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from dptune.knobs import Value
from dptune.measured import Missing
from dptune.whatif.gpu.assumed import Assumed, Side
from dptune.whatif.gpu.editing import lasting, times, with_edges
from dptune.whatif.gpu.graph import COMPUTING, Edge, Kind
from dptune.whatif.gpu.overlap import computing_shares
from dptune.whatif.gpu.parts import OUTSIDE, Part, having
from dptune.whatif.gpu.program import Program

SMALLEST_NS = 2_000.0  # a kernel that does nothing takes 1 to 3 us on an A100, H100 or H200
# How much of its peak a matrix product on matrix units reaches / how much one in fp32 does. Assumed: of small models
# 35 to 70 % of the peak of matrix units and 60 to 90 % of that in fp32 (tests/simulator/machine.py); on an H200 with
# torch 2.11 the products of the recorded transformer became about 8 times as fast with TF32, whose peak is 7.4 times.
_REACHED = Assumed(0.4, 0.62, 1.3)
# What a product takes there at least: of the smallest in OpenXLA's table of an H100 (xla/service/gpu/model,
# matmul_interpolator_data.h) 5.9 us in bf16 and 6.9 in TF32.
_SMALLEST_PRODUCT_NS = Assumed(6_000.0, SMALLEST_NS, SMALLEST_NS)
_TF32_TIMES, _HALF_TIMES = 8.0, 16.0  # of the fp32 peak, where the device is unknown: those of an A100
_MULTIPLYING = (Kind.FP32, Kind.ATTENTION, Kind.PRODUCT)
_IN_16_BITS = ("fsdp.param_dtype", "precision.autocast")
_IN_TF32, _IN_FP32 = ("precision.float32_matmul", "cudnn.allow_tf32"), (False, "highest")
_LEAST_SHARE = 0.02  # of compute: a run with less computes in 16 bits already
_UNKNOWN = Assumed(1.0, 0.5, 0.2)  # of a kernel that may multiply matrices: its name does not say
# Kernels that multiply nothing move half of the bytes in 16 bits, or as many as before; autocast adds casts.
_OTHERS = Assumed(1.2, 1.0, 0.5)
_CALLS = Assumed(1.5, 1.3, 1.0)  # autocast casts inputs and weights of each product, and their gradients
# Kernels that matrix units do not compute, and collectives, on a GPU shared with another rank, whose products have
# become shorter, too: of two ranks that halve the GPU, each could take half as long alone.
_SHARED = Assumed(1.0, 0.75, 0.5)
# What a collective takes alone / beside kernels. On two ranks of an H200 an all-reduce of 50 MB took 17.1 ms in a step,
# and 12.8 ms by `dptune links`.
_ALONE = Assumed(1.0, 0.88, 0.6)


def in_one_precision(settings: Mapping[str, Value]) -> Mapping[str, Value]:
    """The settings that the products of a pass go by: those in 16 bits take no TF32, nor a second 16-bit type."""
    halved = [name for name in _IN_16_BITS if settings.get(name) in ("bf16", "fp16")]
    others = {*halved[1:], *(name for name in _IN_TF32 if halved and settings.get(name) not in _IN_FP32)}
    return {name: value for name, value in settings.items() if name not in others}


def products_in_tf32(program: Program, value: Value, side: Side) -> Program:
    """fp32 matrix products in TF32, by `torch.set_float32_matmul_precision`: all but those of cuDNN."""
    of_cudnn = having(program.parts, Part.CUDNN)
    return _in_tf32(program, value, side, lambda place: place not in of_cudnn)


def convolutions_in_tf32(program: Program, value: Value, side: Side) -> Program:
    """fp32 convolutions and recurrent layers of cuDNN in TF32, by `torch.backends.cudnn.allow_tf32`."""
    return _in_tf32(program, value, side, having(program.parts, Part.CUDNN).__contains__)


def _in_tf32(program: Program, value: Value, side: Side, chosen: Callable[[int], bool]) -> Program:
    if value in _IN_FP32:
        raise Missing("a GPU trace does not show how long TF32 kernels would take in fp32")
    if program.peaks and "tf32" not in program.peaks:
        raise Missing("the device has no TF32")
    faster = _faster(program, _ratio(program, "tf32", _TF32_TIMES), side, (Kind.FP32,), chosen)
    faster = times(faster, (Kind.PRODUCT,), _UNKNOWN.at(side), chosen)
    return faster if faster is program else _less_crowded(faster, side)


def autocast(program: Program, value: Value, side: Side) -> Program:
    """Matrix products in 16 bits under autocast, which casts their inputs."""
    if value in (None, "off"):
        raise Missing("a GPU trace does not show how long 16-bit kernels would take in fp32")
    faster = half_precision(program, side, str(value))
    if faster is program:
        return program
    return times(faster, (Kind.HOST,), _CALLS.at(side), _in_a_pass(program))


def half_precision(program: Program, side: Side, dtype: str) -> Program:
    """Kernels in 16 bits. Raises Missing where the device's matrix units do not know the dtype."""
    if program.peaks and dtype not in program.peaks:
        raise Missing(f"the device has no matrix units for {dtype}")
    if _share(program, _MULTIPLYING) < _LEAST_SHARE:
        raise Missing("matrix products and convolutions in fp32 are less than 2 % of the compute")
    faster = _faster(program, _ratio(program, dtype, _HALF_TIMES), side, (Kind.FP32, Kind.ATTENTION))
    faster = times(faster, (Kind.PRODUCT,), _UNKNOWN.at(side))
    if faster is program:
        return program
    others = times(faster, (Kind.COMPUTE,), _OTHERS.at(side), _in_a_pass(program))
    return _less_crowded(others, side)


def _less_crowded(program: Program, side: Side) -> Program:
    """Collectives that overlapped kernels take less beside shorter ones; so do kernels beside another rank's.

    Where the trace shows how much less, `contended` replays it for any change.
    """
    if program.shared:  # what no kernel of its own rank overlapped, another rank's did
        return times(program, (Kind.COMPUTE, Kind.COLLECTIVE), _SHARED.at(side))
    if program.transfer_shares:
        return program
    shares, saved = computing_shares(program), 1 - _ALONE.at(side)

    def of(place: int, edge: Edge) -> Edge:
        share = shares.get(place, 0.0)
        return edge.lasting(edge.lag_ns * (1 - saved * share)) if share and saved else edge

    return with_edges(program, (Kind.COLLECTIVE,), of)


def _in_a_pass(program: Program) -> Callable[[int], bool]:
    """Whether a forward or backward pass launched an item; any where passes are not known."""
    numbers = program.micro_batches
    if all(number == OUTSIDE for number in numbers):
        return lambda _: True
    return lambda place: numbers[place] != OUTSIDE


def _share(program: Program, kinds: Collection[Kind]) -> float:
    """The time of kernels of these kinds / that of all kernels."""
    spent = dict.fromkeys(COMPUTING, 0.0)
    for place in program.places(COMPUTING):
        for edge in program.edges[place]:
            if edge.kind in COMPUTING:
                spent[edge.kind] += edge.lag_ns
    return sum(spent[kind] for kind in kinds) / max(1.0, sum(spent.values()))


def _ratio(program: Program, dtype: str, unknown: float) -> float:
    peaks = program.peaks
    return peaks[dtype] / peaks["fp32"] if dtype in peaks and "fp32" in peaks else unknown


def _faster(
    program: Program,
    peaks_ratio: float,
    side: Side,
    kinds: tuple[Kind, ...],
    chosen: Callable[[int], bool] | None = None,
) -> Program:
    """Kernels of these kinds on units whose peak is so many times as high; `chosen`: only those that end there."""
    assert set(kinds) <= COMPUTING
    ratio, smallest_ns = max(1.0, peaks_ratio * _REACHED.at(side)), _SMALLEST_PRODUCT_NS.at(side)

    def of(lag_ns: float) -> float:
        least_ns = min(lag_ns, smallest_ns)
        return least_ns + (lag_ns - least_ns) / ratio

    return lasting(program, kinds, of, chosen)
