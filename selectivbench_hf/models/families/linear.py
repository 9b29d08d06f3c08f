"""Linear attention with no decay or one per head, additive writes. Axes: B T H D."""

MIXERS = ()
