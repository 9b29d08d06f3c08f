"""States in slots, and gates that write what they forget: HGRN, HGRN2, GSA. Axes: B T H D."""

MIXERS = ()
