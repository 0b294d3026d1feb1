"""What recordings know of the calls in a loop: none needs the one before, or the inputs are known before the loop."""

from __future__ import annotations

from dptune.measured import OperatorLoop
from dptune.rule import RunView, SliceCallsFacts

LAYERS = {
    "aten::lstm_cell": "nn.LSTM",
    "aten::gru_cell": "nn.GRU",
    "aten::rnn_tanh_cell": "nn.RNN",
    "aten::rnn_relu_cell": 'nn.RNN(nonlinearity="relu")',
}  # a layer that runs all cells in one call
OF_STEPS = "the inputs of all calls are known before the loop, so call its recurrent layer once for the whole sequence"
OF_SLICES = "the calls are for slices of one tensor and none needs the one before, so use one call for all slices"
WATCH_STEPS = (
    "Pass all steps and the first state to the layer, and compute what follows it, for example the output layer and "
    "the loss, for all steps at once. Results agree up to floating-point rounding."
)


def is_by_sample(run: RunView, loop: OperatorLoop) -> bool:
    """Whether each call of the module is for one sample of the batch, so that none needs the one before."""
    batches = {loader.batch_size for rank_facts in run.facts for loader in rank_facts.loaders if loader.batches_drawn}
    return loop.alone and any(batch and batch > 1 and not loop.repeats % batch for batch in batches)


def inputs_known(run: RunView, loop: OperatorLoop) -> bool | None:
    """Whether all inputs of its recurrent cell or layer are known before the loop; None if that is not known."""
    if loop.operator not in LAYERS and not loop.module:
        return None
    known = [
        each.inputs_known
        for facts in run.facts
        for each in facts.cell_loops
        if (each.function.rpartition(".")[2], each.at) == (loop.name, loop.at)
        if loop.operator in LAYERS or each.module == loop.module
    ]
    return all(known) if known else None


def slices_of(run: RunView, loop: OperatorLoop) -> SliceCallsFacts | None:
    """The calls of its module with one slice of a tensor each, none of which needs the one before."""
    found = (each for facts in run.facts for each in facts.slice_calls if not each.siblings)
    return next(
        (
            each
            for each in found
            if (each.function.rpartition(".")[2], each.at, each.module) == (loop.name, loop.at, loop.module)
        ),
        None,
    )


def watch_slices(slices: SliceCallsFacts) -> str:
    """How to call the module once, and what changes then."""
    norms = "BatchNorm layers then normalize over all slices at once. " if slices.norms else ""
    return (
        f"{norms}Flatten the dimension that is sliced into that of the batch (`x.flatten(0, 1)`), call "
        f"`{slices.module}` once, and restore it in the output with `unflatten`. Results agree up to floating-point "
        "rounding."
    )
