"""The classics, which need no fla: S4D, GRU and LSTM. Axes: B T H D. None of them has heads."""

from ..knobs import check_knobs
from ..mixer import Mixer

S4D = "selectivbench_hf.models.layers.s4d:S4D"


def s4d(hidden_size, num_heads, layer_idx, state_size=64, use_output_gate=True, initial_decay=None, **kwargs):
    """S4D-Lin: a linear, time-invariant state-space model with a diagonal complex state in every channel."""
    from ..layers.s4d import S4D

    knobs = {"state_size": state_size, "use_output_gate": use_output_gate, "initial_decay": initial_decay}
    check_knobs(**knobs)
    return S4D(hidden_size, layer_idx=layer_idx, **knobs, **kwargs)


def gru(hidden_size, num_heads, layer_idx, initial_decay=None):
    """torch's GRU."""
    from ..layers.rnn import Recurrent

    check_knobs(initial_decay=initial_decay)
    return Recurrent("GRU", hidden_size, layer_idx, initial_decay)


def lstm(hidden_size, num_heads, layer_idx, initial_decay=None):
    """torch's LSTM."""
    from ..layers.rnn import Recurrent

    check_knobs(initial_decay=initial_decay)
    return Recurrent("LSTM", hidden_size, layer_idx, initial_decay)


MIXERS = (
    Mixer(
        "s4d",
        s4d,
        "classic",
        S4D,
        knobs=("state_size", "use_output_gate", "initial_decay"),
        decay="constant",
        write="additive",
        mixing="none",
        paper="Gu et al. 2022, arXiv:2206.11893",
        state=lambda layer: layer.C.numel(),
    ),
    Mixer(
        "gru",
        gru,
        "classic",
        knobs=("initial_decay",),
        decay="data-dependent vector",
        write="nonlinear",
        mixing="dense",
        paper="Cho et al. 2014, arXiv:1406.1078",
        state=lambda layer: layer.rnn.hidden_size,
    ),
    Mixer(
        "lstm",
        lstm,
        "classic",
        knobs=("initial_decay",),
        decay="data-dependent vector",
        write="nonlinear",
        mixing="dense",
        paper="Hochreiter & Schmidhuber 1997",
        state=lambda layer: 2 * layer.rnn.hidden_size,
    ),
)
