"""RWKV-6: a decay per channel and a bonus for the current step. Axes: B T H D."""

MIXERS = ()
