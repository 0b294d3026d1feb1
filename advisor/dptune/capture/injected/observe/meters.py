"""Counts what happens between two optimizer steps: batches drawn and the wait for them, and calls of backward.

Each meter wraps one function of torch that the script calls through its module or class, so the script is unchanged.
The cost is two clock readings per batch.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import dataloader

from dptune.capture.injected.observe.averaging import Averaging
from dptune.capture.injected.observe.batch_preparation import Preparing
from dptune.capture.injected.observe.generators import Generators
from dptune.capture.injected.observe.iterators import Iterators
from dptune.capture.injected.observe.loss_scaling import LossScaling
from dptune.capture.injected.observe.padding import Padding
from dptune.capture.injected.observe.places import Places, users_line
from dptune.capture.injected.observe.probability_losses import ProbabilityLosses
from dptune.capture.injected.observe.unused_gradients import Unused

_LOSSES = 64  # backward passes whose loss is kept
_FORWARDS = 64  # forward passes whose line is looked up


@dataclass
class Tally:
    """What one thread did since its tally was last taken."""

    loader_wait_ns: int = 0
    loader_cpu_ns: int = 0
    loader_fetch_ns: int = 0
    loader_batches: int = 0
    loader_samples: int = 0
    backwards: int = 0
    backward_ns: int = 0
    backward_cpu_ns: int = 0
    unsynced_backwards: int = 0
    unsynced_update: bool = False
    recomputed_ns: int = 0
    buffer_sync_ns: int = 0
    unused_search_ns: int = 0


def samples_in(batch: Any) -> int:
    """Leading dimension of the first tensor found in a batch (lists, tuples and dicts are searched); 0 if none.

    Only plain dicts: another mapping may load what it is asked for.
    """
    if isinstance(batch, torch.Tensor):
        return int(batch.shape[0]) if batch.dim() else 0
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        return next((found for found in map(samples_in, batch) if found), 0)
    return 0


def samples_drawn(iterator: Any, batch: Any) -> int:
    """How many samples a loader's iterator has just drawn.

    The batch size it was given, but for the last batch of an epoch, which may hold fewer; where it was given none, the
    leading dimension of the batch.
    """
    size = getattr(iterator._index_sampler, "batch_size", None)
    if not isinstance(size, int):
        return samples_in(batch)
    try:
        last = iterator._num_yielded == len(iterator._index_sampler)
    except TypeError:  # an iterable data set does not say where it ends
        last = False
    return min(size, samples_in(batch) or size) if last else size


class Meters:
    """Tallies by thread. Several threads may draw batches; only the training thread's tally is a step's."""

    def __init__(
        self,
        places: Places,
        preparing: Preparing,
        averaging: Averaging,
        unused: Unused,
        iterators: Iterators,
        probability_losses: ProbabilityLosses,
        generators: Generators,
        loss_scaling: LossScaling,
    ) -> None:
        self._places = places
        self._preparing = preparing
        self._averaging = averaging
        self._unused = unused
        self._iterators = iterators
        self._probability_losses = probability_losses
        self._generators = generators
        self._loss_scaling = loss_scaling
        self.padding = Padding()
        self._tallies: defaultdict[int, Tally] = defaultdict(Tally)
        self.backward_line: str | None = None  # of a pass in which DDP reduced gradients, where there is one
        self._is_of_reduced = False
        self._forward_line: str | None = None  # the last forward pass whose gradients DDP will reduce
        self._noted_forwards = 0
        self.late_no_sync: list[str] = []  # lines of a forward pass, and of its backward pass alone under `no_sync`
        self._ready: dict[int, list[int]] = {}  # by DDP module, when each gradient became ready in its last pass
        self._losses: list[torch.Tensor] = []  # detached, and not read while steps are timed: that would synchronise
        self.synchronised_passes = 0
        self.before_pass: Callable[[], None] = lambda: None
        self.before_graph: list[Callable[[Any], None]] = []
        self.before_call: list[Callable[[Any, Any, Any], None]] = []  # with gradients, and whether the graph is kept
        self.after_graph: list[Callable[[], None]] = []
        self.after_pass: Callable[[], None] = lambda: None
        self.drawn: list[Callable[[Any], None]] = []
        self.passes = 0

    def take(self) -> Tally:
        """The calling thread's tally since it was last taken."""
        return self._tallies.pop(threading.get_ident(), Tally())

    def install(self) -> None:
        """Wrap the loader iterator's `__next__`, `torch.autograd.backward`, and what DDP does beside forward passes."""
        self._meter_loader()
        self._meter_buffers()
        self._meter_search()
        self._preparing.fetched = self._note_fetch
        self._meter_backward()

    def _note_fetch(self, spent_ns: int) -> None:
        self._tallies[threading.get_ident()].loader_fetch_ns += spent_ns

    def _meter_loader(self) -> None:
        iterator = dataloader._BaseDataLoaderIter
        begin, draw = iterator.__init__, iterator.__next__

        @functools.wraps(begin)
        def begun_by(this: Any, loader: Any) -> None:
            self._preparing.expect(loader.dataset)
            self._generators.expect(loader.dataset, loader.collate_fn)
            begin(this, loader)
            if not loader.persistent_workers:  # such a one holds its iterator
                this.dptune_loader = loader  # of `for batch in DataLoader(...)` nothing else would be left to read

        iterator.__init__ = begun_by  # type: ignore[method-assign, assignment]

        @functools.wraps(draw)
        def metered(this: Any) -> Any:
            tally = self._tallies[threading.get_ident()]
            fetched_ns = tally.loader_fetch_ns
            begun, computed = time.perf_counter_ns(), time.thread_time_ns()
            try:
                batch = draw(this)
            except StopIteration:
                self._iterators.used_up(this)
                raise
            finally:
                waited_ns = time.perf_counter_ns() - begun
                tally.loader_wait_ns += waited_ns
                tally.loader_cpu_ns += time.thread_time_ns() - computed
            self._iterators.drawn(this, waited_ns - (tally.loader_fetch_ns - fetched_ns))
            with contextlib.suppress(Exception):  # a batch may be anything
                tally.loader_batches += 1
                self._places.draws[id(this._index_sampler)] += 1
                self._places.pins[id(this._index_sampler)] = this._pin_memory
                if torch.is_grad_enabled():  # not one of a validation loop
                    tally.loader_samples += samples_drawn(this, batch)
                    self.padding.note(id(this._index_sampler), batch)
                for heed in self.drawn:
                    heed(batch)
            return batch

        iterator.__next__ = metered  # type: ignore[method-assign, assignment]

    def _meter_backward(self) -> None:
        backward = torch.autograd.backward

        @functools.wraps(backward)
        def metered(*args: Any, **kwargs: Any) -> None:
            roots = args[0] if args else kwargs.get("tensors")
            self._keep_loss(roots)
            self._probability_losses.before_pass(roots)
            gradients, retain = (
                args[at] if len(args) > at else kwargs.get(name)
                for at, name in ((1, "grad_tensors"), (2, "retain_graph"))
            )
            self._loss_scaling.before_pass(roots, gradients)
            for heed in self.before_graph:
                heed(roots)
            for heed_call in self.before_call:
                heed_call(roots, gradients, retain)
            is_inner = torch._C._current_graph_task_id() != -1  # of a reentrant checkpoint, part of the pass around it
            if not is_inner:
                self._count_pass()
            self._averaging.before_pass()
            inputs = args[5:6] or [kwargs.get("inputs")]
            self._unused.before_pass(roots, inputs[0], retain)
            begun, computed = time.perf_counter_ns(), time.thread_time_ns()
            backward(*args, **kwargs)
            if not is_inner:
                tally = self._tallies[threading.get_ident()]
                tally.backward_ns += time.perf_counter_ns() - begun
                tally.backward_cpu_ns += time.thread_time_ns() - computed
            self._unused.after_pass()
            if not is_inner:
                self._end_pass(tally)
            self._averaging.after_pass()
            self._probability_losses.after_pass()
            for follow in self.after_graph:
                follow()
            self.after_pass()

        torch.autograd.backward = metered

    def _meter_buffers(self) -> None:
        sync = getattr(DistributedDataParallel, "_sync_buffers", None)
        if sync is None:
            return

        @functools.wraps(sync)
        def metered(this: Any) -> Any:
            if torch.compiler.is_compiling():
                return sync(this)
            begun = time.perf_counter_ns()
            try:
                return sync(this)
            finally:
                self._tallies[threading.get_ident()].buffer_sync_ns += time.perf_counter_ns() - begun

        DistributedDataParallel._sync_buffers = metered  # type: ignore[method-assign]

    def _meter_search(self) -> None:
        """The search for unused parameters follows each forward pass in which gradients are enabled."""
        follow = getattr(DistributedDataParallel, "_post_forward", None)
        if follow is None:
            return

        @functools.wraps(follow)
        def metered(this: Any, output: Any) -> Any:
            self._note_forward(this)
            searches = this.find_unused_parameters and not this.static_graph and this.require_backward_grad_sync
            if not searches or not torch.is_grad_enabled() or torch.compiler.is_compiling():
                return follow(this, output)
            tally = self._tallies[threading.get_ident()]
            begun, synced_ns = time.perf_counter_ns(), tally.buffer_sync_ns
            try:
                return follow(this, output)
            finally:
                tally.unused_search_ns += time.perf_counter_ns() - begun - (tally.buffer_sync_ns - synced_ns)

        DistributedDataParallel._post_forward = metered  # type: ignore[method-assign]

    def _note_forward(self, module: Any) -> None:
        with contextlib.suppress(Exception):
            if module.require_backward_grad_sync and self._noted_forwards < _FORWARDS:
                self._noted_forwards += 1
                self._forward_line = users_line(sys._getframe(2))

    def _keep_loss(self, root: Any) -> None:
        with contextlib.suppress(Exception):
            if len(self._losses) < _LOSSES and isinstance(root, torch.Tensor) and root.numel() == 1:
                self._losses.append(root.detach())

    @property
    def kept_losses(self) -> list[torch.Tensor]:
        """The tensors that are kept for `losses`."""
        return self._losses

    def losses(self) -> list[float]:
        """What the first backward passes began with; those that are no single number are left out."""
        return [float(loss) for loss in self._losses]

    def _count_pass(self) -> None:
        synchronised = True
        with contextlib.suppress(Exception):
            self.passes += 1
            tally = self._tallies[threading.get_ident()]
            tally.backwards += 1
            synchronised = not self._is_under_no_sync()
        if synchronised:
            self.before_pass()
            self.synchronised_passes += 1

    def _end_pass(self, tally: Tally) -> None:
        """Count it by whether DDP reduced gradients in it: a pass may not reach its module, or be under `no_sync`."""
        with contextlib.suppress(Exception):
            reduced = self._has_reduced()
            tally.unsynced_backwards += not reduced
            if self.backward_line is None or (reduced and not self._is_of_reduced):
                self.backward_line, self._is_of_reduced = users_line(sys._getframe(2)), reduced
            if reduced and self._forward_line and not self.late_no_sync and self._is_under_no_sync():
                self.late_no_sync = list(filter(None, (self._forward_line, users_line(sys._getframe(2)))))

    def _is_under_no_sync(self) -> bool:
        return not all(module.require_backward_grad_sync for module in self._places.ddp())

    def _has_reduced(self) -> bool:
        """Whether a gradient of some DDP module has become ready in its reducer since this was last asked.

        True without such a module, unless all units of fully_shard are set to leave gradients unreduced. Of a static
        graph the reducer notes nothing in its first pass.
        """
        modules = self._places.ddp()
        if not modules:
            return self._reduces_shards()
        ready = {id(module): module.reducer.get_backward_stats() for module in modules}
        before, self._ready = self._ready, ready
        return any(
            stats != before.get(at, [0] * len(stats)) or (module.static_graph and not any(stats))
            for module, (at, stats) in zip(modules, ready.items(), strict=True)
        )

    def _reduces_shards(self) -> bool:
        states = [state for state in (ref() for ref, _ in self._places.sharded) if state is not None]
        groups = [group for state in states for group in getattr(state, "_fsdp_param_groups", ())]
        return not groups or any(group.reduce_grads for group in groups)
