"""Erasing with a decay per channel: KDA and RWKV-7. Axes: B T H D."""

MIXERS = ()
