"""How far apart two runs may be for rounding alone: derived from number formats and lengths of sums, and
measured where a training blows rounding up.

Summing n numbers in another order changes the sum by at most γ(n) = n·u / (1 − n·u) of the sum of their
sizes, u the unit roundoff (Higham, Accuracy and Stability of Numerical Algorithms, ch. 4). Each step adds
such an error to the weights, so that step k may have k of them. Terms that cancel and activations near a kink
make more of it, and how much more depends on the model: it is measured with a run of the reference whose
examples come in another order within each batch, and which therefore differs by rounding only.
"""

UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
DRAWS = 16.0
"""One other order is one draw of what rounding does, and another draw may be larger. Differences by causes
that are looked for are thousands of times as large as rounding, so that there is room for a wide factor."""


def unit_roundoff(dtype: str) -> float:
    """Half the distance from 1 to the next number of this kind; formats of eight bits are the coarsest."""
    return UNIT_ROUNDOFF.get(dtype, 2.0**-4 if "float8" in dtype else 2.0**-24)


def gamma(terms: int, unit: float) -> float:
    """The relative error of a sum of so many terms; as much as the sum itself where it means nothing."""
    n = max(terms, 2) * unit
    return n / (1 - n) if n < 0.5 else 1.0
