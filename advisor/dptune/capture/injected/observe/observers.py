"""What watches torch in this process: installed once, whoever records."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from dptune.capture.injected.observe.active_dropouts import ActiveDropouts
from dptune.capture.injected.observe.anomaly import Anomaly
from dptune.capture.injected.observe.averaging import Averaging
from dptune.capture.injected.observe.batch_preparation import Preparing
from dptune.capture.injected.observe.bootstrapped_targets import BootstrappedTargets
from dptune.capture.injected.observe.broadcast_losses import BroadcastLosses
from dptune.capture.injected.observe.carried_states import CarriedStates
from dptune.capture.injected.observe.causal_masks import CausalMasks
from dptune.capture.injected.observe.changed_samples import ChangedSamples
from dptune.capture.injected.observe.checkpointing import Checkpointing
from dptune.capture.injected.observe.clipping import Clipping
from dptune.capture.injected.observe.collectives import Calls
from dptune.capture.injected.observe.compilations import Compilations
from dptune.capture.injected.observe.counted_padding import CountedPadding
from dptune.capture.injected.observe.dense_tables import DenseTables
from dptune.capture.injected.observe.discarded_gradients import DiscardedGradients
from dptune.capture.injected.observe.divergence_weights import DivergenceWeights
from dptune.capture.injected.observe.evaluation_graphs import EvaluationGraphs
from dptune.capture.injected.observe.evaluation_mode import EvaluationMode
from dptune.capture.injected.observe.float64 import Doubling
from dptune.capture.injected.observe.frozen_features import FrozenFeatures
from dptune.capture.injected.observe.frozen_norms import FrozenNorms
from dptune.capture.injected.observe.garbage import Garbage
from dptune.capture.injected.observe.gathered_embeddings import GatheredEmbeddings
from dptune.capture.injected.observe.generators import Generators
from dptune.capture.injected.observe.histories import Histories
from dptune.capture.injected.observe.hook_calls import HookCalls
from dptune.capture.injected.observe.ignored_targets import IgnoredTargets
from dptune.capture.injected.observe.iterators import Iterators
from dptune.capture.injected.observe.kept_weights import KeptWeights
from dptune.capture.injected.observe.left_out import AddedParameters
from dptune.capture.injected.observe.library_calls import LibraryCalls
from dptune.capture.injected.observe.loss_scaling import LossScaling
from dptune.capture.injected.observe.lost_updates import LostUpdates
from dptune.capture.injected.observe.meters import Meters
from dptune.capture.injected.observe.misplaced_views import MisplacedViews
from dptune.capture.injected.observe.module_calls import ModuleCalls
from dptune.capture.injected.observe.norm_samples import NormSamples
from dptune.capture.injected.observe.optimizer_gradients import OptimizerGradients
from dptune.capture.injected.observe.padded_attention import PaddedAttention
from dptune.capture.injected.observe.places import Places
from dptune.capture.injected.observe.plateaus import Plateaus
from dptune.capture.injected.observe.policy_ratios import PolicyRatios
from dptune.capture.injected.observe.probability_losses import ProbabilityLosses
from dptune.capture.injected.observe.registered_hooks import RegisteredHooks
from dptune.capture.injected.observe.repeated_forward import RepeatedForward
from dptune.capture.injected.observe.same_results import SameResults
from dptune.capture.injected.observe.saved_files import SavedFiles
from dptune.capture.injected.observe.scaled_clipping import ScaledClipping
from dptune.capture.injected.observe.script_profilers import ScriptProfilers
from dptune.capture.injected.observe.shifted_labels import ShiftedLabels
from dptune.capture.injected.observe.softmax_dimensions import SoftmaxDimensions
from dptune.capture.injected.observe.sorted_labels import SortedLabels
from dptune.capture.injected.observe.split_windows import SplitWindows
from dptune.capture.injected.observe.step_draws import StepDraws
from dptune.capture.injected.observe.step_values import SampledSteps
from dptune.capture.injected.observe.target_counts import TargetCounts
from dptune.capture.injected.observe.torch_warnings import Warned
from dptune.capture.injected.observe.training_mode import TrainingMode
from dptune.capture.injected.observe.unaveraged import Unaveraged
from dptune.capture.injected.observe.undivided_losses import UndividedLosses
from dptune.capture.injected.observe.unreached import Unreached
from dptune.capture.injected.observe.unread_results import UnreadResults
from dptune.capture.injected.observe.unrestored_states import UnrestoredStates
from dptune.capture.injected.observe.unused_gradients import Unused
from dptune.capture.injected.observe.weight_penalties import WeightPenalties
from dptune.capture.injected.observe.wrapped_integers import WrappedIntegers
from dptune.capture.injected.observe.zero_rates import ZeroRates


@dataclass(frozen=True)
class Observers:
    """The places where things were made, and what measures what happens between two steps."""

    places: Places
    meters: Meters
    garbage: Garbage
    compilations: Compilations
    preparing: Preparing
    calls: Calls
    averaging: Averaging
    unused: Unused
    warned: Warned
    checkpointing: Checkpointing
    doubling: Doubling
    frozen_norms: FrozenNorms
    dense_tables: DenseTables
    evaluation_mode: EvaluationMode
    evaluation_graphs: EvaluationGraphs
    unaveraged: Unaveraged
    iterators: Iterators
    lost_updates: LostUpdates
    repeated_forward: RepeatedForward
    probability_losses: ProbabilityLosses
    generators: Generators
    ignored_targets: IgnoredTargets
    discarded_gradients: DiscardedGradients
    broadcast_losses: BroadcastLosses
    kept_weights: KeptWeights
    shifted_labels: ShiftedLabels
    weight_penalties: WeightPenalties
    loss_scaling: LossScaling
    same_results: SameResults
    changed_samples: ChangedSamples
    library_calls: LibraryCalls
    anomaly: Anomaly
    script_profilers: ScriptProfilers
    hooks: RegisteredHooks
    scaled_clipping: ScaledClipping
    optimizer_gradients: OptimizerGradients
    module_calls: ModuleCalls
    clipping: Clipping
    counted_padding: CountedPadding
    saved_files: SavedFiles
    training_mode: TrainingMode
    unreached: Unreached
    zero_rates: ZeroRates
    plateaus: Plateaus
    undivided_losses: UndividedLosses
    norm_samples: NormSamples
    active_dropouts: ActiveDropouts
    step_draws: StepDraws
    frozen_features: FrozenFeatures
    unrestored_states: UnrestoredStates
    histories: Histories
    bootstrapped_targets: BootstrappedTargets
    target_counts: TargetCounts
    policy_ratios: PolicyRatios
    causal_masks: CausalMasks
    gathered_embeddings: GatheredEmbeddings
    carried_states: CarriedStates
    unread_results: UnreadResults
    wrapped_integers: WrappedIntegers
    misplaced_views: MisplacedViews
    hook_calls: HookCalls
    split_windows: SplitWindows
    sorted_labels: SortedLabels
    softmax_dimensions: SoftmaxDimensions
    divergence_weights: DivergenceWeights
    padded_attention: PaddedAttention
    sampled_steps: SampledSteps

    def stepped(self, optimizer: Any) -> None:
        """An optimizer has made a step."""
        self.calls.stepped()
        self.averaging.stepped(optimizer)
        self.unused.stepped(optimizer)
        self.dense_tables.stepped(optimizer)
        self.evaluation_mode.stepped(optimizer)
        self.unaveraged.stepped(optimizer)
        self.lost_updates.stepped(optimizer)
        self.repeated_forward.stepped()
        self.kept_weights.stepped(optimizer)
        self.hooks.stepped()
        self.training_mode.stepped()
        self.zero_rates.stepped(optimizer)
        self.target_counts.stepped()
        self.script_profilers.stepped()


@functools.cache
def observers() -> Observers:
    """The observers of this process; the first call hooks them into torch."""
    places = Places()
    places.install()
    preparing = Preparing()
    preparing.install()
    generators = Generators()
    generators.install()
    changed_samples = ChangedSamples()
    changed_samples.install()
    averaging = Averaging(places)
    averaging.install()
    added = AddedParameters(places)
    added.install()
    unused = Unused(places, added)
    iterators = Iterators(places)
    iterators.install()
    probability_losses = ProbabilityLosses()
    loss_scaling = LossScaling(places)
    meters = Meters(places, preparing, averaging, unused, iterators, probability_losses, generators, loss_scaling)
    meters.install()
    garbage = Garbage()
    garbage.install()
    calls = Calls(lambda: meters.passes)
    calls.install()
    warned = Warned()
    warned.install()
    checkpointing = Checkpointing(places)
    checkpointing.install()
    doubling = Doubling(places)
    doubling.install()
    norm_samples = NormSamples()
    frozen_norms = FrozenNorms(places, norm_samples.ran)
    frozen_norms.install()
    dense_tables = DenseTables(places)
    dense_tables.install()
    evaluation_mode = EvaluationMode(places)
    evaluation_mode.install()
    evaluation_graphs = EvaluationGraphs(lambda: meters.passes)
    evaluation_graphs.install()
    ignored_targets = IgnoredTargets(places)
    discarded_gradients = DiscardedGradients(places)
    broadcast_losses = BroadcastLosses(places)
    shifted_labels = ShiftedLabels(places)
    weight_penalties = WeightPenalties(places)
    optimizer_gradients = OptimizerGradients(places)
    module_calls = ModuleCalls()
    counted_padding = CountedPadding(places, module_calls)
    undivided_losses = UndividedLosses(places)
    clipping = Clipping(places)
    clipping.install()
    saved_files = SavedFiles()
    saved_files.install()
    training_mode = TrainingMode(places)
    step_draws = StepDraws(places)
    frozen_features = FrozenFeatures(places, module_calls)
    carried_states = CarriedStates(places)
    target_counts = TargetCounts(places)
    sorted_labels = SortedLabels(places)
    bootstrapped_targets, policy_ratios = BootstrappedTargets(), PolicyRatios()
    causal_masks, softmax_dimensions = CausalMasks(places), SoftmaxDimensions(places)
    padded_attention, divergence_weights = PaddedAttention(places), DivergenceWeights(places)
    gathered_embeddings = GatheredEmbeddings()
    calls.before_counting.append(gathered_embeddings.called)
    meters.drawn += [training_mode.drawn, step_draws.drawn, frozen_features.drawn, carried_states.drawn]
    meters.before_graph += [
        counted_padding.before_pass,
        ignored_targets.before_pass,
        shifted_labels.before_pass,
        broadcast_losses.before_pass,
        weight_penalties.before_pass,
        discarded_gradients.before_pass,
        optimizer_gradients.before_pass,
        bootstrapped_targets.before_pass,
        target_counts.before_pass,
        sorted_labels.before_pass,
        policy_ratios.before_pass,
        causal_masks.before_pass,
        softmax_dimensions.before_pass,
        divergence_weights.before_pass,
        padded_attention.before_pass,
        gathered_embeddings.before_pass,
    ]
    meters.before_call.append(undivided_losses.before_pass)
    meters.after_graph += [
        clipping.after_pass,
        discarded_gradients.after_pass,
        broadcast_losses.after_pass,
        optimizer_gradients.after_pass,
        undivided_losses.after_pass,
        bootstrapped_targets.after_pass,
        policy_ratios.after_pass,
        causal_masks.after_pass,
        softmax_dimensions.after_pass,
        divergence_weights.after_pass,
        padded_attention.after_pass,
    ]
    kept_weights = KeptWeights()
    kept_weights.install()
    unaveraged = Unaveraged(places)
    unaveraged.install()
    library_calls = LibraryCalls()
    library_calls.install()
    anomaly = Anomaly()
    anomaly.install()
    script_profilers = ScriptProfilers()
    script_profilers.install()
    hooks = RegisteredHooks()
    hooks.install()
    scaled_clipping = ScaledClipping(places)
    scaled_clipping.install()
    plateaus = Plateaus()
    plateaus.install()
    unrestored_states = UnrestoredStates(places)
    unrestored_states.install()
    split_windows = SplitWindows(places)
    split_windows.install()
    histories = Histories(places)
    unread_results, wrapped_integers, hook_calls = UnreadResults(), WrappedIntegers(), HookCalls(hooks.forward)
    misplaced_views = MisplacedViews()
    return Observers(
        *(places, meters, garbage, Compilations(), preparing, calls, averaging, unused, warned, checkpointing),
        doubling=doubling,
        frozen_norms=frozen_norms,
        dense_tables=dense_tables,
        evaluation_mode=evaluation_mode,
        evaluation_graphs=evaluation_graphs,
        unaveraged=unaveraged,
        iterators=iterators,
        lost_updates=LostUpdates(places),
        repeated_forward=RepeatedForward(places, lambda: meters.passes, unused.inputs.note),
        probability_losses=probability_losses,
        generators=generators,
        ignored_targets=ignored_targets,
        discarded_gradients=discarded_gradients,
        broadcast_losses=broadcast_losses,
        kept_weights=kept_weights,
        shifted_labels=shifted_labels,
        weight_penalties=weight_penalties,
        loss_scaling=loss_scaling,
        same_results=SameResults(
            places,
            histories.joined,
            (unread_results, wrapped_integers, misplaced_views, hook_calls, probability_losses.divergences),
        ),
        changed_samples=changed_samples,
        library_calls=library_calls,
        anomaly=anomaly,
        script_profilers=script_profilers,
        hooks=hooks,
        scaled_clipping=scaled_clipping,
        optimizer_gradients=optimizer_gradients,
        module_calls=module_calls,
        clipping=clipping,
        counted_padding=counted_padding,
        saved_files=saved_files,
        training_mode=training_mode,
        unreached=Unreached(places, module_calls),
        zero_rates=ZeroRates(places),
        plateaus=plateaus,
        undivided_losses=undivided_losses,
        norm_samples=norm_samples,
        active_dropouts=ActiveDropouts(places),
        step_draws=step_draws,
        frozen_features=frozen_features,
        unrestored_states=unrestored_states,
        histories=histories,
        bootstrapped_targets=bootstrapped_targets,
        target_counts=target_counts,
        policy_ratios=policy_ratios,
        causal_masks=causal_masks,
        gathered_embeddings=gathered_embeddings,
        carried_states=carried_states,
        unread_results=unread_results,
        wrapped_integers=wrapped_integers,
        misplaced_views=misplaced_views,
        hook_calls=hook_calls,
        split_windows=split_windows,
        sorted_labels=sorted_labels,
        softmax_dimensions=softmax_dimensions,
        divergence_weights=divergence_weights,
        padded_attention=padded_attention,
        sampled_steps=SampledSteps(places),
    )
