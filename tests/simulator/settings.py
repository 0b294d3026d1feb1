"""What is trained, and how: everything that a change can change."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.simulator.machine import Draw

MIB = 2**20


@dataclass(frozen=True)
class Straggler:
    """A rank that takes longer than the others in every step; rank -1: ranks take turns."""

    rank: int
    kind: str  # host: it sleeps in forward; compute: its kernels take longer
    host_us: float = 0.0
    compute_times: float = 1.0
    spread: float = 0.0  # standard deviation of the logarithm of its size from step to step


@dataclass(frozen=True)
class Loader:
    """A DataLoader; without it batches are made on the device."""

    workers: int
    decode_us: float  # per sample
    pinned: bool  # page-locked, and copied without blocking
    sample_bytes: int
    prefetch: int = 2


@dataclass(frozen=True)
class Settings:
    """A transformer and its training loop."""

    ranks: int
    layers: int
    width: int
    heads: int
    tokens: int
    batch: int
    strategy: str = "ddp"  # or fsdp, hooks
    precision: str = "fp32"  # or tf32, bf16 (autocast, or the parameters' dtype in FSDP)
    attention: str = "sdpa"  # or naive
    optimizer: str = "foreach"  # or fused, loop
    micro_batches: int = 1
    no_sync: bool = False
    bucket_caps: tuple[float, ...] = ()  # bytes, the last repeats; none: 1 MiB, then 25 MiB
    hook: str = "none"  # or bf16, fp16
    hooks: str = "async"  # how hooks average gradients: see tests/simulator/hooks.py
    gradient_as_bucket_view: bool = False
    unit_layers: int = 1
    reshard: bool = True
    prefetch: int = 0  # units gathered ahead by explicit prefetch
    losses_read: int = 0  # `.item()` calls of a step: after forward, in the layers
    loader: Loader | None = None
    straggler: Straggler | None = None
    pause_us: float = 0.0  # that every host sleeps in each micro-batch
    graphs: bool = False  # forward and backward replayed as CUDA graphs
    compute_times: float = 1.0  # on all kernels

    @property
    def rows(self) -> int:
        """Tokens of a micro-batch."""
        return self.batch * self.tokens

    def caps(self) -> tuple[float, ...]:
        return self.bucket_caps or (1.0 * MIB, 25.0 * MIB)


def drawn(seed: int, ranks: int) -> Settings:
    """A transformer of a size that a trace of many ranks can hold: up to 100 million parameters."""
    draw = Draw(random.Random(f"settings {seed}"))
    width = draw.random.choice((512, 768, 1024))
    return Settings(
        ranks=ranks,
        layers=draw.random.choice((2, 3, 4) if ranks > 8 else (3, 4, 6, 8)),
        width=width,
        heads=width // 64,
        tokens=draw.random.choice((128, 256, 512)),
        batch=draw.random.choice((1, 2, 4, 8, 16, 32)),
        precision=draw.random.choice(("fp32", "tf32", "bf16")),
        strategy="fsdp" if draw.chance(0.25) else "ddp",
        attention="sdpa",
        optimizer=draw.random.choice(("foreach", "fused")),
        gradient_as_bucket_view=draw.chance(0.3),
        losses_read=int(draw.chance(0.3)),
        loader=Loader(4, draw.between(20.0, 100.0), True, int(draw.between(1e4, 1e6))) if draw.chance(0.4) else None,
    )
