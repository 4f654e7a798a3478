"""Probe: watches a PyTorch program that knows nothing of Samestep, and fills `samestep.observations`.

    python -m samestep.probe FOLDER [--steps K] [--most-mb M] [--experiment FILE] SCRIPT [ARGS]
    torchrun --nproc-per-node 2 -m samestep.probe FOLDER train.py --epochs 1

    __main__, run      watches a program from first to last; no torch until the program loads it
    program            how Python runs a script or module, and shows what it raised
    arrival            tells when torch has been loaded
    installation       puts the observers and changes in place, and takes them away
    watch, clock       what observers share: the step, how much of it is written, where the time goes
    summaries          tensors and settings in a few numbers or texts
    generators         the random number generators, looked at, put back or seeded
    callers, naming    the lines of the program, and the names of its tensors and modules
    replacing          thin wrappers around public functions
    origins, loaders, draws, loader_rows, fetches, adapters
                       data: who made a loader, what it draws, fetches and hands out
    modules, describing, statistics, criteria, backwards, gradients, states, optimizers, schedules,
    collectives        models: one observer for each thing that is watched
    said               lines that the program writes
    changes            what an experiment changes in a run
    cheap, cheap_…     what is watched all through a long run, in place of all the above: `--every K`
    timing, timing_…   how long steps take, in place of all the above: `--time`

The program must not notice that it is watched: nothing is printed, no random number is drawn, no value or
exception changed, and what fails within an observer is written down and forgotten. Only an experiment, which
somebody asked for, changes what the program does. Nothing here judges.
"""
