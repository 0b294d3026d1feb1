"""rank-NNNNN.facts.json: facts that only the live process has, per rank.

Every fact is optional: one that could not be read is absent, and `unread` has the reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from statistics import median

from dptune.runfile.bootstrapped_targets import BootstrappedTargetFacts
from dptune.runfile.broadcast_losses import BroadcastLossFacts
from dptune.runfile.carried_states import CarriedStateFacts
from dptune.runfile.causal_masks import CausalMaskFacts
from dptune.runfile.changed_samples import ChangedSampleFacts
from dptune.runfile.clipping import ClippingFacts
from dptune.runfile.communication import CallFacts, DdpFacts, FsdpFacts, NcclFacts
from dptune.runfile.compilation import CompileFacts
from dptune.runfile.counted_padding import CountedPaddingFacts
from dptune.runfile.cpu_peak import CpuPeakFacts
from dptune.runfile.decisions import DecisionFacts
from dptune.runfile.dense_tables import DenseTableFacts
from dptune.runfile.discarded_gradients import DiscardedGradientFacts
from dptune.runfile.divergence_weights import DivergenceWeightFacts
from dptune.runfile.double_precision import DoubledFacts
from dptune.runfile.evaluation_mode import EvaluationModeFacts
from dptune.runfile.frozen_norms import FrozenNormFacts
from dptune.runfile.gathered_embeddings import GatheredEmbeddingFacts
from dptune.runfile.histories import HistoryFacts
from dptune.runfile.hook_calls import HookCallFacts
from dptune.runfile.ignored_targets import IgnoredTargetFacts
from dptune.runfile.iterators import IteratorFacts
from dptune.runfile.kept_tensors import KeptFacts
from dptune.runfile.kept_weights import KeptWeightFacts
from dptune.runfile.left_out import LeftOutFacts
from dptune.runfile.library_calls import LibraryCallFacts
from dptune.runfile.loader import LoaderFacts
from dptune.runfile.loss_scaling import LossScalingFacts, ScaledClippingFacts
from dptune.runfile.lost_updates import LostUpdateFacts
from dptune.runfile.misplaced_views import MisplacedViewFacts
from dptune.runfile.noise import NoiseFacts
from dptune.runfile.norm_samples import NormSampleFacts
from dptune.runfile.optimizer_gradients import OptimizerGradientFacts
from dptune.runfile.padded_attention import PaddedAttentionFacts
from dptune.runfile.policy_ratios import PolicyRatioFacts
from dptune.runfile.probability_losses import ProbabilityLossFacts
from dptune.runfile.registered_hooks import RegisteredHookFacts
from dptune.runfile.repeated_forward import FrozenFeatureFacts, RepeatedForwardFacts
from dptune.runfile.row_calls import CellLoopFacts, RowCallsFacts, SliceCallsFacts
from dptune.runfile.same_results import SameResultFacts, UnreadResultFacts
from dptune.runfile.saved_files import SavedFileFacts
from dptune.runfile.schedules import PlateauFacts, SchedulerFacts, ZeroRateFacts
from dptune.runfile.script_profiler import ScriptProfilerFacts
from dptune.runfile.shifted_labels import ShiftedLabelFacts
from dptune.runfile.softmax_dimensions import SoftmaxDimensionFacts
from dptune.runfile.sorted_labels import SortedLabelFacts
from dptune.runfile.split_windows import SplitWindowFacts
from dptune.runfile.step_draws import StepDrawFacts
from dptune.runfile.step_values import StepValueFacts
from dptune.runfile.target_counts import TargetCountFacts
from dptune.runfile.tensors import TensorFacts
from dptune.runfile.torch_warnings import WarningFacts
from dptune.runfile.training_mode import ActiveDropoutFacts, TrainingModeFacts
from dptune.runfile.unaveraged import UnaveragedFacts
from dptune.runfile.undivided_losses import UndividedLossFacts
from dptune.runfile.unreached import UnreachedFacts
from dptune.runfile.unrestored_states import UnrestoredStateFacts
from dptune.runfile.unused import RepeatedPassFacts, UnusedGradientFacts
from dptune.runfile.variables import VariableFacts
from dptune.runfile.weight_penalties import WeightPenaltyFacts
from dptune.runfile.window import Window
from dptune.runfile.wrapped_integers import WrappedIntegerFacts

SCHEMA_VERSION = "0.3"

# torch's DDPOptimizer refuses a size for all buckets below that of DDP's own first one.
COMPILED_LEAST_BUCKET_BYTES = 2**20

CLOSURES = ("LBFGS",)  # optimizers that run backward passes themselves, each of which they need

_CAPABILITY = re.compile(r"(?:sm_)?([0-9]{1,2})\.?([0-9])[af]?")


@dataclass
class OptimizerFacts:
    """One optimizer. The first one seen is the clock of the recording. `parameters` are those this rank updates.

    `learning_rates` are those of this moment, `first_learning_rate` the one its first group was made with, where a
    scheduler noted it, `default_learning_rate` that of groups that were given none. `betas` and `eps` are those of the
    first group, where it is of Adam's family. `dtypes` are those of its parameters. `arguments`: defaults of its
    groups that dptune can set and no other field holds, by name. `argument_lines`: `file:line` of each argument of the
    script's call.
    """

    name: str
    where: str | None = None
    learning_rates: list[float] = field(default_factory=list)
    first_learning_rate: float | None = None
    default_learning_rate: float | None = None
    fused: bool | None = None
    foreach: bool | None = None
    betas: list[float] = field(default_factory=list)
    eps: float | None = None
    parameter_tensors: int = 0
    parameters: int = 0
    dtypes: list[str] = field(default_factory=list)
    arguments: dict[str, bool | int | float | str | None] = field(default_factory=dict)
    argument_lines: dict[str, str] = field(default_factory=dict)


@dataclass
class DeviceFacts:
    """The device this rank computes on, and the host's share for it.

    `instructions`: those of a CPU that compute in 16 bits, by the names the kernel gives them. `available_bytes`: what
    the host of a CPU rank could still give, all its processes together.
    """

    kind: str
    name: str | None = None
    index: int | None = None
    uuid: str | None = None
    compute_capability: str | None = None
    memory_bytes: int | None = None
    clock_khz: int | None = None
    memory_clock_khz: int | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    cores: int | None = None
    usable_cores: int | None = None
    torch_threads: int | None = None
    instructions: list[str] = field(default_factory=list)
    available_bytes: int | None = None

    @property
    def capability(self) -> str:
        """The compute capability as `8.0`, where it was written as `sm_80`, too; empty where it is not known."""
        found = _CAPABILITY.fullmatch(self.compute_capability or "")
        return f"{found[1]}.{found[2]}" if found else ""


@dataclass
class DtypeSpeedFacts:
    """How long a small operator takes on this CPU in a dtype that the script computes in, and in fp32.

    `operator` is `matrix product` or `convolution`: the forward pass and both gradients, the shortest of several.
    """

    dtype: str
    operator: str
    took_ns: int
    float32_ns: int


@dataclass
class CheckpointingFacts:
    """Activation checkpointing: the user's line that runs it first, and the function of a library it goes through.

    `enabled_where`: the line that turns it on for a module, None where the script calls torch's `checkpoint` itself.

    `kept_bytes`: what a step would keep for its backward pass without it, in addition; the most of the warm-up steps.
    """

    where: str | None = None
    through: str = ""
    reentrant: bool = False
    kept_bytes: int | None = None
    enabled_where: str | None = None


@dataclass
class Facts:
    """All facts of one rank.

    `settings` holds torch's switches by their dotted name (`backends.cuda.matmul.allow_tf32`); `environment` the NCCL,
    GLOO, CUDA, OMP and TORCH variables that are set, with secrets redacted; `backward_where` the user's line that calls
    backward, of a pass in which DDP reduced gradients; `unsynced_where` that of the last one before a step on gradients
    that were not averaged over the ranks; `late_no_sync` the lines of a forward pass, and of its backward pass that
    alone is under `no_sync`; `variables` those that were set from outside; `refused` the settings that were not made or
    can do nothing here, by the names of knobs, with the reason; `losses` those of the first backward passes; `calls`
    the collectives that the script calls itself, in `calls_steps` steps; `nccl` what its log contains, if one was
    requested; `averages_models`: whether the script has an object that averages parameters every N steps (local SGD);
    `warnings` are torch's of data-parallel training; `engine` the library that wraps model and optimizer (`deepspeed`);
    `iterators` the lines that make iterators of a DataLoader; `kept` the tensors that stay alive from step to step;
    `tensors` how large those are, by what they are for; `dense_tables` embedding tables with dense gradients, and how
    many rows a step uses; `left_out` parameters that get gradients and no optimizer holds; `evaluation_mode` models
    that are updated in evaluation mode; `evaluates_with_graphs` the function that evaluates with gradients enabled, and
    has no backward pass; `unaveraged` parameters that DDP does not average; `lost_updates` 16-bit parameters that
    optimizers leave as they were; `repeated_forward` modules that run again within a step on the same inputs;
    `row_calls` modules that a loop over a list calls with one row each; `slice_calls` with one slice of a tensor each;
    `cell_loops` loops over recurrent cells; `probability_losses` losses that are given outputs of the wrong kind;
    `ignored_targets` rows of logits whose targets the loss ignores; `discarded_gradients` gradients that are cleared
    before an optimizer uses them; `optimizer_gradients` whether optimizer steps have gradients, and new ones;
    `broadcast_losses` losses that compare each prediction with each target; `gathered_embeddings` embeddings of all
    ranks that losses use without gradients; `bootstrapped_targets` targets that keep gradients; `target_counts` the
    targets that losses count; `carried_states` recurrent layers that start with the state after the previous batch;
    `kept_weights` weights that are kept without a copy; `changed_samples` samples that data sets change in place;
    `shifted_labels` how far targets are ahead of token ids; `weight_penalty` squared weights in the loss;
    `same_results` functions that compute the same in every step; `histories` lines that join all steps so far in each;
    `keeps_logits` the line of a Trainer of transformers whose evaluation keeps all logits for `compute_metrics`;
    `library_calls` the script's calls that set up a library, as `TrainingArguments`; `scaled_clipping` the line that
    clips gradients before they are unscaled; `anomaly_where` the line that turned anomaly detection on, `anomaly_times`
    how many times; `script_profiler` the profiler that the script itself runs; `grad_scaler_where` that of an enabled
    GradScaler, else of one that is not; `clipping` the lines that clip gradients, and whether steps use the clipped
    ones; `step_values` what ranks compare of a step; `policy_ratios` ratios of policies that losses clip;
    `causal_masks` language models that attend to the tokens to predict; `softmax_dimensions` softmax over another
    dimension than that of its use; `divergence_weights` KL divergences that count far more or less than the
    reconstruction; `padded_attention` attention to padding; `counted_padding` padding among the targets of losses;
    `saved_files` the files that `torch.save` wrote; `training_mode` models that are evaluated in training mode;
    `unreached` parameters that get no gradient; `zero_rates` optimizers that step at a learning rate of zero;
    `unrestored_states` optimizers that start without the state that a loaded checkpoint has; `planned_epochs` the
    iterations of the loop around the loop that draws batches; `ends_early` whether the latter may end before its
    loader; `plateaus` the values that each `ReduceLROnPlateau` decides by; `joins` whether DDP's `join` handles uneven
    inputs; `undivided_losses` steps that use the gradients of several backward passes; `norm_samples` BatchNorm layers
    of few samples; `active_dropouts` dropout in any mode; `step_draws` random numbers that steps draw; `decisions` what
    the rank decides by scores; `frozen_features` modules that no optimizer trains; `unread_results` what nothing reads;
    `wrapped_integers` lines whose narrow integers wrap around; `misplaced_views` views where a transpose is meant;
    `sorted_labels` a data set that is sorted by label and not shuffled; `split_windows` overlapping windows of which
    some are held out; `dtype_speeds` how fast a CPU computes in the 16-bit dtypes the script uses; `call_ns` what
    calling an operator takes on a CPU; `hooks` those on modules that steps register; `hook_calls` forward hooks whose
    results nothing reads; `cpu_peak` the peak FLOP/s of a CPU, after the last window; `steps` how many optimizer steps
    were counted; `ended` how this rank's part ended (first `recording`).
    """

    rank: int
    schema_version: str = SCHEMA_VERSION
    local_rank: int | None = None
    world_size: int = 1
    host: str = ""
    pid: int = 0
    python: str = ""
    torch: str = ""
    backend: str | None = None
    device: DeviceFacts | None = None
    windows: list[Window] = field(default_factory=list)
    ddp: list[DdpFacts] = field(default_factory=list)
    fsdp: list[FsdpFacts] = field(default_factory=list)
    loaders: list[LoaderFacts] = field(default_factory=list)
    iterators: list[IteratorFacts] = field(default_factory=list)
    optimizers: list[OptimizerFacts] = field(default_factory=list)
    schedulers: list[SchedulerFacts] = field(default_factory=list)
    compiled: CompileFacts | None = None
    engine: str | None = None
    settings: dict[str, bool | int | float | str | None] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    variables: list[VariableFacts] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    steps: int = 0
    backward_where: str | None = None
    unsynced_where: str | None = None
    late_no_sync: list[str] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    noise: NoiseFacts | None = None
    calls: list[CallFacts] = field(default_factory=list)
    calls_steps: int = 0
    nccl: NcclFacts | None = None
    averages_models: bool = False
    warnings: list[WarningFacts] = field(default_factory=list)
    autocast: str | None = None
    autocast_where: str | None = None
    grad_scaler: bool | None = None
    grad_scale: float | None = None
    dtype_speeds: list[DtypeSpeedFacts] = field(default_factory=list)
    call_ns: float | None = None
    cpu_peak: CpuPeakFacts | None = None
    checkpointing: CheckpointingFacts | None = None
    doubled: DoubledFacts | None = None
    unused_gradients: list[UnusedGradientFacts] = field(default_factory=list)
    left_out: list[LeftOutFacts] = field(default_factory=list)
    repeated_passes: list[RepeatedPassFacts] = field(default_factory=list)
    kept: KeptFacts | None = None
    tensors: TensorFacts | None = None
    frozen_norms: FrozenNormFacts | None = None
    dense_tables: list[DenseTableFacts] = field(default_factory=list)
    evaluation_mode: list[EvaluationModeFacts] = field(default_factory=list)
    evaluates_with_graphs: str | None = None
    unaveraged: list[UnaveragedFacts] = field(default_factory=list)
    lost_updates: list[LostUpdateFacts] = field(default_factory=list)
    repeated_forward: list[RepeatedForwardFacts] = field(default_factory=list)
    row_calls: list[RowCallsFacts] = field(default_factory=list)
    slice_calls: list[SliceCallsFacts] = field(default_factory=list)
    cell_loops: list[CellLoopFacts] = field(default_factory=list)
    probability_losses: list[ProbabilityLossFacts] = field(default_factory=list)
    ignored_targets: list[IgnoredTargetFacts] = field(default_factory=list)
    discarded_gradients: DiscardedGradientFacts | None = None
    optimizer_gradients: list[OptimizerGradientFacts] = field(default_factory=list)
    broadcast_losses: list[BroadcastLossFacts] = field(default_factory=list)
    bootstrapped_targets: list[BootstrappedTargetFacts] = field(default_factory=list)
    target_counts: list[TargetCountFacts] = field(default_factory=list)
    policy_ratios: list[PolicyRatioFacts] = field(default_factory=list)
    causal_masks: list[CausalMaskFacts] = field(default_factory=list)
    softmax_dimensions: list[SoftmaxDimensionFacts] = field(default_factory=list)
    divergence_weights: list[DivergenceWeightFacts] = field(default_factory=list)
    padded_attention: list[PaddedAttentionFacts] = field(default_factory=list)
    gathered_embeddings: list[GatheredEmbeddingFacts] = field(default_factory=list)
    carried_states: list[CarriedStateFacts] = field(default_factory=list)
    kept_weights: list[KeptWeightFacts] = field(default_factory=list)
    changed_samples: list[ChangedSampleFacts] = field(default_factory=list)
    shifted_labels: list[ShiftedLabelFacts] = field(default_factory=list)
    weight_penalty: WeightPenaltyFacts | None = None
    loss_scaling: LossScalingFacts | None = None
    scaled_clipping: ScaledClippingFacts | None = None
    same_results: list[SameResultFacts] = field(default_factory=list)
    unread_results: list[UnreadResultFacts] = field(default_factory=list)
    wrapped_integers: list[WrappedIntegerFacts] = field(default_factory=list)
    misplaced_views: list[MisplacedViewFacts] = field(default_factory=list)
    hook_calls: list[HookCallFacts] = field(default_factory=list)
    split_windows: list[SplitWindowFacts] = field(default_factory=list)
    sorted_labels: SortedLabelFacts | None = None
    histories: list[HistoryFacts] = field(default_factory=list)
    step_values: list[StepValueFacts] = field(default_factory=list)
    keeps_logits: str | None = None
    library_calls: list[LibraryCallFacts] = field(default_factory=list)
    hooks: list[RegisteredHookFacts] = field(default_factory=list)
    anomaly_where: str | None = None
    anomaly_times: int = 0
    script_profiler: ScriptProfilerFacts | None = None
    grad_scaler_where: str | None = None
    clipping: list[ClippingFacts] = field(default_factory=list)
    counted_padding: list[CountedPaddingFacts] = field(default_factory=list)
    saved_files: list[SavedFileFacts] = field(default_factory=list)
    training_mode: list[TrainingModeFacts] = field(default_factory=list)
    unreached: list[UnreachedFacts] = field(default_factory=list)
    zero_rates: list[ZeroRateFacts] = field(default_factory=list)
    unrestored_states: list[UnrestoredStateFacts] = field(default_factory=list)
    plateaus: list[PlateauFacts] = field(default_factory=list)
    undivided_losses: list[UndividedLossFacts] = field(default_factory=list)
    norm_samples: NormSampleFacts | None = None
    active_dropouts: list[ActiveDropoutFacts] = field(default_factory=list)
    step_draws: list[StepDrawFacts] = field(default_factory=list)
    decisions: list[DecisionFacts] = field(default_factory=list)
    frozen_features: list[FrozenFeatureFacts] = field(default_factory=list)
    planned_epochs: int | None = None
    joins: bool | None = None
    ends_early: bool | None = None
    unread: dict[str, str] = field(default_factory=dict)
    ended: str = "recording"

    def lacking(self, *names: str) -> str:
        """Which of these facts could not be read, and why; empty where each is known."""
        lost = next((name for name in names if name in self.unread and not getattr(self, name)), None)
        return "" if lost is None else f"`{lost}` of rank {self.rank} could not be read: {self.unread[lost]:.200}"

    @property
    def detects_anomalies(self) -> bool:
        """Whether anomaly detection stays on, or is turned on for at least every second recorded step."""
        steps = sum(window.steps for window in self.windows)
        return bool(self.settings.get("anomaly_mode")) or 0 < steps <= 2 * self.anomaly_times

    @property
    def debug_switches(self) -> dict[str, str]:
        """Variables of the environment that are on, help to find errors and slow steps; by name, with their value."""
        on = {
            "CUDA_LAUNCH_BLOCKING": self.environment.get("CUDA_LAUNCH_BLOCKING", "") not in ("", "0"),
            "TORCH_DISTRIBUTED_DEBUG": self.environment.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL",
            "PYTORCH_NO_CUDA_MEMORY_CACHING": "PYTORCH_NO_CUDA_MEMORY_CACHING" in self.environment,  # whatever it says
        }
        return {name: self.environment[name] for name, is_on in on.items() if is_on}

    @property
    def least_bucket_bytes(self) -> int:
        """The size below which torch refuses one for all buckets: where it splits a compiled graph at them; else 0."""
        return COMPILED_LEAST_BUCKET_BYTES if self.compiled is not None and self.compiled.ddp_graphs else 0

    def accumulates(self) -> bool | None:
        """Whether gradients of several batches add up in a step, if it has several backward passes.

        The passes of warm-up steps may show that all of them add up, also those of the parts of one batch. Else, where
        it has more of them than batches, as with SAM, or the optimizer runs them itself, each is needed for itself.
        None where no loader shows how many batches a step has.
        """
        window = self.window("untraced")
        if any(optimizer.name in CLOSURES for optimizer in self.optimizers):
            return False
        if window is None or not window.backwards:
            return None
        added = 0 if self.discarded_gradients is None else self.discarded_gradients.usually_added
        if added >= median(window.backwards) > 0:
            return True
        if not any(window.loader_batches):
            return None
        return median(window.loader_batches) >= median(window.backwards)

    def batches_per_step(self) -> int:
        """Of an optimizer step without the profiler; 1 where none was counted."""
        window = self.window("untraced")
        return max(1, round(median(window.loader_batches))) if window is not None and window.loader_batches else 1

    def window(self, name: str) -> Window | None:
        """The window called `untraced`, `light` or `detailed`, if one was begun."""
        return next((w for w in self.windows if w.name == name), None)
