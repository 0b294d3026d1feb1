"""Functions of the user's script that cost time, and the patterns of operators that are recognized in them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dptune.measured.figure import Figures, Model

CodePhase = Literal["optimizer", "backward", "forward", "input", "loop"]


class CodeSite(Model):
    """Exposed host time of one function of the user, outside of the training computation."""

    name: str = Field(description="the function")
    at: str = Field(description="its file, and its first line where that is known")
    phase: CodePhase = Field(description="`loop`: outside of forward, backward, optimizer and data loader")
    part: bool = Field(description="whether it runs the training loop itself, in which case only `mostly` is counted")
    mostly: str = Field(description="where most of the time is spent: a function, or operators")
    library: str = Field(
        "", description="the package that runs the loop and calls `mostly`; empty if the user's function calls it"
    )
    rank: int = Field(description="the rank where it takes most")
    ranks: list[int] = Field(description="the ranks, of those that were read, where it takes at least half of that")
    cost_ns: int = Field(description="its time in the median step of the detailed window, minus profiler overhead")
    share: float = Field(description="that / the step")
    operator_share: float = Field(0.0, description="the share of its time inside tensor operators")
    runs: float = Field(0.0, description="calls of the function per step; 0 if it runs the training loop itself")
    operator: str | None = Field(None, description="the operator that it calls most often")
    operator_calls: float = Field(0.0, description="its calls per step")
    combined_norms: int = Field(0, description="norms of single tensors that it makes one total norm of; 0 if not seen")
    scales: bool = Field(False, description="whether it scales tensors after it computed a total norm")


class OperatorLoop(Model):
    """A function of the user that calls the same operators many times per call: a Python loop over operators."""

    name: str = Field(description="the function")
    at: str = Field(description="its file, and its first line where that is known")
    phase: CodePhase = Field(description="the phase in which most of its operators are called")
    operator: str = Field(description="the repeated operator that takes the most time")
    repeats: float = Field(description="its calls per call of the function, median")
    crossing: bool = Field(False, description="whether the function runs the training loop itself")
    backward: bool = Field(True, description="whether the backward pass may run the same number of these operators")
    rank: int = Field(description="the rank where it takes most")
    cost_ns: int = Field(description="host time of its repeated operators in the median step, minus profiler overhead")
    share: float = Field(description="that / the step")
    computed_share: float | None = Field(
        None,
        description="upper bound of its share of compute, from input sizes; one batched call still needs it",
    )
    backward_share: float | None = Field(
        None, description="their backward pass / cost_ns, by autograd's sequence numbers; null if the trace lacks them"
    )
    least_computed_ns: int | None = Field(
        None,
        description="lower bound of the compute of all operators in the loop, also of those in functions that it "
        "calls, per step of the detailed window: what each takes beyond 10 us; null on a GPU",
    )
    least_computed_share: float | None = Field(None, description="that / the time of these operators")
    module: str = Field("", description="class of the module that it calls each time, where it calls one")
    alone: bool = Field(True, description="whether each call is for one sample, or for samples of different lengths")
    checks: bool = Field(False, description="whether it tests tensors for NaN or infinity and reads each result")


class FunctionOperators(Model):
    """Operators of a kind that a function of the user calls, with their backward pass."""

    name: str = Field(description="the function")
    at: str = Field(description="its file and first line")
    calls: float = Field(description="its calls per step")
    rank: int = Field(description="the rank where it takes most")
    cost_ns: int = Field(description="time of these operators in a step of the detailed window")
    backward_ns: int = Field(description="time of their backward pass in such a step, by autograd's sequence numbers")
    share: float = Field(description="both / the step")
    least_share: float = Field(0.0, description="the same on the rank where it takes least; 0 where a rank calls none")


class ComputeFunction(FunctionOperators):
    """All operators that a function of the user calls outside of backward passes and the optimizer's step.

    The share is of the step of the detailed window.
    """

    operator: str = Field(description="the operator that takes most of the forward time")
    calls_backward: bool = Field(description="whether it calls the backward pass, as the training loop does")


class Decomposition(FunctionOperators):
    """Matrix decompositions that a function of the user calls, with their backward pass."""

    operator: str = Field(description="the decomposition that takes most, as torch.linalg names it; `calls` are of it")


class LongConvolution(FunctionOperators):
    """Direct convolutions with long kernels that a function of the user calls, with their backward pass."""

    taps: int = Field(description="length of the kernel of the one that takes most, in its longest dimension")
    length: int = Field(description="length of its padded input in this dimension")


class OutputLoss(FunctionOperators):
    """Cross entropies of logits, with the matrix product that computes them in a function of the user.

    `cost_ns` holds the product, the loss and what reads all logits in between; `calls` are those of the loss.
    """

    classes: int = Field(description="columns of the logits")
    rows: float = Field(description="rows of the product per step")


class OneHotProduct(FunctionOperators):
    """Products of one-hot rows with a matrix in a function of the user, with their backward pass.

    `cost_ns` holds the one-hot rows, their casts and the product; `calls` are those of the product.
    """

    classes: int = Field(description="width of the one-hot rows")
    rows: int = Field(description="one-hot rows of the largest product")
    sums: bool = Field(description="whether the rows are transposed, so that the product sums by class")


class FullSort(FunctionOperators):
    """Sorts of long rows that a function of the user calls, with their backward pass."""

    length: int = Field(description="length of the rows of the sort that takes most")
    rows: int = Field(description="how many rows it sorts")
    read: int | None = Field(
        description="how many values of each row the next operators read; null where that is not known"
    )
    inner: bool = Field(False, description="whether others than the first or last of the row are among them")
    quantile: bool = Field(False, description="whether torch.quantile sorts them")


PairKind = Literal["squared", "distance", "absolute", "product", "cosine"]


class BroadcastReduction(FunctionOperators):
    """Values of all pairs that a function of the user writes out by broadcasting and reduces, with their backward pass.

    `cost_ns` holds the first operator, elementwise operators on its result, and the reduction; `calls` are such chains.
    """

    kind: PairKind = Field(
        description="what is computed: sums of squared differences, Euclidean distances, sums of absolute differences, "
        "sums of products, or cosine similarities"
    )
    left: list[int] = Field(description="size in memory of the first operand of the chain that takes most")
    right: list[int] = Field(description="size in memory of the second")
    whole: list[int] = Field(description="size of the tensor that is written out")


class OperatorCost(Model):
    """An operator that a function of the user calls, with its backward pass."""

    name: str = Field(description="the operator")
    calls: float = Field(description="its calls per step")
    size: list[int] = Field(description="size of the largest input of its longest call; empty if the trace lacks sizes")
    share: float = Field(description="its time and that of its backward pass / the step")


class MemoryBoundFunction(FunctionOperators):
    """Operators that a function of the user calls itself in forward passes and losses, and that read and write memory.

    Not counted are layers, matrix products, convolutions, attention, lookups, and what torch has one operator for:
    activations, normalization, pooling, dropout, losses. The share is of the step of the detailed window.
    """

    runs: float = Field(description="runs of the function per step")
    operators: list[OperatorCost] = Field(description="the operators that take most, at most six")
    calls_backward: bool = Field(description="whether it calls the backward pass, as the training loop does")


class SliceGradients(FunctionOperators):
    """Slices that a function of the user takes, each of which fills a gradient of the whole tensor in backward passes.

    `calls` are the slices, `backward_ns` the time of their nodes.
    """

    size: list[int] = Field(description="size of the tensors that are sliced")
    through: str = Field(
        description="the function of torch that the user's function calls and that takes the slices; empty without one"
    )
    saved_share: float = Field(
        description="upper bound of the share that is saved without these slices: the slices and their nodes, or the "
        "whole call of `through` with the nodes that it creates"
    )


class DoubleFunction(FunctionOperators):
    """Operators on float64 tensors of 1,024 elements or more that a function of the user calls."""

    operator: str = Field(description="the operator that takes most of the forward time")


class UpsampledConvolution(FunctionOperators):
    """1x1 convolutions on tensors that were just upsampled, in a function of the user.

    `cost_ns` holds the interpolation and the convolution; `calls` are those of the convolution.
    """

    before: list[int] = Field(description="size of the largest input before it is upsampled")
    after: list[int] = Field(description="the same, after that")
    channels: int = Field(description="output channels of the convolution")
    saved_share: float = Field(
        description="upper bound of the share that the other order saves: of the interpolation the part of the "
        "channels that the convolution drops, of the convolution the part of the pixels that are interpolated"
    )


class EagerAttention(FunctionOperators):
    """Attention that is computed operator by operator: two batched products with a softmax between them.

    `name` and `at` are of the function around the second product, which may be a library's; both are empty in a trace
    without Python's stacks.
    """

    module: str = Field("", description="class of the innermost nn.Module around it; empty without Python's stacks")
    library: str = Field("", description="the installed package that the function is of; empty if it is the script's")
    caller: str = Field("", description="the function of the script that calls the library")
    caller_at: str = Field("", description="its file and first line")
    of_torch: bool = Field(False, description="whether torch's own multi-head attention calls the operators")
    other_share: float = Field(
        description="their time outside the two matrix products, with its backward pass / the step"
    )
    dropout: bool = Field(False, description="whether the attention weights pass through dropout")
    keys: int | None = Field(None, description="length of the softmax dimension; null if the trace lacks sizes")
    head: int | None = Field(None, description="size of one head of the queries; null if the trace lacks sizes")


class OptimizerLoop(Model):
    """The step of an optimizer class of the script that calls operators for each parameter."""

    optimizer: str = Field(description="the class")
    functions: list[str] = Field(description="the functions that call the operators, `name at file:line`, most first")
    operators: dict[str, float] = Field(description="calls per step by operator, without views, most first")
    rank: int = Field(description="the rank where they take most")
    cost_ns: int = Field(description="time of these operators in a step of the detailed window")
    share: float = Field(description="that / the step")


class UncachedGeneration(Model):
    """A module that runs without gradients on a sequence that is longer by one in each call."""

    name: str = Field(description="the function of the script that calls it, directly or through a library")
    at: str = Field(description="its file and first line")
    library: str = Field("", description="the installed package whose function calls the module; empty without one")
    through: str = Field("", description="that function, as the script calls it")
    module: str = Field(description="class of the module")
    calls: float = Field(description="its calls per step, of those with growing inputs")
    shortest: int = Field(description="length of the input in the first of these calls")
    longest: int = Field(description="length of the input in the last of these calls")
    rank: int = Field(description="the rank where it takes most")
    cost_ns: int = Field(description="time of these calls in a step of the detailed window")
    share: float = Field(description="that / the step of the detailed window")
    saved_share: float = Field(
        description="upper bound of the share that a cache saves: the part of the positions that were computed before"
    )


class UserCodeFigures(Figures):
    """Functions of the user that take host time outside of the training computation, from the detailed window."""

    ranks: list[int] = Field(description="the ranks that were read")
    steps: int = Field(description="steps of the detailed window")
    basis: Literal["untraced", "traced"] = Field(description="which steps the shares refer to")
    sites: list[CodeSite] = Field(description="the functions that take most, at most ten")
    loops: list[OperatorLoop] = Field(
        default=[], description="functions with loops over operators, at most ten; includes the training computation"
    )
    decompositions: list[Decomposition] = Field(
        default=[], description="functions that factor or invert matrices; includes the training computation"
    )
    long_convolutions: list[LongConvolution] = Field(
        default=[],
        description="functions with direct convolutions of 512 or more taps; includes the training computation",
    )
    output_losses: list[OutputLoss] = Field(
        default=[], description="cross entropies with the products that make their logits, by number of classes"
    )
    one_hot_products: list[OneHotProduct] = Field(
        default=[], description="functions that multiply one-hot rows with a matrix; includes the training computation"
    )
    full_sorts: list[FullSort] = Field(
        default=[], description="functions that sort rows of 256 or more values; includes the training computation"
    )
    broadcast_reductions: list[BroadcastReduction] = Field(
        default=[],
        description="functions that write out values of all pairs and reduce them; includes the training computation",
    )
    memory_bound: list[MemoryBoundFunction] = Field(
        default=[], description="functions whose own operators in forward passes mostly read and write memory"
    )
    slice_gradients: list[SliceGradients] = Field(
        default=[], description="functions that take 16 or more slices of tensors of one size in a step"
    )
    upsampled_convolutions: list[UpsampledConvolution] = Field(
        default=[], description="functions that upsample tensors before a 1x1 convolution"
    )
    double_functions: list[DoubleFunction] = Field(
        default=[], description="functions that compute on float64 tensors, other than those that decompose matrices"
    )
    clips: bool = Field(False, description="whether a step clips gradients with `torch.nn.utils`")
    packs: bool = Field(False, description="whether a step packs padded sequences, on whose padding no layer computes")
