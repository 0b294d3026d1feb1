"""What a rule declares, and what it can ask of a run.

A rule is a module with `RULE = Rule(...)` and `check(run: RunView) -> Iterator[Advice]`. A pack is a package whose
modules are rules, registered under the entry point `dptune.rules`.
"""

from __future__ import annotations

from dptune.measured import Missing
from dptune.rule.declared import Rule, Threshold
from dptune.rule.ranks import LEADING
from dptune.rule.recorded import Predictor
from dptune.rule.run_view import UNVALIDATED, RuleModule, RunView
from dptune.runfile.bootstrapped_targets import BootstrappedTargetFacts
from dptune.runfile.broadcast_losses import BroadcastLossFacts
from dptune.runfile.call_path import CallPath, call_path
from dptune.runfile.carried_states import CarriedStateFacts
from dptune.runfile.causal_masks import CausalMaskFacts
from dptune.runfile.changed_samples import ChangedSampleFacts
from dptune.runfile.clipping import ClippingFacts
from dptune.runfile.communication import CallFacts, DdpFacts
from dptune.runfile.counted_padding import CountedPaddingFacts
from dptune.runfile.decisions import DifferentDecision, different_decisions
from dptune.runfile.dense_tables import DenseTableFacts
from dptune.runfile.discarded_gradients import DiscardedGradientFacts, discarding
from dptune.runfile.divergence_weights import DivergenceWeightFacts
from dptune.runfile.evaluation_mode import EvaluationModeFacts
from dptune.runfile.facts import OptimizerFacts
from dptune.runfile.gathered_embeddings import GatheredEmbeddingFacts
from dptune.runfile.generators import EqualGenerators, equal_generators
from dptune.runfile.hook_calls import HookCallFacts
from dptune.runfile.hot_lines import SampledShare
from dptune.runfile.ignored_targets import IgnoredTargetFacts, ignored_over_ranks
from dptune.runfile.iterators import NewIterators
from dptune.runfile.kept_weights import KeptWeightFacts
from dptune.runfile.late_lines import LateLine, late_line
from dptune.runfile.left_out import LeftOutFacts
from dptune.runfile.library_calls import LibraryCallFacts, line_of_argument, passed_at
from dptune.runfile.line_forms import LineForm
from dptune.runfile.loader import LoaderFacts, PreparingFacts
from dptune.runfile.loader_lines import HotFunction
from dptune.runfile.lost_updates import LostUpdateFacts, over_ranks
from dptune.runfile.memory_growth import MemoryGrowth
from dptune.runfile.misplaced_views import MisplacedViewFacts
from dptune.runfile.norm_samples import NormSampleFacts
from dptune.runfile.optimizer_gradients import OptimizerGradientFacts
from dptune.runfile.padded_attention import PaddedAttentionFacts
from dptune.runfile.padding import PaddingFacts
from dptune.runfile.policy_ratios import PolicyRatioFacts
from dptune.runfile.probability_losses import ProbabilityLossFacts
from dptune.runfile.registered_hooks import RegisteredHookFacts, left_by_steps
from dptune.runfile.removed import Share
from dptune.runfile.repeated_forward import FrozenFeatureFacts, RepeatedForwardFacts
from dptune.runfile.row_calls import RowCallsFacts, SliceCallsFacts
from dptune.runfile.same_results import SameResultFacts, UnreadResultFacts
from dptune.runfile.saved_files import shared_files
from dptune.runfile.schedules import PlateauFacts, SchedulerFacts, epochs_of
from dptune.runfile.script_profiler import ScriptProfilerFacts
from dptune.runfile.slow_steps import SlowSteps
from dptune.runfile.softmax_dimensions import SoftmaxDimensionFacts
from dptune.runfile.sorted_labels import SortedLabelFacts
from dptune.runfile.split_windows import SplitWindowFacts
from dptune.runfile.step_draws import StepDrawFacts, equal_draws
from dptune.runfile.step_values import DifferentWeights, different_weights
from dptune.runfile.target_counts import CountSpread, TargetCountFacts, between_micro_batches, between_ranks
from dptune.runfile.training_mode import ActiveDropoutFacts, TrainingModeFacts
from dptune.runfile.undivided_losses import UndividedLossFacts
from dptune.runfile.unrestored_states import UnrestoredStateFacts
from dptune.runfile.unused import RepeatedPassFacts, UnusedGradientFacts
from dptune.runfile.weight_penalties import WeightPenaltyFacts
from dptune.runfile.work_between import LEAST_SAMPLES, HostWork
from dptune.runfile.wrapped_integers import WrappedIntegerFacts

__all__ = [
    "LEADING",
    "LEAST_SAMPLES",
    "UNVALIDATED",
    "ActiveDropoutFacts",
    "BootstrappedTargetFacts",
    "BroadcastLossFacts",
    "CallFacts",
    "CallPath",
    "CarriedStateFacts",
    "CausalMaskFacts",
    "ChangedSampleFacts",
    "ClippingFacts",
    "CountSpread",
    "CountedPaddingFacts",
    "DdpFacts",
    "DenseTableFacts",
    "DifferentDecision",
    "DifferentWeights",
    "DiscardedGradientFacts",
    "DivergenceWeightFacts",
    "EqualGenerators",
    "EvaluationModeFacts",
    "FrozenFeatureFacts",
    "GatheredEmbeddingFacts",
    "HookCallFacts",
    "HostWork",
    "HotFunction",
    "IgnoredTargetFacts",
    "KeptWeightFacts",
    "LateLine",
    "LeftOutFacts",
    "LibraryCallFacts",
    "LineForm",
    "LoaderFacts",
    "LostUpdateFacts",
    "MemoryGrowth",
    "MisplacedViewFacts",
    "Missing",
    "NewIterators",
    "NormSampleFacts",
    "OptimizerFacts",
    "OptimizerGradientFacts",
    "PaddedAttentionFacts",
    "PaddingFacts",
    "PlateauFacts",
    "PolicyRatioFacts",
    "Predictor",
    "PreparingFacts",
    "ProbabilityLossFacts",
    "RegisteredHookFacts",
    "RepeatedForwardFacts",
    "RepeatedPassFacts",
    "RowCallsFacts",
    "Rule",
    "RuleModule",
    "RunView",
    "SameResultFacts",
    "SampledShare",
    "SchedulerFacts",
    "ScriptProfilerFacts",
    "Share",
    "SliceCallsFacts",
    "SlowSteps",
    "SoftmaxDimensionFacts",
    "SortedLabelFacts",
    "SplitWindowFacts",
    "StepDrawFacts",
    "TargetCountFacts",
    "Threshold",
    "TrainingModeFacts",
    "UndividedLossFacts",
    "UnreadResultFacts",
    "UnrestoredStateFacts",
    "UnusedGradientFacts",
    "WeightPenaltyFacts",
    "WrappedIntegerFacts",
    "between_micro_batches",
    "between_ranks",
    "call_path",
    "different_decisions",
    "different_weights",
    "discarding",
    "epochs_of",
    "equal_draws",
    "equal_generators",
    "ignored_over_ranks",
    "late_line",
    "left_by_steps",
    "line_of_argument",
    "over_ranks",
    "passed_at",
    "shared_files",
]
