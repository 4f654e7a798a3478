"""Whether N ranks train the same as one, and if not, why: pure judgement on what a probe observed; no torch.

runner       what a run is, and how one is asked for
trace        what was observed in a run, by rank and step
comparison   two runs → where they first differ, and by how much more than rounding explains
causes       one rule a cause, each a function of the same evidence
plan         which runs to make next; the verdict
online, …    the cheap part of the same, all through a long run; tailing reads files that grow
"""
