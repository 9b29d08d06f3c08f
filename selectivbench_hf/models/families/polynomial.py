"""Linear attention whose weights are polynomials of queries and keys: Based and ReBased. Axes: B T H D."""

from ..knobs import check_knobs
from ..mixer import Mixer, fla_layer

BASED = "selectivbench_hf.models.layers.based:Based"
REBASED = "selectivbench_hf.models.layers.based:ReBased"
MOST_KEYS = 128  # key channels of a head in fla's kernels


def _sizes(hidden_size, num_heads, layer_idx, state_size) -> dict:
    """What both layers are built with. The state has a row for each product of two key channels."""
    check_knobs(state_size=state_size)
    if hidden_size % num_heads:
        raise ValueError(f"it must be a multiple of num_heads ({num_heads})")
    if state_size > MOST_KEYS:
        raise ValueError(f"state_size is {state_size}; fla's kernels take up to {MOST_KEYS} key channels in a head")
    return {
        "hidden_size": hidden_size,
        "num_heads": num_heads,
        "num_key_value_heads": num_heads,
        "layer_idx": layer_idx,
        "feature_dim": state_size,
    }


def based(hidden_size, num_heads, layer_idx, state_size=16, **kwargs):
    """Based's linear attention: exp(q k) as its Taylor series up to the square, with 16 key channels in a head."""
    return fla_layer(BASED)(**_sizes(hidden_size, num_heads, layer_idx, state_size), **kwargs)


def rebased(hidden_size, num_heads, layer_idx, state_size=16, **kwargs):
    """ReBased: squares of normalised and trained queries and keys, 16 channels in a head."""
    return fla_layer(REBASED)(**_sizes(hidden_size, num_heads, layer_idx, state_size), **kwargs)


def _state(rows_below_the_square):
    """The layer -> numbers of its state: features of the keys times values and one sum of weights."""

    def numbers(layer):
        keys = layer.feature_dim
        rows = keys * (keys + 1) // 2 + rows_below_the_square(keys)
        return layer.num_heads * rows * (layer.head_dim + 1)

    return numbers


MIXERS = (
    Mixer(
        "based",
        based,
        "lrm",
        BASED,
        reserved=("feature_dim", "num_key_value_heads", "causal", "eps"),  # nothing reads the last
        knobs=("state_size",),
        decay="none",
        write="additive",
        mixing="none",
        paper="Arora et al. 2024, arXiv:2402.18668",
        state=_state(lambda keys: 1 + keys),
    ),
    Mixer(
        "rebased",
        rebased,
        "lrm",
        REBASED,
        reserved=("feature_dim", "num_key_value_heads", "causal", "l_max"),  # nothing reads the last
        knobs=("state_size",),
        decay="none",
        write="additive",
        mixing="none",
        paper="Aksenov et al. 2024, arXiv:2402.10644",
        state=_state(lambda keys: 0),
    ),
)
