"""Whether N ranks are faster than one, and if not, where the speed went; no torch, no processes.

asked        what the user wants to know → the sweep that tells it; program: the text of what is measured
looks        a short run below the full probe → what must be known before anything is timed
variants     what can be run for a cell (a number of GPUs, a global batch)
plan         which runs to make, in which order, and when to stop
measure      the way through all of it: runs are made by a runner, and kept in a folder

timing       rows of a run → the time of each step, without warm-up
facts        rows of a run → what else was true of it
runs         what is kept of a finished run, and the lines that it is kept in
curves       rows of runs → loss against steps, examples and time; noise: the gradient noise scale of a look

statistics   medians over rounds, and how far to trust them; estimates: those of every variant
cells        the result
gap          from ideal to measured, in bars that add up; epochs: the same of an epoch
fairness     what makes a comparison worth less, or nothing
evidence     what rules look at; causes: one rule a cause
judgement    finished runs → the result
"""
