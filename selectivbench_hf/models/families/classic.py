"""The classics, which need no fla: S4D, GRU and LSTM. Axes: B T H D."""

MIXERS = ()
