"""What measured cells are worth to somebody who has to ask for GPUs: pure numbers, no torch.

project       measured cells → rows for more GPUs, with intervals that cover what they say
cells         what was measured, checked; reading: from folders and CSV files
laws          the step's time against the world; competition: all of them on the same cells
experience    what the overhead of other jobs was like; calibration: how wide an interval has to be
noise         gradient noise scale: what a larger batch costs in examples, and buys in steps
"""

from samestep.advise.project import project

__all__ = ["project"]
