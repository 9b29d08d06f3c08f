"""What each mixer is and what it costs: the rows of `selectivbench models` and of docs/models.md.

What is a property of the recurrence (decay, write, mixing, paper) stands in the mixer's line of the table; everything else is read off
the built layer, measured from its real cache, or counted while it trains. Nothing is told that was not looked at: what cannot be built
or counted says so in its row.

Axes: B batch, T time, D channels, V symbols, S states.
"""

import contextlib
import inspect
from collections.abc import Iterable, Iterator

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count
from transformers import initialization

from ..errors import InputError
from .cache import STATE, DecodingCache
from .configuration import SelectivBenchConfig, task_fields
from .mixers import MIXERS, get_mixer
from .modeling import SelectivBenchForStateClassification, parameter_counts, state_size

STEPS = 512  # of the sequence that is counted: what attention costs a step grows with it
GATES = ("g_proj", "g_lora", "og_proj")  # names of what computes an output gate, in fla's layers and ours
UNCOUNTED = {  # what torch's counter has no formula for, by a part of the operation's name
    "fft": "FFTs",
    "triangular": "triangular solves",
    "linalg_inv": "inverses",
}


def rows(
    names: Iterable[str] | None = None, hidden_size: int = 128, num_heads: int | None = None, task=None, **fields
) -> Iterator[dict]:
    """One row a mixer, made as it is asked for (a few tenths of a second each). See `describe`, whose arguments these are."""
    for name in MIXERS if names is None else names:
        yield describe(name, hidden_size, num_heads, task, **fields)


def describe(name: str, hidden_size: int = 128, num_heads: int | None = None, task=None, count: bool = True, **fields):
    """What a mixer is and costs at this width, as a dict.

    name, kind, what, decay, write, mixing, paper, knobs
                                                        as the table of mixers says; None for a mixer from outside
    output_gate, short_conv                             whether the built layer has them
    hidden_size, num_heads                              of what follows
    state_size, state_growth                            numbers of state in one layer after any number of steps, and by how many
                                                        each further step makes it longer; both measured from a real cache
    layer_parameters                                    of one layer (None for a whole stack, which has no layer of its own)
    model_parameters                                    of the whole model of `task` with its blocks, without learned positions
    layer_train_flops, model_train_flops                a step: forward and backward at T = 512
    flops_note                                          what these do not hold; None without `count`
    backend_here                                        what would compute it on this machine
    problem                                             why there is nothing more to tell, or None
    """
    entry = get_mixer(name)
    row = {
        "name": name,
        "kind": KINDS.get(entry.family, entry.family),
        "what": " ".join((entry.build.__doc__ or "").split()),
        **{key: getattr(entry, key) for key in ("decay", "write", "mixing", "paper")},
        "knobs": list(entry.knobs),
        "hidden_size": hidden_size,
        "num_heads": num_heads,
        **dict.fromkeys(MEASURED),
        "backend_here": None,
        "problem": None,
    }
    fields = {"num_states": 1, "num_symbols": 1, **(task_fields(task) if task is not None else {}), **fields}
    try:
        row["backend_here"] = _backend(name)
        config = SelectivBenchConfig(
            mixer=name, hidden_size=hidden_size, num_heads=num_heads, **{"num_hidden_layers": 1, **fields}
        )
        row["num_heads"] = config.num_heads
        with torch.device("meta"), initialization.no_init_weights():
            model = SelectivBenchForStateClassification(config)
        row |= _parts(entry, model, config.mixer_kwargs)
        row["model_parameters"] = parameter_counts(model)["total"]
        row |= _state(entry, config)
        if count:
            row |= _flops(entry, config)
    except (InputError, ImportError, RuntimeError) as error:
        row["problem"] = str(error)
    return row


KINDS = {"attention": "attention", "lrm": "linear recurrent model", "module": "from outside"}
MEASURED = (
    "output_gate",
    "short_conv",
    "state_size",
    "state_growth",
    "layer_parameters",
    "model_parameters",
    "layer_train_flops",
    "model_train_flops",
    "flops_note",
)


def _backend(name: str) -> str:
    from .. import kernels

    return kernels.backend(torch.device("cuda" if torch.cuda.is_available() else "cpu"), name)


def _parts(entry, model, kwargs: dict) -> dict:
    """What a layer consists of: by its knobs where it has them, else by what is found in the built layer."""
    layer = model.backbone if entry.whole else model.backbone[-1].mixer

    def has(knob, found):
        if knob not in entry.knobs:
            return found is not None
        named = inspect.signature(entry.build).parameters.get(knob)
        return bool(kwargs.get(knob, named.default if named else found is not None))

    return {
        "output_gate": has("use_output_gate", output_gate(layer)),
        "short_conv": has("use_short_conv", short_convolution(layer)),
        "layer_parameters": None if entry.whole else sum(p.numel() for p in layer.parameters()),
    }


def output_gate(layer) -> str | None:
    """The name of the module that computes what the layer's output is multiplied with, or None if there is none.

    A Mamba has it beside other things in `in_proj`, S4D in the second half of an `out_proj` that is twice as wide, an LSTM in its cells.
    """
    parts = {name.rpartition(".")[2]: (name, part) for name, part in layer.named_modules()}
    for name in GATES:
        if name in parts:
            return parts[name][0]
    out = parts.get("out_proj", (None, None))[1]
    if "in_proj" in parts and out is not None and hasattr(layer, "ssm_state_size"):
        return parts["in_proj"][0]
    if out is not None and out.out_features == 2 * out.in_features:
        return parts["out_proj"][0]
    return next((name for name, part in parts.values() if isinstance(part, torch.nn.LSTM)), None)


def short_convolution(layer) -> str | None:
    """The name of a short causal convolution of the layer, or None."""
    return next((name for name, part in layer.named_modules() if isinstance(part, torch.nn.Conv1d)), None)


def _state(entry, config) -> dict:
    """Numbers of state in one layer as its cache holds them, after one step and for each further one."""
    one = SelectivBenchConfig(**{**_plain(config), "num_hidden_layers": 1})
    if entry.state is not None:
        with torch.device("meta"), initialization.no_init_weights():
            layer = SelectivBenchForStateClassification(one).backbone[0].mixer
        size, formula = state_size(one), entry.state(layer)
        if size != formula:
            raise RuntimeError(f"the layer's cache holds {size} numbers of state and its formula says {formula}")
        return {"state_size": size, "state_growth": 0}
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.no_grad():
        model = SelectivBenchForStateClassification(one).eval()
        sizes = []
        for steps in (1, 2):
            cache = DecodingCache()
            with contextlib.suppress(InputError):  # a mixer from outside without a cache
                model(input_ids=torch.zeros(1, steps, dtype=torch.long), cache=cache, use_cache=True)
                sizes.append(cache.numbers(STATE))
        if len(sizes) < 2:
            return {}
        growth = sizes[1] - sizes[0]
        return {"state_size": None if growth else sizes[0], "state_growth": growth}


def _plain(config) -> dict:
    """The fields of a configuration, its heads and width as they are."""
    from .configuration import own_fields

    return {name: getattr(config, name) for name in own_fields()}


def _flops(entry, config) -> dict:
    """Floating-point operations of a training step per step of the sequence, in one layer and in the whole model.

    A layer is the difference of a model with two and one with one, so that what only the first layer does (RWKV-7) counts once.
    """
    fields = _plain(config)
    seen = set()
    one, two = (_counted({**fields, "mlp": False, "num_hidden_layers": layers}, seen) for layers in (1, 2))
    layer, mlp = two - one, 0
    if config.has_mlp and not entry.whole:
        mlp = _counted({**fields, "num_hidden_layers": 1}, seen) - one
    missing = sorted({said for part, said in UNCOUNTED.items() for name in seen if part in name})
    notes = [f"without {', '.join(missing)}"] if missing else []
    if not any("bmm" in name or "dot_product" in name for name in seen):
        notes.append("products with weights only; what else the layer does is element-wise")
    return {
        "layer_train_flops": None if entry.whole else layer,
        "model_train_flops": one + (config.num_hidden_layers - 1) * layer + config.num_hidden_layers * mlp,
        "flops_note": "; ".join(notes) or None,
    }


def _counted(fields: dict, seen: set) -> int:
    """Operations per step of a forward and a backward pass of the model over 512 steps; the names of all operations go into `seen`."""
    config = SelectivBenchConfig(
        **{**fields, "max_position_embeddings": max(STEPS, fields["max_position_embeddings"])}
    )
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        model = SelectivBenchForStateClassification(config)
        x = torch.randn(1, STEPS, config.input_channels)
        with FlopCounterMode(display=False, custom_mapping=FORMULAS) as counter, _Names(seen):
            model(input_features=x).logits.sum().backward()
    return round(counter.get_total_flops() / STEPS)


class _Names(TorchDispatchMode):
    """Notes the name of every operation that runs, inside our kernels and in their backward passes too."""

    def __init__(self, names: set):
        super().__init__()
        self.names = names

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.add(function.name())
        return function(*args, **(kwargs or {}))


def _attention(query, key, value, *args, out_shape=None, **kwargs) -> int:
    return sdpa_flop_count(query, key, value)


def _attention_backward(grad, query, key, value, *args, out_shape=None, **kwargs) -> int:
    return sdpa_backward_flop_count(grad, query, key, value)


def _rnn(x, of_input, of_state, *args, out_shape=None, **kwargs) -> int:
    """x (T, B, D) or (B, T, D), and two matrices: one product each a step."""
    steps = x[0] * x[1]
    return 2 * steps * (of_input[0] * of_input[1] + of_state[0] * of_state[1])


def _rnn_backward(x, of_input, of_state, *args, out_shape=None, **kwargs) -> int:
    return 2 * _rnn(x, of_input, of_state)


# what torch's counter counts on CUDA and lacks on the CPU
FORMULAS = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    torch.ops.aten.mkldnn_rnn_layer: _rnn,
    torch.ops.aten.mkldnn_rnn_layer_backward: _rnn_backward,
}
