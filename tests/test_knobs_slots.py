"""The knobs of HGRN, HGRN2, gated slot attention, ABC, RWKV-6, Based and ReBased: each changes what it says and nothing else."""

import importlib

import pytest
import torch
from models_helper import WIDTH, config, ids, model
from torch import nn

pytest.importorskip("triton")
pytest.importorskip("fla", reason="flash-linear-attention is not installed")

from selectivbench_hf import kernels, models
from selectivbench_hf.errors import InputError
from selectivbench_hf.models.cache import DecodingCache
from selectivbench_hf.models.mixers import MIXERS, build_mixer

MINE = ("hgrn", "hgrn2", "gsa", "rwkv6")  # with a decay to turn
SLOTS = MINE[:3]
FLAS = {
    "hgrn": ("hgrn:HGRNAttention", {}),
    "hgrn2": ("hgrn2:HGRN2Attention", {"num_heads": 4, "expand_ratio": None}),
    "gsa": ("gsa:GatedSlotAttention", {"num_heads": 4}),
    "rwkv6": ("rwkv6:RWKV6Attention", {"num_heads": 4}),
    "abc": ("abc:ABCAttention", {"num_heads": 4}),
}
ONE = 1.2784645427610738  # silu of it is 1


@pytest.fixture(autouse=True)
def _enabled():
    kernels.enable()


def layer(mixer, index=0, layers=1, **kwargs):
    """A layer as it is built, from a fixed seed."""
    torch.manual_seed(0)
    return build_mixer(mixer, WIDTH, 4, index, kwargs, config(mixer, num_hidden_layers=layers)).eval()


def moved(built):
    """The layer with every parameter off its starting value, by a draw that depends on its name only."""
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            generator = torch.Generator().manual_seed(sum(map(ord, name)))
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
    return built


def shapes(built):
    """Names and shapes of the parameters."""
    return {name: tuple(p.shape) for name, p in built.named_parameters()}


def run(built, x, **kwargs):
    """The output (B, T, D)."""
    with torch.no_grad():
        return built(x, **kwargs)[0]


def decay_at(built, x, shared=None):
    """What the step x (B, 1, D), after zeros, leaves of a state: the difference between two states, after it over before it."""
    more = {"shared": shared} if getattr(built, "takes_shared", False) else {}
    after, before = [], []
    for scale in (1.0, 0.0):
        cache = DecodingCache()
        index = built.layer_idx
        for earlier in range(index):
            cache.update(earlier, recurrent_state=torch.zeros(1))
        run(built, torch.zeros(len(x), 6, WIDTH), past_key_values=cache, use_cache=True, **more)
        state = cache[index]["recurrent_state"]
        parts = state if isinstance(state, list | tuple) else [state]
        generator = torch.Generator().manual_seed(1)
        parts = [scale * (1 + torch.rand(part.shape, generator=generator)) for part in parts]
        cache[index]["recurrent_state"] = tuple(parts) if len(parts) > 1 else parts[0]
        before.append(parts[-1])
        run(built, x, past_key_values=cache, use_cache=True, **more)
        state = cache[index]["recurrent_state"]
        after.append(state[-1] if isinstance(state, list | tuple) else state)
    return (after[0] - after[1]) / before[0]


def inputs(batch=3, steps=1, seed=2):
    return torch.randn(batch, steps, WIDTH, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("mixer", FLAS)
def test_without_knobs_it_is_flas_layer(mixer):
    """Parameters, their values and the outputs; with several layers the first holds the lower bounds besides."""
    where, kwargs = FLAS[mixer]
    module, _, name = where.partition(":")
    torch.manual_seed(0)
    theirs = getattr(importlib.import_module(f"fla.layers.{module}"), name)(hidden_size=WIDTH, layer_idx=0, **kwargs)
    ours = layer(mixer)
    assert shapes(ours) == shapes(theirs)
    assert all(torch.equal(p, theirs.state_dict()[name]) for name, p in ours.named_parameters())
    for steps in (40, 97):
        x = inputs(steps=steps)
        assert torch.allclose(run(moved(ours), x), run(moved(theirs.eval()), x), atol=1e-6)
    extra = shapes(layer(mixer, layers=2)).keys() - shapes(theirs).keys()
    assert extra == ({"lower_bounds"} if mixer in ("hgrn", "hgrn2") else set())


@pytest.mark.parametrize("conv", [False, True])
@pytest.mark.parametrize("initial_decay", [0.3, 0.9, 0.999])
@pytest.mark.parametrize("mixer", MINE)
def test_initial_decay(mixer, initial_decay, conv):
    """Measured on the state, for learned and fixed decays; no other parameter has another value."""
    more = {"use_short_conv": True} if conv and mixer != "rwkv6" else {}
    plain = layer(mixer, **more).state_dict()
    for decay in ("learned", "fixed"):
        made = layer(mixer, decay=decay, initial_decay=initial_decay, **more)
        got = decay_at(made, torch.zeros(1, 1, WIDTH))
        assert torch.allclose(got, torch.tensor(initial_decay), atol=1e-5), decay
        changed = {n for n, p in made.named_parameters() if n not in plain or not torch.equal(p, plain[n])}
        if mixer == "rwkv6":
            wanted = "w_proj.linear.lora.2.bias" if decay == "learned" else "w_proj.values"
        elif decay == "fixed":
            wanted = "f_constant.values"
        else:
            wanted = "f_conv1d.bias" if conv and mixer != "gsa" else "f_proj.bias"
        assert changed == {wanted}


@pytest.mark.parametrize("mixer", MINE)
def test_decay(mixer):
    """Learned: another one for each input. Fixed: one for all, trained, where the learned one starts. None: nothing is forgotten."""
    x = inputs()
    learned, fixed, none = (moved(layer(mixer, decay=decay)) for decay in ("learned", "fixed", "none"))
    got = decay_at(learned, x)
    assert (got[0] - got[1]).abs().max() > 1e-3
    got = decay_at(fixed, x)
    assert torch.allclose(got[0], got[1], atol=1e-5) and torch.allclose(got[0], got[2], atol=1e-5)
    assert (got < 1).all() and got.std() > 1e-3  # one a channel
    assert torch.allclose(decay_at(none, x), torch.ones(()), atol=1e-6)
    start = decay_at(layer(mixer), torch.zeros(1, 1, WIDTH))
    assert torch.allclose(decay_at(layer(mixer, decay="fixed"), x)[:1], start, atol=1e-5)
    gate = "w_proj" if mixer == "rwkv6" else "f_constant"
    lost = {name for name in shapes(learned) if name.startswith("w_proj")}
    assert shapes(learned).keys() - shapes(fixed).keys() == shapes(learned).keys() - shapes(none).keys() == lost
    assert shapes(fixed).keys() - shapes(learned).keys() == {f"{gate}.values"}
    assert not shapes(none).keys() - shapes(learned).keys()
    values = dict(fixed.named_parameters())[f"{gate}.values"]
    assert values._no_weight_decay


@pytest.mark.parametrize("conv", [False, True])
@pytest.mark.parametrize("mixer", SLOTS)
def test_fixed_decays_leave_the_writes_alone(mixer, conv):
    """Where the learned decay is a constant by its weights, a fixed one of the same value gives the same layer, gradients too."""
    learned, fixed = (layer(mixer, decay=decay, use_short_conv=conv) for decay in ("learned", "fixed"))
    for built in (learned, fixed):
        moved(built)
        with torch.no_grad():
            built.f_proj.weight.zero_()
            if built is fixed:
                built.f_constant.values.zero_()
    x = inputs(steps=70)
    assert torch.allclose(run(learned, x), run(fixed, x), atol=1e-6)
    names = [name for name, _ in learned.named_parameters() if not name.startswith("f_")]
    ours, theirs = (
        torch.autograd.grad(built(x)[0].sin().sum(), [dict(built.named_parameters())[name] for name in names])
        for built in (fixed, learned)
    )
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("mixer", MINE)
@pytest.mark.parametrize("decay", ["fixed", "none"])
def test_models_with_other_decays_decode_and_learn(mixer, decay):
    """As the generic tests have it for the defaults: pieces through the cache, prefixes, gradients for all, bfloat16."""
    kwargs = {"decay": decay, **({} if mixer == "rwkv6" else {"use_short_conv": True})}
    net, x = model(mixer, mixer_kwargs=kwargs), ids()
    with torch.no_grad():
        whole = net(input_ids=x).logits
        assert torch.allclose(net(input_ids=x[:, :40]).logits, whole[:, :40], atol=1e-5)
        for pieces in ((1, 96), (65, 32), (3, 1, 1, 92)):
            cache, got = None, []
            for part in x.split(pieces, 1):
                out = net(input_ids=part, cache=cache, use_cache=True)
                cache = out.cache
                got.append(out.logits)
            assert torch.allclose(torch.cat(got, 1), whole, atol=1e-4), pieces
    out = net.train()(input_ids=x, labels=x)
    out.loss.backward()
    assert [n for n, p in net.named_parameters() if p.grad is None or not p.grad.any()] == []
    with torch.autocast("cpu", torch.bfloat16):
        half = net(input_ids=x).logits.float()
    assert (half - whole).norm() / whole.norm() < 0.03


@pytest.mark.parametrize("mixer", ["hgrn", "hgrn2"])
def test_lower_bounds(mixer):
    """Layer i of L starts with decays above i / L, as in fla's models; without the knob all start alike."""
    zero, shared, first = torch.zeros(1, 1, WIDTH), {}, None
    for index in range(3):
        built = layer(mixer, index, layers=3)
        first = first or built
        run(first, zero, shared=shared)
        bound = index / 3
        assert torch.allclose(decay_at(built, zero, shared), torch.tensor(bound + (1 - bound) / 2), atol=1e-5)
        plain = layer(mixer, index, layers=3, use_lower_bound=False)
        assert torch.allclose(decay_at(plain, zero, {}), torch.tensor(0.5), atol=1e-6)
        made = layer(mixer, index, layers=3, initial_decay=0.8)
        assert torch.allclose(decay_at(made, zero, shared), torch.tensor(0.8), atol=1e-5)
        assert (index == 0) == ("lower_bounds" in shapes(built)) and "lower_bounds" not in shapes(plain)
    # as fla's models make them from the parameter
    moved(first)
    run(first, zero, shared=shared)
    shares = first.lower_bounds.softmax(0)
    assert torch.allclose(shared["lower_bounds"], shares.cumsum(0) - shares[0])
    x = inputs(steps=3)
    bounded = run(layer(mixer, 2, layers=3), x, shared=shared)
    where, kwargs = FLAS[mixer]
    module, _, name = where.partition(":")
    torch.manual_seed(0)
    theirs = getattr(importlib.import_module(f"fla.layers.{module}"), name)(hidden_size=WIDTH, layer_idx=2, **kwargs)
    assert torch.equal(bounded, run(theirs.eval(), x, lower_bound=shared["lower_bounds"][2]))


def test_initial_decays_below_the_bound_are_refused():
    with pytest.raises(
        InputError, match=r"initial_decay=0\.3 is not above the lower bound 0\.5 of layer 1; use_lower"
    ):
        model("hgrn", mixer_kwargs={"initial_decay": 0.3})
    model("hgrn", mixer_kwargs={"initial_decay": 0.3, "use_lower_bound": False})


@pytest.mark.parametrize("mixer", [*SLOTS, "abc"])
def test_short_convolution(mixer):
    plain, conv, longer = (
        layer(mixer),
        layer(mixer, use_short_conv=True),
        layer(mixer, use_short_conv=True, conv_size=7),
    )
    extra = shapes(conv).keys() - shapes(plain).keys()
    assert extra and all(name.endswith("conv1d.weight") for name in extra)
    assert {name: shapes(conv)[name] for name in shapes(plain)} == shapes(plain)
    assert shapes(longer) == {n: (*s[:-1], 7) if n in extra else s for n, s in shapes(conv).items()}


@pytest.mark.parametrize(
    ("mixer", "size"), [("hgrn2", 3), ("hgrn2", 40), ("gsa", 3), ("abc", 3), ("rwkv6", 3), ("rwkv6", 16)]
)
@pytest.mark.parametrize("conv", [False, True])
def test_state_size(mixer, size, conv):
    more = {"use_short_conv": True} if conv and mixer != "rwkv6" else {}
    made = layer(mixer, state_size=size, **more)
    wanted = 4 * size * {"gsa": 16, "abc": 4 + 8 + 1}.get(mixer, 8)
    assert models.state_size(config(mixer, mixer_kwargs={"state_size": size, **more})) == 2 * wanted
    assert MIXERS[mixer].state(made) == wanted
    plain = layer(mixer, **more)
    touched = {
        "hgrn2": ("q_proj", "f_proj", "q_conv1d", "f_conv1d"),
        "gsa": ("f_proj",),
        "abc": ("s_proj",),
        "rwkv6": ("bonus", "r_proj", "w_proj.linear.lora.2", "k_proj"),
    }[mixer]
    assert shapes(made).keys() == shapes(plain).keys()
    assert {n for n, s in shapes(made).items() if s != shapes(plain)[n]} == {
        n for n in shapes(plain) if n.startswith(touched)
    }
    assert run(made, inputs(steps=70)).shape == (3, 70, WIDTH)


@pytest.mark.parametrize(("mixer", "rows"), [("based", 1 + 6 + 21), ("rebased", 21)])
def test_state_size_of_polynomials(mixer, rows):
    """6 key channels: as many rows as their products, and below the square those of Taylor's series."""
    made = layer(mixer, state_size=6)
    assert models.state_size(config(mixer, mixer_kwargs={"state_size": 6})) == 2 * 4 * rows * (8 + 1)
    plain = shapes(layer(mixer))
    changed = {name for name, shape in shapes(made).items() if shape != plain[name]}
    assert shapes(made).keys() == plain.keys()
    assert changed == {"q_proj.weight", "k_proj.weight", *(n for n in plain if n.startswith("feature_map"))}
    assert run(made, inputs(steps=70)).shape == (3, 70, WIDTH)


@pytest.mark.parametrize("mixer", ["hgrn", "gsa", "abc", "rwkv6"])
def test_expand(mixer):
    plain, made = layer(mixer), layer(mixer, expand=1.5)
    assert shapes(made).keys() == shapes(plain).keys()
    changed = {n for n, s in shapes(made).items() if s != shapes(plain)[n]}
    assert all(48 in shapes(made)[n] or shapes(made)[n] == (12,) for n in changed)  # 12: values of a head
    assert (
        changed
        == {
            "hgrn": {f"{n}.weight" for n in ("i_proj", "f_proj", "g_proj", "g_norm", "o_proj")},
            "gsa": {f"{n}.weight" for n in ("v_proj", "g_norm", "o_proj")},
            "abc": {f"{n}.weight" for n in ("v_proj", "g_proj", "g_norm", "o_proj")},
            "rwkv6": {"g_norm.bias", *(f"{n}.weight" for n in ("v_proj.linear", "g_proj.linear", "g_norm", "o_proj"))},
        }[mixer]
    )
    assert run(made, inputs(steps=70)).shape == (3, 70, WIDTH)


def test_rotary_positions():
    """Without them, keys and queries say nothing of the order: the two steps before the last may change places."""
    x = inputs(steps=3)
    swapped = x[:, [1, 0, 2]]
    for rope in (True, False):
        made = moved(layer("abc", use_rope=rope))
        assert shapes(made) == shapes(layer("abc"))
        assert torch.allclose(run(made, x)[:, -1], run(made, swapped)[:, -1], atol=1e-5) != rope


class Ones(nn.Module):
    """A gate's projection whose gate is 1."""

    def __init__(self, width):
        super().__init__()
        self.width = width

    def forward(self, x, *mixing):
        """(B, T, D) -> (B, T, width)."""
        return torch.full((*x.shape[:2], self.width), ONE)


@pytest.mark.parametrize("mixer", ["hgrn", "rwkv6", "abc"])
def test_output_gate(mixer):
    """Without the gate, the layer whose gate is 1 everywhere; only the gate's projection is gone."""
    gated, free = moved(layer(mixer)), moved(layer(mixer, use_output_gate=False))
    gone = {"rwkv6": "g_proj.linear.weight"}.get(mixer, "g_proj.weight")
    assert shapes(free) == {name: shape for name, shape in shapes(gated).items() if name != gone}
    free.load_state_dict({name: value for name, value in gated.state_dict().items() if name != gone})
    gated.g_proj = Ones(WIDTH)
    for steps in (1, 40, 97):
        x = inputs(steps=steps)
        assert torch.allclose(run(gated, x), run(free, x), atol=1e-5)


FREE = {"use_output_gate": False, "use_short_conv": True}


@pytest.mark.parametrize(
    ("mixer", "how"),
    [
        ("hgrn", {"use_output_gate": False}),
        ("hgrn", FREE),
        ("abc", FREE),
        ("abc", {"use_norm": False, "use_input_gate": True}),
    ],
)
def test_other_forms_decode(mixer, how):
    net, x = model(mixer, mixer_kwargs=how), ids()
    with torch.no_grad():
        whole, cache, got = net(input_ids=x).logits, None, []
        for part in x.split((1, 64, 1, 31), 1):
            out = net(input_ids=part, cache=cache, use_cache=True)
            cache = out.cache
            got.append(out.logits)
    assert torch.allclose(torch.cat(got, 1), whole, atol=1e-4)


BAD = [
    ("hgrn", 64, {"decay": "fxed"}, "decay is 'fxed'"),
    ("hgrn2", 64, {"initial_decay": 1.0}, "initial_decay is 1.0"),
    ("gsa", 64, {"decay": "none", "initial_decay": 0.5}, "give one of the two"),
    ("rwkv6", 64, {"state_size": 0}, "state_size is 0"),
    ("hgrn", 64, {"conv_size": 1}, "conv_size is 1"),
    (
        "hgrn",
        63,
        {"expand": 0.5},
        r"expand \* hidden_size \(31\.5\) must be a whole number; the nearest that work: 62 or 64",
    ),
    ("hgrn2", 66, {}, r"must be a multiple of num_heads \(4\); the nearest that work: 64 or 68"),
    ("gsa", 66, {}, r"must be a multiple of num_heads \(4\); the nearest that work: 64 or 68"),
    ("gsa", 64, {"num_kv_heads": 3}, r"num_kv_heads \(3\) must divide num_heads \(4\)"),
    (
        "rwkv6",
        68,
        {},
        r"0\.5 \* hidden_size \(34\) must be a multiple of num_heads \(4\); the nearest that work: 64 or 72",
    ),
    ("abc", 24, {}, r"an even number of key channels in a head, not 3; the nearest that work: 16 or 32"),
    ("abc", 64, {"decay": "none"}, "decay"),
    ("based", 66, {}, r"must be a multiple of num_heads \(4\); the nearest that work: 64 or 68"),
    ("rebased", 64, {"state_size": 129}, "state_size is 129; fla's kernels take up to 128"),
    ("based", 64, {"feature_dim": 8}, "feature_dim"),
    ("rwkv6", 66, {"state_size": 8}, r"expand \* hidden_size \(66\) must be a multiple"),
    ("hgrn2", 64, {"expand_ratio": 8}, "expand_ratio"),
    ("gsa", 64, {"use_output_gate": True}, "use_output_gate"),
    ("rwkv6", 64, {"use_short_conv": True}, "use_short_conv"),
]


@pytest.mark.parametrize("case", range(len(BAD)))
def test_what_cannot_be_is_one_sentence(case):
    mixer, width, kwargs, text = BAD[case]
    with pytest.raises(InputError, match=text) as caught:
        models.check_mixer(mixer, width, None, kwargs)
    assert "\n" not in str(caught.value)


def test_gsa_with_fewer_heads_of_keys():
    """Each serves several heads of queries in a row, whatever the decay."""
    for decay in ("learned", "none"):
        grouped, full = layer("gsa", num_kv_heads=2, decay=decay), layer("gsa", decay=decay)
        with torch.no_grad():
            for name in ("k_proj", "v_proj", "f_proj"):
                weight = getattr(grouped, name).weight
                getattr(full, name).weight.copy_(weight.unflatten(0, (2, -1)).repeat_interleave(2, 0).flatten(0, 1))
            for name in ("q_proj", "o_proj"):
                getattr(full, name).weight.copy_(getattr(grouped, name).weight)
        x = inputs(steps=70)
        assert torch.allclose(run(grouped, x), run(full, x), atol=1e-6)


FRESH = """
import torch
from selectivbench_hf.models import SelectivBenchConfig, SelectivBenchForStateClassification
for mixer in ("hgrn", "hgrn2", "gsa", "rwkv6", "abc"):
    how = {} if mixer == "abc" else {"decay": "fixed"}
    config = SelectivBenchConfig(mixer=mixer, hidden_size=32, num_hidden_layers=1, num_symbols=3, num_states=3, mixer_kwargs=how)
    net = SelectivBenchForStateClassification(config)
    for steps in (3, 70):
        x = torch.zeros(1, steps, dtype=torch.long)
        net(input_ids=x, labels=x).loss.backward()
print("all ran")
"""


def test_in_a_process_where_no_kernels_were_enabled_before(python):
    """Our layers import fla's functions before the kernels are put in their places."""
    done = python("-c", FRESH)
    assert done.stdout.strip() == "all ran", done.stderr
