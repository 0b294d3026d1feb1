"""Collects the facts of this rank. Each is read under its own guard: reading some torch settings can raise."""

from __future__ import annotations

import os
import platform
import socket
import sys
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from dptune.capture.injected.applying import without_effect
from dptune.capture.injected.applying.requested import asked
from dptune.capture.injected.observe import nccl_log, objects, process_rank
from dptune.capture.injected.observe.compilations import recompiles
from dptune.capture.injected.observe.observers import Observers
from dptune.capture.injected.observe.places import Places
from dptune.capture.injected.observe.planned_epochs import ends_early, planned_epochs
from dptune.capture.injected.observe.rank_decisions import decisions
from dptune.capture.injected.observe.schedulers import schedulers
from dptune.capture.injected.observe.thread_stack import can_read
from dptune.knobs import KNOBS
from dptune.runfile.compilation import CompileFacts
from dptune.runfile.facts import Facts
from dptune.runfile.redaction import redacted_environment

# Average parameters every so many steps, which may be more than are recorded.
_AVERAGERS = ("ModelAverager", "LocalSGD")


def _switch(path: str) -> Any:
    return attrgetter(path)(torch)


_SETTINGS: dict[str, Callable[[], Any]] = {
    **{knob.switch: partial(_switch, knob.switch) for knob in KNOBS.values() if knob.switch},
    "float32_matmul_precision": torch.get_float32_matmul_precision,
    "backends.cuda.matmul.allow_tf32": lambda: torch.backends.cuda.matmul.allow_tf32,
    "backends.cudnn.deterministic": lambda: torch.backends.cudnn.deterministic,
    "distributed.first_bucket_bytes": lambda: getattr(torch.distributed, "_DEFAULT_FIRST_BUCKET_BYTES"),  # noqa: B009
    "anomaly_mode": torch.is_anomaly_enabled,
    "deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
    "default_dtype": lambda: str(torch.get_default_dtype()),
}


def gather(facts: Facts, observers: Observers) -> None:
    """Fill in everything but the windows; a later call reads again, so that the last one stands."""
    places = observers.places
    readings: dict[str, Callable[[], Any]] = {
        "local_rank": process_rank.local_rank,
        "world_size": process_rank.world_size,
        "host": socket.gethostname,
        "pid": os.getpid,
        "python": platform.python_version,
        "torch": lambda: str(torch.__version__),
        "backend": lambda: process_rank.backend() or facts.backend,
        "device": objects.device,
        "ddp": lambda: [objects.ddp(module, places) for module in places.ddp()] or facts.ddp,
        "fsdp": lambda: objects.fsdp(places) or facts.fsdp,
        "loaders": lambda: [objects.loader(loader, observers) for loader in places.alive(DataLoader)] or facts.loaders,
        "iterators": observers.iterators.facts,
        "optimizers": lambda: (
            [objects.optimizer(optimizer, places) for optimizer in places.alive(Optimizer)] or facts.optimizers
        ),
        "schedulers": lambda: schedulers(places, facts.schedulers, facts.steps) or facts.schedulers,
        "compiled": lambda: _compiled(places),
        "engine": lambda: places.engine,
        "environment": redacted_environment,
        "variables": asked.variables,
        "refused": lambda: {**without_effect.settings(asked.settings, process_rank.device_kind()), **asked.refused},
        "backward_where": lambda: observers.meters.backward_line,
        "late_no_sync": lambda: observers.meters.late_no_sync,
        "unsynced_where": lambda: observers.averaging.where,
        "warnings": observers.warned.facts,
        "losses": observers.meters.losses,
        "nccl": lambda: nccl_log.read() or facts.nccl,
        "calls": observers.calls.facts,
        "calls_steps": lambda: max(0, facts.steps - observers.calls.first_step),
        "averages_models": lambda: facts.averages_models or any(places.alive(name) for name in _AVERAGERS),
        "autocast": lambda: places.autocast,
        "autocast_where": lambda: places.autocast_line,
        "checkpointing": observers.checkpointing.facts,
        "unused_gradients": lambda: observers.unused.facts() or facts.unused_gradients,
        "left_out": lambda: observers.unused.left_out() or facts.left_out,
        "repeated_passes": observers.unused.repeated,
        "doubled": lambda: observers.doubling.facts() or facts.doubled,
        "frozen_norms": observers.frozen_norms.facts,
        "dense_tables": observers.dense_tables.facts,
        "evaluation_mode": observers.evaluation_mode.facts,
        "evaluates_with_graphs": lambda: observers.evaluation_graphs.where,
        "lost_updates": observers.lost_updates.facts,
        "repeated_forward": observers.repeated_forward.facts,
        "row_calls": observers.repeated_forward.row_calls.facts,
        "slice_calls": observers.repeated_forward.slice_calls.facts,
        "cell_loops": observers.repeated_forward.slice_calls.cell_loops,
        "probability_losses": observers.probability_losses.facts,
        "ignored_targets": observers.ignored_targets.facts,
        "discarded_gradients": observers.discarded_gradients.facts,
        "broadcast_losses": observers.broadcast_losses.facts,
        "bootstrapped_targets": observers.bootstrapped_targets.facts,
        "target_counts": observers.target_counts.facts,
        "policy_ratios": observers.policy_ratios.facts,
        "causal_masks": observers.causal_masks.facts,
        "softmax_dimensions": observers.softmax_dimensions.facts,
        "divergence_weights": observers.divergence_weights.facts,
        "padded_attention": observers.padded_attention.facts,
        "gathered_embeddings": observers.gathered_embeddings.facts,
        "carried_states": observers.carried_states.facts,
        "kept_weights": observers.kept_weights.facts,
        "changed_samples": observers.changed_samples.facts,
        "shifted_labels": observers.shifted_labels.facts,
        "loss_scaling": observers.loss_scaling.facts,
        "weight_penalty": observers.weight_penalties.facts,
        "optimizer_gradients": observers.optimizer_gradients.facts,
        "same_results": observers.same_results.facts,
        "histories": observers.histories.facts,
        "unread_results": observers.unread_results.facts,
        "wrapped_integers": observers.wrapped_integers.facts,
        "misplaced_views": observers.misplaced_views.facts,
        "hook_calls": observers.hook_calls.facts,
        "sorted_labels": lambda: observers.sorted_labels.facts() or facts.sorted_labels,
        "split_windows": lambda: observers.split_windows.facts() or facts.split_windows,
        "step_values": observers.sampled_steps.facts,
        "library_calls": observers.library_calls.facts,
        "scaled_clipping": observers.scaled_clipping.facts,
        "hooks": observers.hooks.facts,
        "script_profiler": observers.script_profilers.facts,
        "anomaly_where": lambda: observers.anomaly.where,
        "anomaly_times": lambda: observers.anomaly.times,
        "keeps_logits": lambda: _keeps_logits(places),
        "unaveraged": lambda: observers.unaveraged.facts() or facts.unaveraged,
        "clipping": observers.clipping.facts,
        "counted_padding": observers.counted_padding.facts,
        "saved_files": observers.saved_files.facts,
        "training_mode": observers.training_mode.facts,
        "unreached": observers.unreached.facts,
        "zero_rates": observers.zero_rates.facts,
        "unrestored_states": observers.unrestored_states.facts,
        "plateaus": observers.plateaus.facts,
        "undivided_losses": observers.undivided_losses.facts,
        "norm_samples": observers.norm_samples.facts,
        "active_dropouts": observers.active_dropouts.facts,
        "step_draws": observers.step_draws.facts,
        "frozen_features": observers.frozen_features.facts,
        "decisions": lambda: decisions(sys._getframe(1), facts.steps) or facts.decisions,
        "planned_epochs": lambda: planned_epochs(sys._getframe(1)) or facts.planned_epochs,
        "ends_early": lambda: facts.ends_early if (early := ends_early(sys._getframe(1))) is None else early,
        "joins": lambda: any(module._join_config.enable for module in places.ddp()) or facts.joins,
        "grad_scaler": lambda: bool(_scalers(places)),
        "grad_scaler_where": lambda: next(map(places.line, _scalers(places) or places.alive(GradScaler)), None),
        "grad_scale": lambda: next((float(scaler.get_scale()) for scaler in _scalers(places)), None),
    }
    facts.unread = {} if can_read() else {"stacks": "Python runs without the global interpreter lock"}
    for name, read in readings.items():
        _guarded(facts, name, lambda name=name, read=read: setattr(facts, name, read()))  # type: ignore[misc]
    for name, read in _SETTINGS.items():
        _guarded(facts, name, lambda name=name, read=read: facts.settings.__setitem__(name, read()))  # type: ignore[misc]


def _guarded(facts: Facts, name: str, read: Callable[[], None]) -> None:
    try:
        read()
    except Exception as error:
        facts.unread[name] = f"{type(error).__name__}: {error}"


def _scalers(places: Places) -> list[Any]:
    return [scaler for scaler in places.alive(GradScaler) if scaler.is_enabled()]


def _keeps_logits(places: Places) -> str | None:
    """The line of a Trainer of transformers that computes metrics from all logits of an evaluation."""
    for trainer in places.alive("Trainer"):
        computes = getattr(trainer, "compute_metrics", None) is not None
        if computes and getattr(trainer, "preprocess_logits_for_metrics", trainer) is None:
            return places.line(trainer)
    return None


def _compiled(places: Places) -> CompileFacts | None:
    if not places.compiled and not places.ddp_graphs:
        return None
    return CompileFacts(list(dict.fromkeys(places.compiled)), list(places.ddp_graphs), recompiles())
