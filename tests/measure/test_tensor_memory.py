"""Where the memory of tensors goes in a step, by hand.

One step, [0, 1000): forward until 400, backward [400, 800), the optimizer [800, 900). Bytes.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dptune.measure.device.tensor_memory import _NEVER as NEVER
from dptune.measure.device.tensor_memory import _Allocations, tensor_memory
from dptune.measure.views import view
from dptune.measured import TensorMemory
from dptune.runfile.tensors import TensorFacts
from dptune.trace import load

from .handmade import BACKWARD, Event, allocation, annotation, kernel, launch, operator, python, step, write

ADDRESS = iter(range(1, 1_000_000))


def alive(made: float, freed: float | None, size: int) -> list[Event]:
    """An allocation on a CPU, and its free where there is one."""
    where = next(ADDRESS)

    def event(at: float, change: int) -> Event:
        args = {"Bytes": change, "Device Type": 0, "Device Id": -1, "Addr": where, "Total Allocated": 0}
        return {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 9, "tid": 1, "ts": at, "args": args}

    return [event(made, size), *([] if freed is None else [event(freed, -size)])]


PASSES = [
    step(0, 0, 1000),
    operator("aten::mm", 10, 390),
    operator(BACKWARD, 400, 600),
    operator(BACKWARD, 600, 800),
    annotation("Optimizer.step#SGD.step", 800, 900),
    operator("aten::add_", 810, 890),
]


@pytest.fixture
def found(tmp_path: Path) -> Any:
    def of(*events: list[Event], facts: TensorFacts | None = None, more: tuple[Event, ...] = ()) -> TensorMemory:
        write(tmp_path / "0.json", [*PASSES, *more, *(event for each in events for event in each)])
        (rank,) = load([tmp_path]).ranks
        memory = tensor_memory(view(0, rank.light), None, facts)
        assert memory is not None
        return memory

    return of


def test_each_part_by_where_it_is_made_and_freed(found):
    memory = found(
        alive(20, 700, 500),  # an activation
        alive(30, 40, 100),  # a temporary of the forward pass
        alive(450, 500, 60),  # of the backward pass
        alive(460, 2000, 30),  # a gradient
        alive(820, 830, 7),  # the optimizer's
    )
    highest = memory.moments[0]
    assert (highest.phase, highest.rise_bytes) == ("forward", 600)
    assert (highest.activation_bytes, highest.temporary_bytes) == (500, 100)
    (backward,) = [moment for moment in memory.moments if moment.gradient_bytes and moment.activation_bytes]
    assert (backward.activation_bytes, backward.temporary_bytes, backward.gradient_bytes) == (500, 60, 30)
    (last,) = [moment for moment in memory.moments if moment.phase == "optimizer"]
    assert (last.gradient_bytes, last.optimizer_bytes, last.activation_bytes) == (30, 7, 0)
    assert (memory.step, memory.window, memory.device) == (0, "light", "cpu")
    assert "start of the recording" in memory.missing["start_bytes"]


def test_what_was_alive_before_the_step_is_carried(found):
    """Gradients of the step before are freed as this one starts."""
    of_before = alive(-50, 5, 400)
    memory = found(of_before, alive(20, 700, 500))
    assert memory.moments[0].carried_bytes == -400
    assert memory.moments[0].rise_bytes == 100


def test_temporaries_as_large_as_a_parameter_do_not_grow_with_the_batch(found):
    facts = TensorFacts(parameter_sizes=[64])
    memory = found(alive(20, 700, 500), alive(450, 500, 64), alive(450, 500, 32), alive(450, 500, 31), facts=facts)
    assert (memory.moments[0].weight_bytes, memory.moments[0].temporary_bytes) == (96, 31)  # 32: cast to 16 bits


def test_what_fsdp_gathers_is_told_apart_from_activations(found):
    ranges = (annotation("FSDP::pre_forward (blocks.0)", 10, 20), annotation("FSDP::post_backward_reduce", 650, 700))
    memory = found(alive(15, 100, 900), alive(30, 700, 500), alive(660, 2000, 25), more=ranges)
    assert (memory.moments[0].sharding_bytes, memory.moments[0].activation_bytes) == (900, 500)
    assert max(moment.gradient_bytes for moment in memory.moments) == 25  # a reduced shard


def test_a_collectives_copy_that_another_thread_frees_lives_until_the_next_collective(found):
    calls = (operator("c10d::_reduce_scatter_base_", 500, 520), operator("c10d::_reduce_scatter_base_", 700, 720))
    ranges = (annotation("FSDP::post_backward_reduce", 490, 530), annotation("FSDP::post_backward_reduce", 690, 730))
    memory = found(alive(20, 790, 500), alive(510, None, 80), alive(710, None, 80), more=(*calls, *ranges))
    assert (memory.moments[0].rise_bytes, memory.moments[0].unseen_bytes) == (580, 80)
    assert max(moment.unseen_bytes for moment in memory.moments) == 160  # the first may live as long as the second
    assert all(moment.gradient_bytes <= 80 for moment in memory.moments)


def test_blocks_by_the_ranges_of_their_modules(found):
    facts = TensorFacts(block="Block")
    modules = (
        python("nn.Module: Block_0", 20, 100),
        python("nn.Module: FSDPBlock_1", 100, 200),
        python("nn.Module: Blocked_0", 200, 300),
    )
    saved = (alive(30, 700, 50), alive(90, 700, 20), alive(110, 600, 80), alive(310, 500, 5))
    memory = found(*saved, facts=facts, more=modules)
    assert [(block.saved_bytes, block.output_bytes) for block in memory.blocks] == [(70, 20), (80, 80)]
    assert memory.loss_bytes == 5


def test_a_last_step_without_a_backward_pass_is_not_split(tmp_path):
    """It may evaluate the model."""
    last = [step(1, 1000, 1400), operator("aten::mm", 1010, 1100), *alive(1020, 1030, 5)]
    write(tmp_path / "0.json", [*PASSES, *alive(20, 700, 500), *last])
    (rank,) = load([tmp_path]).ranks
    assert tensor_memory(view(0, rank.light), None, None) is None


@pytest.mark.parametrize("totals", [True, False])
def test_of_several_gpus_the_one_that_computes_counts(tmp_path, totals):
    """On device 1, 40 bytes are allocated as the step starts; device 0 belongs to another process."""
    events = [
        allocation(-5, 40, 40, 64, device=1),
        allocation(20, 500, 540, 600, device=1),
        allocation(21, 9000, 9000, 9000, device=0),
        allocation(700, -500, 40, 600, device=1),
    ]
    for event, where in zip(events, (1, 2, 3, 2), strict=True):
        event["args"]["Addr"] = where
        for name in () if totals else ("Total Allocated", "Total Reserved"):
            del event["args"][name]
    ran = [launch(1, 11, 12), kernel("gemm", 15, 25, 1, device=1)]
    write(tmp_path / "0.json", [*PASSES, *ran, *events])
    (rank,) = load([tmp_path]).ranks
    memory = tensor_memory(view(0, rank.light), None, None)
    assert (memory.device, memory.moments[0].rise_bytes, memory.moments[0].activation_bytes) == ("cuda:1", 500, 500)
    assert memory.known("start_bytes") == (40 if totals else None)


def test_without_allocations_or_passes_there_is_nothing(tmp_path):
    write(tmp_path / "0.json", [step(0, 0, 1000), operator("aten::mm", 10, 390), *alive(20, 30, 5)])
    (rank,) = load([tmp_path]).ranks
    assert tensor_memory(view(0, rank.light), None, None) is None
    assert tensor_memory(None, None, None) is None


def test_allocations_and_frees_are_matched_by_address():
    """Against a plain loop: an address may be allocated twice without a free, or freed without an allocation."""
    random = np.random.default_rng(5)
    size, address = random.integers(-4, 5, 2_000), random.integers(0, 30, 2_000)
    time_ns = np.sort(random.integers(0, 10**6, 2_000))
    alive, expected = {}, []
    for moment, change, where in zip(time_ns.tolist(), size.tolist(), address.tolist(), strict=True):
        if change >= 0:
            alive[where] = [moment, NEVER, change]
            expected.append(alive[where])
        elif where in alive:
            alive.pop(where)[1] = moment
        else:
            expected.append([-1, moment, -change])
    found = _Allocations(time_ns, size, address, size)
    assert np.stack((found.made_ns, found.freed_ns, found.size), axis=1).tolist() == expected
    assert 0 < (found.made_ns < 0).sum() < (found.freed_ns == NEVER).sum() < len(expected) < 2_000
