"""Facts that were inferred from a trace that dptune did not record."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_serializer, field_validator

from dptune.measured.figure import Model
from dptune.runfile import json_files
from dptune.runfile.facts import Facts

# pydantic would build validators of all that Facts hold, for each model that holds them: a tenth of a report's imports.
if TYPE_CHECKING:
    KnownFacts = Facts
else:
    KnownFacts = Any


class Trait(Model):
    """Something a trace shows of how the model runs that no recording holds as a fact."""

    name: str = Field(description="what the trait is about, for example attention or TF32")
    value: str = Field(description="what the trace shows of it")
    confidence: Literal["low", "medium", "high"] = Field(description="confidence in the value")


class InferredBatch(Model):
    """Samples that a rank takes in a forward and backward pass."""

    samples: int = Field(gt=0, description="samples of one rank and one backward pass")
    length: int | None = Field(None, description="tokens of each sample, where it is a sequence of tokens")
    confidence: Literal["low", "medium", "high"] = Field(
        description="confidence in the batch size: medium where several sources agree, else low"
    )
    sources: list[str] = Field(description="events of the trace that show the batch size")


class InferredBuckets(Model):
    """DDP's buckets, from the grids of the kernels that copy gradients into them; in the order they are reduced."""

    gradients: list[int] = Field(description="number of gradients in each bucket")
    low_bytes: list[int] = Field(description="fewest bytes of each bucket by its kernels' grids")
    high_bytes: list[int] = Field(description="most bytes of each bucket by its kernels' grids")
    dtypes: list[str] = Field(description="element types of the gradients as they are copied")
    confidence: Literal["low", "medium", "high"] = Field(
        description="confidence in the buckets; medium: two or more backward passes agree"
    )


class InferredFacts(Model):
    """Facts of the lowest rank, as a recording would have them, and the confidence in each."""

    facts: KnownFacts = Field(
        description="the facts, by the names of rank-NNNNN.facts.json; only those that were inferred"
    )
    confidence: dict[str, Literal["low", "medium", "high"]] = Field(
        description="confidence by fact, or by field of its records (ddp.bucket_sizes); facts not listed are not "
        "known. Of a list with a record: the confidence that there is at least one, as several look like one"
    )
    batch: InferredBatch | None = Field(None, description="the batch size; None where the trace does not show it")
    buckets: InferredBuckets | None = Field(
        None, description="DDP's buckets where the trace lacks the sizes of collectives; None where it has them"
    )
    recomputed_share: float = Field(
        0.0,
        description="operators of the forward pass that the backward pass runs again / traced step; on a GPU their "
        "kernels; 0 without activation checkpointing",
    )
    dropouts_off: float = Field(
        0.0,
        description="calls of dropout in a step, where all drop nothing, p is above 0 and gradients of trained layers "
        "flow through them: evaluation mode; 0 otherwise",
    )
    traits: list[Trait] = Field(default_factory=list, description="what else the trace shows")

    @field_validator("facts")
    @classmethod
    def _as_read(cls, facts: Any) -> Facts:
        return facts if isinstance(facts, Facts) else json_files.built(Facts, facts)

    @field_serializer("facts")
    def _only_known(self, facts: Facts) -> dict[str, Any]:
        known = asdict(facts)
        return {"rank": facts.rank, **{name: known[name] for name in known if name in self.confidence}}
