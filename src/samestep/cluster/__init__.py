"""Jobs on a cluster: what is asked for, the files of each engine, and what became of it. Knows no torch.

Samestep schedules nothing itself. `request` says what a job is to run and what it needs; one module an
engine (`slurm`, `htcondor`, `ray`, `local`) turns that into files, hands them over and asks how it stands;
`attempt` is what runs inside of a job; `ledger` writes down what was handed over, and `looking` tells how it
stands.
"""
