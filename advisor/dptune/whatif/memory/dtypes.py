"""What another dtype does to the memory of a rank: of parameters, of gathered units, of reductions, of autocast."""

from __future__ import annotations

from dataclasses import replace

from dptune.knobs import Value
from dptune.measured import Missing
from dptune.whatif.memory.model import MemoryModel, Moment, Sharding, sharding_of

WIDTH = {"fp32": 4, "bf16": 2, "fp16": 2}  # bytes of an element
OF_DTYPE = 0.1  # of activations: what may stay as wide as before, as losses and statistics do
# Of fp32 activations under autocast: outputs of matrix products in 16 bits, residuals and what norms save in 32. Of a
# transformer's block with the norm first 34 of 64 bytes per element and token, of wide layers and convolutions half.
_AUTOCAST = 0.55


def model_dtype(model: MemoryModel, value: Value) -> MemoryModel:
    """Parameters of another type: so are gradients, the optimizer's state and activations, but those of the loss."""
    times = WIDTH[str(value)] / 4
    split = model.split and replace(
        model.split,
        root=times * model.split.root,
        units=tuple(times * unit for unit in model.split.units),
        element_bytes=times * model.split.element_bytes,
    )
    moments = model.each(
        lambda moment: _computed_in(model, moment, times).scaled(
            weights=times, gradients=times, optimizer=times, sharding=times
        )
    )
    return replace(
        model,
        parameters=times * model.parameters,
        state=times * model.state,
        buckets=times * model.buckets,
        whole=times * model.whole,
        trained=times * model.trained,
        largest_parameter=times * model.largest_parameter,
        split=split,
        sharding=split if model.sharding else None,
        moments=moments,
        loss=_loss(model, times),
        primitives=model.primitives.computed_in(str(value)),
        doubt=model.doubt + abs(1 - times) * _unsure(model),
    )


def parameter_dtype(model: MemoryModel, value: Value) -> MemoryModel:
    """Units gather and compute in another type; shards, their gradients and the optimizer's state stay as wide."""
    sharding = sharding_of(model)
    width = WIDTH[str(value or "fp32")]
    times = width / sharding.element_bytes
    narrow = replace(
        sharding,
        root=times * sharding.root,
        units=tuple(times * unit for unit in sharding.units),
        element_bytes=width,
    )
    after = regathered(model, narrow)
    moments = after.each(lambda moment: _computed_in(model, moment, times).scaled(weights=times))
    primitives = model.primitives if model.autocast else model.primitives.computed_in(str(value or "fp32"))
    doubt = model.doubt + abs(1 - times) * _unsure(model)
    return replace(after, moments=moments, loss=_loss(model, times), primitives=primitives, doubt=doubt)


def reduce_dtype(model: MemoryModel, value: Value) -> MemoryModel:
    """Buffers of reduce-scatters in another type; None: in that of the gathered parameters."""
    sharding = sharding_of(model)
    return regathered(model, replace(sharding, reduced_bytes=None if value is None else WIDTH[str(value)]))


def autocast(model: MemoryModel, value: Value) -> MemoryModel:
    """Matrix products save 16-bit inputs and copies of their weights, which are kept until their backward pass."""
    if (value != "off") == model.autocast:
        return model
    if value == "off":
        raise Missing("the memory model covers turning autocast on, not off")

    def of(moment: Moment) -> Moment:
        narrow = _computed_in(model, moment, _AUTOCAST)
        return replace(narrow, activations=narrow.activations + copies_of_weights(model, moment))

    unsure = model.largest_parameter / 2 + OF_DTYPE * max(moment.activations for moment in model.moments) + model.loss
    primitives = model.primitives.computed_in(str(value))
    return replace(model, autocast=True, moments=model.each(of), primitives=primitives, doubt=model.doubt + unsure)


def copies_of_weights(model: MemoryModel, moment: Moment) -> float:
    """Bytes of the 16-bit copies of weights that autocast saves until their backward pass: of layers that have run."""
    if moment.phase == "optimizer":
        return 0.0
    most = max(each.activations for each in model.moments)
    ran = min(1.0, moment.activations / most) if moment.phase == "forward" and most else 1.0
    return model.trained / 2 * ran * (1 - moment.passed_share)


def regathered(model: MemoryModel, split: Sharding) -> MemoryModel:
    """Gathered units and buffers of another size: what the recorded moments hold changes as the formulas do."""
    before = sharding_of(model)
    whole = (split.root + sum(split.units)) / ((before.root + sum(before.units)) or 1.0)

    def of(moment: Moment) -> Moment:
        formula = before.held(moment)
        times = split.held(moment) / formula if formula else whole
        return moment.scaled(sharding=times, unseen=times)

    return replace(model, sharding=split, split=split, moments=model.each(of))


def _computed_in(model: MemoryModel, moment: Moment, times: float) -> Moment:
    """The moment with its activations and temporaries in another type, but those of the loss.

    A loss is usually computed in 32 bits; whether the head's output is copied for that is not known. Outputs of the
    model that the script keeps are in the type that the model computes in.
    """
    of_loss = model.loss if moment.phase == "backward" and not moment.passed_share else 0.0
    loss = min(moment.activations, max(0.0, of_loss - model.kept))
    temporaries = min(moment.temporaries, of_loss)
    return replace(
        moment,
        activations=times * (moment.activations - loss) + loss,
        temporaries=times * (moment.temporaries - temporaries) + temporaries,
    )


def _loss(model: MemoryModel, times: float) -> float:
    """What the head and the loss save then: outputs that the script keeps are in the other type."""
    return model.loss - (1 - times) * min(model.loss, model.kept)


def _unsure(model: MemoryModel) -> float:
    """What may stay as wide: the loss, a share of activations."""
    return model.loss + OF_DTYPE * max(moment.activations for moment in model.moments)
