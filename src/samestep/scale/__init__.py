"""Whether N ranks are faster than one, and if not, where the speed went: pure judgement on timings; no torch.

variants     what can be run for a cell (a number of GPUs, a global batch)
plan         which runs to make, in which order, and when to stop
timing       rows of a run → the time of each step, without warm-up
facts        rows of a run → what else was true of it
runs         what is kept of a finished run, and the lines that it is kept in
statistics   medians over rounds, and how far to trust them; estimates: those of every variant
cells        the result
gap          from ideal to measured, in bars that add up
fairness     what makes a comparison worth less, or nothing
evidence     what rules look at; causes: one rule a cause
judgement    finished runs → the result
"""
