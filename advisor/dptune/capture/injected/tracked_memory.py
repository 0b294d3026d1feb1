"""Peak memory of one rank by torch's own trackers, under fake tensors: no memory is allocated, and nothing is sent.

Run as a script by the user's Python, with the paths of the requests and of the answers, both JSON. Requests are of one
function of the user, `FILE:NAME`: it takes the batch size of a rank and returns the model, a function from parameters
to an optimizer, and a function from the model to the loss of one batch. Each request says how the model is wrapped; the
process group is torch's fake one, of any size. Two steps run, so the optimizer has its state in the second.

Sources: torch 2.13, torch/distributed/_tools/mem_tracker.py and fsdp2_mem_tracker.py.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

_STEPS = 2
_TOTAL = "Total"
BUCKETS = "DDP buckets"

Built = tuple[nn.Module, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer], Callable[[nn.Module], torch.Tensor]]


class NotTrackedError(Exception):
    """A request without an answer, and the reason in words."""


def main() -> None:
    """Answer each request, or say why not."""
    asked, answers = map(Path, sys.argv[1:3])
    requests = json.loads(asked.read_text())
    found: list[dict[str, Any]] = []
    build: Callable[[int], Built] | str
    try:
        build = _function(requests[0]["function"])
    except NotTrackedError as why:
        build = str(why)
    for request in requests:
        try:
            if isinstance(build, str):
                raise NotTrackedError(build)
            found.append(_tracked(build, request))
        except NotTrackedError as why:
            found.append({"why": str(why)})
        except Exception as error:  # whatever the user's model raises
            found.append({"why": _described(error)})
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
    answers.write_text(json.dumps(found))


def _function(named: str) -> Callable[[int], Built]:
    path, _, name = named.rpartition(":")
    spec = importlib.util.spec_from_file_location("tracked_model", path)
    if spec is None or spec.loader is None:
        raise NotTrackedError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise NotTrackedError(f"importing {path} failed: {_described(error)}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise NotTrackedError(f"{path} has no function {name}")
    return function  # type: ignore[no-any-return]


def _tracked(build: Callable[[int], Built], request: dict[str, Any]) -> dict[str, Any]:
    """The most bytes that are alive at once in a step, and what they are by torch's names at that moment."""
    from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    ranks = request["mesh"]
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=math.prod(ranks))
    with FakeTensorMode(allow_non_fake_inputs=True):
        model, optimizer_of, loss_of = _built(build, request["batch"])
        device = next(model.parameters()).device.type
        blocks = _blocks(model, request)
        if request["checkpointing"]:
            for block in blocks:
                block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        merged = _merged(len(blocks), request["units"])
        if request["sharded"]:
            with unset_fake_temporarily():  # a mesh reads the values of its tensors
                names = ("replicate", "shard")[-len(ranks) :]
                mesh = init_device_mesh(device, tuple(ranks), mesh_dim_names=names)
            _shard(model, blocks, merged, request, mesh)
        optimizer = optimizer_of(model.parameters())
        tracker = _tracker(model, optimizer, by_unit=request["sharded"] and merged == 1)
        with tracker, _gloo_copies() if request["copies"] else contextlib.nullcontext():
            for _ in range(_STEPS):
                loss_of(model).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad()
                tracker.reset_mod_stats()
        trained = sum(each.numel() * each.element_size() for each in model.parameters() if each.requires_grad)
        snapshots = tracker.get_tracker_snapshot("peak").values()
    parts = {str(getattr(kind, "value", kind)): size for kind, size in max(snapshots, key=_total).items() if size}
    parts.pop(_TOTAL, None)
    if request["buckets"]:
        parts[BUCKETS] = trained
    return {"peak_bytes": sum(parts.values()), "parts": parts}


def _built(build: Callable[[int], Built], batch: int) -> Built:
    found = build(batch)
    if not (
        isinstance(found, tuple)
        and len(found) == 3
        and isinstance(found[0], nn.Module)
        and callable(found[1])
        and callable(found[2])
    ):
        raise NotTrackedError(
            "the function does not return a model, a function from parameters to an optimizer, and a function from the "
            "model to a loss"
        )
    return found


def _tracker(model: nn.Module, optimizer: torch.optim.Optimizer, *, by_unit: bool) -> Any:
    """One of torch's two. That of fully_shard runs the hooks of a unit of several modules once for each of them."""
    if by_unit:
        from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker

        return FSDPMemTracker(model, optimizer)
    from torch.distributed._tools.mem_tracker import MemTracker

    tracker = MemTracker()
    tracker.track_external(model, optimizer)
    return tracker


def _blocks(model: nn.Module, request: dict[str, Any]) -> list[nn.Module]:
    """The modules of these paths, else the blocks of this class: the largest list of such."""
    by_path = dict(model.named_modules())
    if paths := request["paths"]:
        if unknown := [path for path in paths if path not in by_path]:
            raise NotTrackedError(f"the model has no module {unknown[0]}, which the recorded one shards")
        return [by_path[path] for path in paths]
    lists = [
        [child for child in parent.children() if type(child).__name__ == request["block"]]
        for parent in by_path.values()
        if request["block"]
    ]
    blocks = max(lists, key=len, default=[])
    if not blocks and (request["sharded"] or request["checkpointing"]):
        raise NotTrackedError("the model has no list of equal blocks, so the units of fully_shard are unknown")
    return blocks


def _merged(blocks: int, units: int | None) -> int:
    """How many neighbouring blocks are one unit."""
    if units and units > max(blocks, 1):
        raise NotTrackedError(f"the model has {blocks} blocks, so at most that many units")
    return -(-blocks // units) if units else 1  # rounded up


def _shard(model: nn.Module, blocks: Sequence[nn.Module], merged: int, request: dict[str, Any], mesh: Any) -> None:
    """fully_shard on each so many neighbouring blocks, then on the rest."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    dtypes = {name: getattr(torch, request[name]) for name in ("param_dtype", "reduce_dtype") if request[name]}
    options: dict[str, Any] = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(**dtypes)}
    for at in range(0, len(blocks), merged):
        unit = list(blocks[at : at + merged])
        fully_shard(unit if merged > 1 else unit[0], reshard_after_forward=request["reshard"], **options)
    fully_shard(model, **options)


@contextlib.contextmanager
def _gloo_copies() -> Iterator[None]:
    """Collectives of units with a tensor as large as the unit beside their own, as gloo allocates it.

    That of a reduce-scatter lives until the next collective: a thread of gloo frees it.
    Sources: torch 2.13, torch/csrc/distributed/c10d/ProcessGroupGloo.cpp: `_allgather_base` and `_reduce_scatter_base`.
    """
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives as collectives

    held: list[torch.Tensor] = []

    def copying(plain: Callable[..., Any], *, keeps: bool) -> Callable[..., Any]:
        def call(self: Any, output_tensor: torch.Tensor, input_tensor: torch.Tensor, *args: Any, **more: Any) -> Any:
            held[:] = [torch.empty_like(max(output_tensor, input_tensor, key=torch.Tensor.numel))]
            found = plain(self, output_tensor, input_tensor, *args, **more)
            if not keeps:
                held.clear()
            return found

        return call

    with contextlib.ExitStack() as patches:
        for kind, keeps in ((collectives.DefaultAllGather, False), (collectives.DefaultReduceScatter, True)):
            patches.enter_context(mock.patch.object(kind, "__call__", copying(kind.__call__, keeps=keeps)))
        yield


def _total(snapshot: dict[Any, int]) -> int:
    return snapshot.get(_TOTAL, 0)


def _described(error: BaseException) -> str:
    """In one line what the user's code raised under fake tensors."""
    kind = type(error).__name__
    if kind == "DataDependentOutputException":
        return f"the model reads the value of a tensor ({error}), which fake tensors do not have"
    words = " ".join(str(error).split())
    if kind == "NotImplementedError" and "iterative calls" in words:
        return "the loss of a batch calls the model several times: torch's trackers cover one forward pass"
    return f"{kind}: {words:.200}" if words else kind


if __name__ == "__main__":
    main()
