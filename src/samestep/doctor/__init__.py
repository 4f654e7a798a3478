"""Doctor: whether these machines are fit for ranks that exchange, found out before a training does.

facts        what one machine has: interfaces, versions, cores, limits, shared memory
wire, link   messages between machines; how fast, how late and how far off in time another is
rollcall     all processes that a launcher started come to the first, or are missed by name
hands        what the first asks the others to do
ranks        the processes that try the exchange itself, `exchange`, which alone knows torch
examination  all of it in order, on the first
diagnosis    what came of it
checks       facts and figures → findings; pure
"""
