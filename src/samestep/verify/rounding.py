"""How far apart two runs may be for rounding alone: derived from number formats and lengths of sums, and
measured where a training blows rounding up.

Summing n numbers in another order changes the sum by about √n·u of the sum of their sizes, u the unit
roundoff, since errors go both ways (Higham and Mary, A new approach to probabilistic rounding error analysis,
2019). Each step adds such an error to the weights, so that step k may have k of them. Terms that cancel and
activations near a kink make more of it, and how much more depends on the model: it is measured with a run of
the reference whose examples come in another order within each batch, and which differs by rounding only.
"""

import math

UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
DRAWS = 16.0
"""One other order is one draw of what rounding does, and another draw may be larger. Differences by causes
that are looked for are thousands of times as large as rounding, so that there is room for a wide factor."""

AMPLIFIED = 100.0
"""Before the first update nothing can have made so many times more of rounding: it is something else."""
BLIND = 0.25
"""Where gradients may be off by so much of their size, one that is twice too large can pass: a step in which
rounding leads that far shows nothing."""


def unit_roundoff(dtype: str) -> float:
    """Half the distance from 1 to the next number of this kind; formats of eight bits are the coarsest."""
    return UNIT_ROUNDOFF.get(dtype, 2.0**-4 if "float8" in dtype else 2.0**-24)


def relative_error(terms: int, unit: float) -> float:
    """Of a sum of so many terms of a kind of numbers; kernels add halves up in singles, and then round."""
    single = UNIT_ROUNDOFF["float32"]
    return math.sqrt(max(terms, 2)) * min(unit, single) + (unit if unit > single else 0.0)
