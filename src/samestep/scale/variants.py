"""Variants: what can be run for a cell, and which of those runs its gap is made of.

A cell is a number of GPUs and a global batch. It is compared with a cell of one GPU: of the same batch, or,
if the batch grows with the GPUs (weak scaling), of the batch that each GPU has. All that follows is one rule
for both. Knows nothing of processes, clocks or rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from samestep.errors import ConfigError, listed

Kind = Literal["full", "local-norms", "silent", "cached"]
Role = Literal["full", "local-norms", "silent", "cached", "alone", "alone-full", "one"]


@dataclass(frozen=True, kw_only=True, order=True)
class Cell:
    """A number of GPUs and the global batch that they share."""

    gpus: int
    batch_size: int

    @property
    def batch_per_gpu(self) -> float:
        """Examples of a step on each GPU, on average."""
        return self.batch_size / self.gpus

    @property
    def largest_share(self) -> int:
        """Examples of a step on the GPU that has most: the others wait for it."""
        return -(-self.batch_size // self.gpus)

    def __str__(self) -> str:
        return f"{self.gpus} GPU{'s' * (self.gpus != 1)}, batch {self.batch_size}"


@dataclass(frozen=True, kw_only=True, order=True)
class Variant:
    """One thing to run: a cell, as the program is (`full`) or with less and less of what ranks share.

    `local-norms` takes the synchronisation of norm layers out, `silent` every exchange, and `cached` the
    fetching of examples as well. Runs of one rank have nothing to exchange.
    """

    gpus: int
    batch_size: int
    kind: Kind

    @property
    def cell(self) -> Cell:
        return Cell(gpus=self.gpus, batch_size=self.batch_size)

    @property
    def are_norms_local(self) -> bool:
        return self.gpus > 1 and self.kind != "full"

    @property
    def is_exchange_off(self) -> bool:
        return self.gpus > 1 and self.kind in ("silent", "cached")

    @property
    def is_data_cached(self) -> bool:
        return self.kind == "cached"

    @property
    def name(self) -> str:
        """Good for a folder: "full-2x32" is 2 GPUs and a global batch of 32."""
        return f"{self.kind}-{self.gpus}x{self.batch_size}"

    def __str__(self) -> str:
        return f"{self.kind} ({self.cell})"


@dataclass(frozen=True, kw_only=True, order=True)
class Comparison:
    """A cell, and the cell of one GPU that its speedup is told against."""

    cell: Cell
    reference: Cell

    @property
    def ratio(self) -> Fraction:
        """Part of the reference's batch that one GPU of the cell has: 1/N, or 1 if the batch grows with N."""
        return Fraction(self.cell.batch_size, self.cell.gpus * self.reference.batch_size)

    def roles(self, *, has_norms: bool) -> dict[Role, Variant]:
        """What has to be run to tell the cell's gap; `has_norms` if the program synchronises norm layers."""
        one = {
            "one": Variant(gpus=1, batch_size=self.reference.batch_size, kind="full"),
            "alone-full": Variant(gpus=1, batch_size=self.reference.batch_size, kind="cached"),
        }
        if self.cell.gpus == 1:
            return {"full": one["one"], "one": one["one"], "alone-full": one["alone-full"]}
        gpus, batch_size = self.cell.gpus, self.cell.batch_size
        found: dict[Role, Variant] = {"full": Variant(gpus=gpus, batch_size=batch_size, kind="full")}
        if has_norms:
            found["local-norms"] = Variant(gpus=gpus, batch_size=batch_size, kind="local-norms")
        return found | {
            "silent": Variant(gpus=gpus, batch_size=batch_size, kind="silent"),
            "cached": Variant(gpus=gpus, batch_size=batch_size, kind="cached"),
            "alone": Variant(gpus=1, batch_size=self.cell.largest_share, kind="cached"),
            "one": one["one"],
            "alone-full": one["alone-full"],
        }


def comparisons(worlds: Sequence[int], batches: Sequence[int], *, is_weak: bool = False) -> list[Comparison]:
    """Every number of GPUs with every batch, in order; one GPU is always among them.

    If the scaling is weak, `batches` are those of one GPU.
    """
    for name, values in (("GPUs", worlds), ("batch sizes", batches)):
        wrong = [str(value) for value in values if value < 1]
        if wrong or not values:
            asked = listed(wrong) or "none"
            raise ConfigError(f"{name}: {asked} asked for, and each must be at least 1; name others.")
    sizes = sorted({1, *worlds})
    found = []
    for batch in sorted(set(batches)):
        for gpus in sizes:
            if not is_weak and batch < gpus:
                raise ConfigError(
                    f"A batch of {batch} was to be shared by {gpus} GPUs, so that some would have no "
                    f"example; ask for a batch of at least {gpus}, or for at most {batch} GPUs."
                )
            cell = Cell(gpus=gpus, batch_size=batch * gpus if is_weak else batch)
            found.append(Comparison(cell=cell, reference=Cell(gpus=1, batch_size=batch)))
    return found
