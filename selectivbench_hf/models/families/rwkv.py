"""RWKV-6 and RWKV-7. Axes: B T H D."""

MIXERS = ()
