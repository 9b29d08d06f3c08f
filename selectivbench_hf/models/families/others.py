"""Further layers of fla. Axes: B T H D."""

MIXERS = ()
