"""Which values `mixer_kwargs` may give a layer's own arguments, by the kind of their defaults.

fla's layers take anything: a word where a flag is meant is true, a wrong number fails when the first batch comes, or makes NaN.
"""

import inspect
import math

from ..errors import InputError
from .knobs import FLAGS

ABOVE_ZERO = (
    *("norm_eps", "eps", "layer_norm_epsilon", "gate_logit_normalizer", "expand_k", "conv_init"),
    *("dt_min", "dt_max", "dt_scale", "dt_init_floor"),
)
MAYBE_NUMBERS = ("clamp_min", "clamp_max", "lower_bound", "scale")
PAIRS = ("A_init_range", "dt_limit")
WHOLE = ("n_inner", "num_kv_heads", "num_v_heads")
MODES = ("chunk", "fused_recurrent")  # fla's layers let others through that their kernels do not have
OF_CONVOLUTION = ("conv_size", "conv_init", "conv_bias", "use_conv_bias")
NO_DEFAULT = (*FLAGS, "decay", "conv_size", "expand", "num_householder")  # knobs that None would turn somewhere


def defaults(build, layer=None) -> dict:
    """Default values of the keyword arguments of a mixer's function and of its layer's class; those of the function win."""
    found = {}
    for function in (*(vars(base).get("__init__") for base in reversed(layer.__mro__ if layer else ())), build):
        if inspect.isfunction(function):
            parameters = inspect.signature(function).parameters.values()
            found |= {p.name: p.default for p in parameters if p.default is not p.empty}
    return found


def check_arguments(given: dict, knobs: tuple[str, ...], default: dict) -> None:
    """Raise InputError for a value that an argument cannot have, or that nothing would read. Knobs check their values themselves."""
    for name, value in given.items():
        if name in knobs:
            if value is None and default.get(name, name in NO_DEFAULT or None) is not None:
                raise InputError(f"{name} is None; leave it out for the default")
        elif name in default and value is not default[name]:
            wanted = _wanted(name, value, default[name])
            if wanted:
                raise InputError(f"{name} is {value!r}; it must be {wanted}")
    if not given.get("use_short_conv", default.get("use_short_conv", True)):
        for name in OF_CONVOLUTION:
            if given.get(name, False) is not False:
                raise InputError(
                    f"{name} is {given[name]!r}, and without a short convolution nothing reads it: "
                    f"set use_short_conv to true, or leave {name} out"
                )


def _wanted(name: str, value, default) -> str | None:
    """What the value must be, or None if it is that."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if isinstance(default, bool):
        right, wanted = isinstance(value, bool), "true or false"
    elif name in ABOVE_ZERO:
        right, wanted = number and value > 0, "a number above 0"
    elif name in MAYBE_NUMBERS:
        right, wanted = number or value is None, "a number"
    elif name in PAIRS:
        right = isinstance(value, list | tuple) and len(value) == 2
        right = right and all(isinstance(v, int | float) and not isinstance(v, bool) for v in value)
        right, wanted = right and value[0] <= value[1], "two numbers, the smaller one first"
    elif name == "dt_rank" or name in WHOLE or name.endswith("_dim") or isinstance(default, int):
        right = number and isinstance(value, int) and value >= 1
        wanted = "a whole number of at least 1" + " or 'auto'" * (name == "dt_rank")
    elif name == "mode" and default in MODES:
        right, wanted = value in MODES, " or ".join(map(repr, MODES))
    elif isinstance(default, float):
        right, wanted = number, "a number"
    elif isinstance(default, str) and name != "activation_function":  # which says itself what there is
        right, wanted = isinstance(value, str), "text"
    else:
        return None
    return None if right else wanted
