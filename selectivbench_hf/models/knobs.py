"""The knobs that turn one property of a mixer, under one name for all mixers that have it.

Given in `mixer_kwargs` beside the layer's own arguments. A mixer lists those it has in its line of the table; any other is an error.
"""

import math

from ..errors import InputError

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
FLAGS = ("use_short_conv", "use_output_gate", "allow_neg_eigval", "use_rope")
LEAST = {"conv_size": 2, "state_size": 1, "num_householder": 1, "window_size": 1}
DECAYS = ("learned", "fixed", "none")


def check_knobs(decays: tuple[str, ...] = DECAYS, **values) -> None:
    """Raise InputError for a value that its knob cannot have. None stands for "not given". decays: those of this mixer."""
    for name, value in values.items():
        if value is None:
            continue
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if name in FLAGS:
            right, wanted = isinstance(value, bool), "true or false"
        elif name in LEAST:
            right = isinstance(value, int) and not isinstance(value, bool) and value >= LEAST[name]
            wanted = f"a whole number of at least {LEAST[name]}"
        elif name == "decay":
            right, wanted = value in decays, " or ".join(map(repr, decays))
        elif name == "initial_decay":
            right, wanted = number and 0 < value < 1, "a number above 0 and below 1"
        elif name == "expand":
            right, wanted = number and 0 < value < math.inf, "a number above 0"
        else:
            raise TypeError(f"there is no knob {name!r}")
        if not right:
            raise InputError(f"{name} is {value!r}; it must be {wanted}")
    if values.get("decay") == "none" and values.get("initial_decay") is not None:
        raise InputError(
            "initial_decay says how fast a layer forgets, and with decay='none' it forgets nothing: give one of the two"
        )
