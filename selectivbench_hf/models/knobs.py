"""The knobs that turn one property of a mixer, under one name for all mixers that have it.

Given in `mixer_kwargs` beside the layer's own arguments. A mixer lists those it has in its line of the table; any other is an error.
"""

KNOBS = {
    "use_short_conv": "short causal convolution before the recurrence, true or false",
    "conv_size": "taps of the short convolution, a whole number of at least 2",
    "use_output_gate": "gate on the layer's output, true or false",
    "decay": '"learned": as the layer has it; "fixed": constants per head or channel, trained but not a function of the input; '
    '"none": nothing is forgotten by decay',
    "initial_decay": "what a step leaves of the state before any training, for an input of zero: above 0 and below 1",
    "state_size": "key channels of a head (rows of its state), or state channels of a state-space model",
    "expand": "width of all values together / hidden_size",
    "allow_neg_eigval": "whether a write may erase up to twice (beta up to 2: eigenvalues down to -1), true or false",
    "num_householder": "delta-rule writes a step, a whole number of at least 1",
    "use_rope": "rotary positions on queries and keys, true or false",
    "window_size": "how many steps attention sees, the present one included, a whole number of at least 1",
}
