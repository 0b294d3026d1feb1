"""The machine that a simulated run is on: cards, links, hosts and their noise, drawn from measured ranges.

Ranges were measured on public traces (../shared/real_traces) and on the project's recordings of one H200
(sample_traces/gpu), at the 10th, 50th and 90th percentile unless another figure is named:

- time of a launch call with the profiler: nanogpt_8xh100 4.6, 5.9, 8.3 us; hta_training/b1ceb4c (A100) 5, 6, 8 us;
  hta_training/e8fe4d1 (V100) 3.8, 5.2 us; ranks-nccl-ddp (H200) 5.9, 7.4, 12 us
- between the starts of two launches of a thread: nanogpt_8xh100 22, 32, 98 us; b1ceb4c 11, 33, 63 us; e8fe4d1 6.5, 30,
  188 us; ranks-nccl-ddp 30, 51, 131 us; predict-base (H200) 12, 45, 160 us
- from the launch to the start on an idle device: nanogpt_8xh100 6.7, 8.7, 13 us; b1ceb4c 7, 8, 11 us; b4b6dce (A100)
  10, 12, 14 us
- between two queued operations of a stream: nanogpt_8xh100 1.2, 1.7, 2.6 us; b4b6dce 1.0, 1.2, 1.5 us; e8fe4d1 0.6,
  0.8, 1.5 us; predict-base 1.0, 1.5, 2.2 us
- from the end of a collective to the start of what waited for it: ranks-nccl-ddp 2.0 to 4.3 us, ranks-nccl-fsdp 2.2 to
  6.6 us, nanogpt_8xh100 1.4 to 5.5 us
- standard deviation / mean of kernels of one name and grid, where only one size is behind them (10th percentile and
  median): 0.01 and 0.02 in nanogpt_8xh100, 0.01 and 0.02 in b1ceb4c, 0.00 and 0.03 in b4b6dce, 0.00 and 0.01 in e8fe4d1
- bus bandwidth: nanogpt_8xh100 (8 ranks) all-gather of 77 MB in 0.229 ms and reduce-scatter of 151 MB in 0.45 ms: 293
  GB/s; b4b6dce (2 ranks) all-reduce of 26 MB in 2.4 to 2.6 ms: 10 GB/s; ranks-nccl-ddp (sockets) 3.4 GB/s
- fastest small collectives: nanogpt_8xh100 20 us, nanogpt_adam_hook_h100 11 us (8 ranks), b4b6dce 7.7 us (2 ranks)
- compute beside communication takes 1.02 times as long in ranks-nccl-ddp and 1.20 times in nanogpt_8xh100
- copies from pinned memory 6 GB/s (b1ceb4c), 17 GB/s (capture-sync-events); from pageable memory 27 GB/s
  (nanogpt_8xh100, large), 11 GB/s (predict-base, small)
- launches that block at a full queue (90th percentile above 100 us): e8fe4d1, nanogpt_adam_hook_h100
- the profiler slows the host: a step with shapes takes 1.1 to 1.8 times as long on a host-bound CPU run
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, fields, replace


@dataclass(frozen=True)
class Card:
    """Dense peak rates of a GPU, from its maker's data sheet."""

    name: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    tera_flops: dict[str, float]  # by how matrix products are calculated: fp32, tf32, bf16
    memory_tb_per_s: float
    memory_bytes: int


CARDS = (
    Card("NVIDIA A100-SXM4-80GB", (8, 0), 108, {"fp32": 19.5, "tf32": 156.0, "bf16": 312.0}, 2.039, 85_094_825_984),
    Card("NVIDIA H100 80GB HBM3", (9, 0), 132, {"fp32": 66.9, "tf32": 494.7, "bf16": 989.4}, 3.35, 85_029_158_912),
    Card("NVIDIA H200", (9, 0), 132, {"fp32": 66.9, "tf32": 494.7, "bf16": 989.4}, 4.8, 150_109_880_320),
)


@dataclass(frozen=True)
class Device:
    """How a card behaves. Shares are of its peak rates."""

    card: Card
    matmul_share: dict[str, float]
    memory_share: float
    least_kernel_us: float  # of the smallest kernel
    launch_latency_us: float  # from the call to the start on an idle device
    queued_gap_us: float  # between two queued operations of a stream
    wait_gap_us: float  # from an event to the start of what waited for it on another stream
    queue_depth: int  # launches of a stream that may wait; the next one blocks
    pinned_gb_per_s: float
    pageable_gb_per_s: float
    compute_beside_transfer: float  # times as long
    compute_beside_waiting: float  # times as long, while a collective waits for other ranks on the multiprocessors
    transfer_beside_compute: float  # times as long
    compute_beside_compute: float  # times as long, where kernels of two streams run


@dataclass(frozen=True)
class Link:
    """What connects the ranks: rings of NCCL."""

    gb_per_s: float  # bus bandwidth
    base_us: float
    hop_us: float  # per step of the ring

    def transfer_us(self, kind: str, message_bytes: float, ranks: int) -> float:
        """Ring: an all-reduce goes round twice; `message_bytes` is the whole buffer of all ranks."""
        rounds = 2 if kind == "all_reduce" else 1
        hops = rounds * (ranks - 1)
        return self.base_us + hops * (self.hop_us + message_bytes / ranks / self.gb_per_s / 1e3)


@dataclass(frozen=True)
class Host:
    """What host work costs, without the profiler."""

    operator_us: float  # an aten operator, without its launches
    node_us: float  # an autograd node
    module_us: float  # Python around a module
    launch_us: float
    event_us: float  # record, or wait for, an event
    optimizer_tensor_us: float  # per tensor and operation of a foreach optimizer
    profiler_operator_us: float  # what the profiler adds to each operator
    profiler_call_us: float  # what it adds to each call of the runtime

    def times(self, factor: float) -> Host:
        """One that takes so many times as long for everything."""
        return Host(*(factor * getattr(self, cost.name) for cost in fields(self)))


@dataclass(frozen=True)
class Noise:
    """Standard deviations of logarithms of durations, unless said otherwise."""

    kernel: float
    device_step: float  # one factor for all kernels of a rank and step
    operator: float
    host_step: float
    collective: float
    gap: float  # of gaps between queued operations, and of the latency of launches
    seed: int


@dataclass(frozen=True)
class Machine:
    """A card per rank, and what is around them."""

    device: Device
    link: Link
    host: Host
    noise: Noise
    sync_records: bool  # whether the trace has CUPTI's synchronization records
    shapes: bool  # whether it has the sizes of operators' inputs

    def without_noise(self) -> Machine:
        """The same with equal steps."""
        return replace(self, noise=Noise(0, 0, 0, 0, 0, 0, self.noise.seed))


@dataclass
class Draw:
    """Draws of a seed."""

    random: random.Random = field(default_factory=random.Random)

    def between(self, low: float, high: float) -> float:
        """Evenly on a logarithmic scale, three significant digits."""
        return float(f"{low * (high / low) ** self.random.random():.3g}")

    def chance(self, share: float) -> bool:
        return self.random.random() < share


def drawn(seed: int, ranks: int) -> Machine:
    """The machine of a seed; more than eight ranks are on several hosts, whose links are slower."""
    draw = Draw(random.Random(f"machine {seed}"))
    card = draw.random.choice(CARDS)
    device = Device(
        card=card,
        matmul_share={
            "fp32": draw.between(0.6, 0.9),
            "tf32": draw.between(0.35, 0.7),
            "bf16": draw.between(0.35, 0.7),
        },
        memory_share=draw.between(0.6, 0.9),
        least_kernel_us=draw.between(1.3, 2.5),
        launch_latency_us=draw.between(6.5, 12.0),
        queued_gap_us=draw.between(0.8, 2.6),
        wait_gap_us=draw.between(2.0, 6.0),
        queue_depth=draw.random.choice((256, 512, 1024)),
        pinned_gb_per_s=draw.between(6.0, 50.0),
        pageable_gb_per_s=draw.between(3.0, 11.0),
        compute_beside_transfer=draw.between(1.02, 1.25),
        compute_beside_waiting=draw.between(1.0, 1.04),
        transfer_beside_compute=draw.between(1.02, 1.3),
        compute_beside_compute=draw.between(1.05, 1.5),
    )
    fastest = 300.0 if ranks <= 8 else 50.0
    link = Link(gb_per_s=draw.between(3.0, fastest), base_us=draw.between(5.0, 30.0), hop_us=draw.between(0.8, 3.0))
    speed = draw.between(0.6, 1.6)  # of the host
    host = Host(
        operator_us=8.0 / speed,
        node_us=6.0 / speed,
        module_us=25.0 / speed,
        launch_us=draw.between(3.2, 6.0),
        event_us=draw.between(0.7, 1.8),
        optimizer_tensor_us=0.8 / speed,
        profiler_operator_us=draw.between(0.4, 1.5),
        profiler_call_us=draw.between(0.5, 2.0),
    )
    noise = Noise(
        kernel=draw.between(0.005, 0.03),
        device_step=draw.between(0.002, 0.015),
        operator=draw.between(0.05, 0.3),
        host_step=draw.between(0.005, 0.05),
        collective=draw.between(0.01, 0.1),
        gap=draw.between(0.1, 0.35),
        seed=seed,
    )
    return Machine(device, link, host, noise, sync_records=draw.chance(0.5), shapes=draw.chance(0.7))
