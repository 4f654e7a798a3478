"""Changes: what an `Experiment` changes in a run, one module for each thing.

    seeds        the generators, before the first line of the program runs; does not load torch
    evaluating   modules that are called as if they were in evaluation mode
    dropout      dropout that passes everything on
    norms        layers that keep statistics use and leave those that they have
    examples     generators seeded by the index of the example that is fetched
    lengths      what loaders say of their length
    batch_size   batches of loaders that have a given number of examples
    caching      loaders that hand out their first few batches again and again
    local_norms  layers that take their statistics over one rank's batch only
    exchange     steps in which nothing is exchanged between ranks

Given batches are handed out where draws are observed, by `samestep.probe.draws`. A change acts in processes
that are forked from this one too, such as a loader's workers.
"""
