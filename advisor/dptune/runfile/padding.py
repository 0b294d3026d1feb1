"""How much of a loader's batches is padding."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class PaddingFacts:
    """Padding in the batches that were looked at, of tensors of token ids or masks with a sample in each row.

    `columns` are those of all these batches together, `longest_columns` those that the longest sample of each batch
    needs. `filled_share` is the mean share of the elements that are not padding. `lines` are lines of the script that
    pad, and before each that which computes the length.
    """

    batches: int = 0
    columns: int = 0
    longest_columns: int = 0
    filled_share: float = 0.0
    lines: list[str] = field(default_factory=list)

    @property
    def needless_share(self) -> float:
        """The share of the columns that no sample of their batch reaches."""
        return 1 - self.longest_columns / self.columns if self.columns else 0.0

    @property
    def mean_length_share(self) -> float:
        """The mean length of a sample as a share of the longest sample in its batch."""
        return min(1.0, self.filled_share * self.columns / self.longest_columns) if self.longest_columns else 1.0
