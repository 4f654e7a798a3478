"""What Samestep costs, measured against the same training written by hand.

Every figure is a ratio or a difference of two programs that ran in the same processes, taking turns in
random order; figures of different runs are never compared. There is no GPU here and no GPU figure is claimed.
"""
