"""``make bench-pipeline``: what backup and restore take of a processor, line by line.

A line is a promise: a function of `Bench` (`subject`) that returns its figure with its parts. Where
they are: `writing`, `appending`, `restoring`, `keeping`, `reading`; `lines` has the table of all of
them. The machine is shared and noisy, so figures are seconds of a processor, or ratios of what was
measured in turn in one run; wall time only stands beside.
"""
