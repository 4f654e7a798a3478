"""Probe: watches a PyTorch program that knows nothing of Samestep, and fills `samestep.observations`.

    python -m samestep.probe FOLDER [--steps K] [--most-mb M] SCRIPT [ARGS]
    torchrun --nproc-per-node 2 -m samestep.probe FOLDER train.py --epochs 1

    __main__, run      watches a program from first to last; no torch until the program loads it
    program            how Python runs a script or module, and shows what it raised
    arrival            tells when torch has been loaded
    installation       puts the observers in place, and takes them away
    watch, clock       what observers share: the step, how much of it is written, where the time goes
    summaries          tensors, generators and settings in a few numbers or texts
    replacing          thin wrappers around public functions
    loaders, draws, modules, naming, gradients, states, backwards, optimizers, schedules, collectives
                       one observer for each thing that is watched, and how things are named

The program must not notice: nothing is printed, no random number is drawn, no value or exception changed,
and what fails within an observer is written down and forgotten. Nothing here judges.
"""
