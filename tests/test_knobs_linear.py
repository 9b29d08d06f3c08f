"""The knobs of linear attention, RetNet, LightNet, simple GLA, MesaNet and GLA: each changes what it says and nothing else."""

import pytest
import torch
from models_helper import WIDTH, config, ids, model

from selectivbench_hf import models
from selectivbench_hf.errors import InputError
from selectivbench_hf.models.cache import DecodingCache
from selectivbench_hf.models.mixers import build_mixer, check_mixer

pytest.importorskip("triton")
pytest.importorskip("fla", reason="flash-linear-attention is not installed")

from selectivbench_hf import kernels

GATED = ("gla", "simple_gla", "mesa_net")  # a decay computed from the input
CONVOLVED = ("gla", "retnet", "lightnet", "simple_gla", "mesa_net")
BASE = {"gla": "gk_proj.1.bias", "simple_gla": "gk_proj.bias", "mesa_net": "a_proj.bias"}
GATE = {"gla": "gk_proj", "simple_gla": "gk_proj", "mesa_net": "a_proj"}


@pytest.fixture(autouse=True)
def _enabled():
    kernels.enable()


def layer(mixer, seed=0, heads=4, **knobs):
    """A layer in evaluation mode."""
    torch.manual_seed(seed)
    return build_mixer(mixer, WIDTH, heads, 0, knobs).eval()


def weights(built):
    return dict(built.named_parameters())


def random(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def states(built, *steps):
    """The matrices of the recurrent state after these inputs (1, T, D), keys before values."""
    cache = DecodingCache()
    with torch.no_grad():
        for x in steps:
            built(x, past_key_values=cache, use_cache=True)
    state = cache[0]["recurrent_state"]
    if not isinstance(state, tuple):
        state = (state,)
    v_first = hasattr(built, "gk_proj") or hasattr(built, "expand_ratio")  # GLA, simple GLA, LightNet
    return [s.double().mT if v_first else s.double() for s in state]


def kept(built, x):
    """What the step x (1, 1, D) leaves of the state, for each matrix and key channel (H, K): two states before it, one after each."""
    before = [states(built, random(1, 30, WIDTH, seed=seed)) for seed in (1, 2)]
    after = [states(built, random(1, 30, WIDTH, seed=seed), x) for seed in (1, 2)]
    ratios = []
    for one, two, one_after, two_after in zip(*before, *after, strict=True):
        there = one - two
        ratios.append((((one_after - two_after) * there).sum(-1) / there.square().sum(-1))[0])
    return ratios


def same_but(with_knob, without, removed=(), added=()):
    """Parameters are the same, in name and value, except those that begin with these names."""
    one, two = weights(with_knob), weights(without)
    gone, new = set(two) - set(one), set(one) - set(two)
    assert gone and all(n.startswith(tuple(removed)) for n in gone) if removed else not gone, gone
    assert new and all(n.startswith(tuple(added)) for n in new) if added else not new, new
    for name in set(one) & set(two):
        assert torch.equal(one[name], two[name]), name


# --- layers of ours are fla's layers -----------------------------------------------------------------------------------------------

FLA = {
    "retnet": ("multiscale_retention:MultiScaleRetention", {}),
    "lightnet": ("lightnet:LightNetAttention", {"expand_ratio": WIDTH // 4}),
    "simple_gla": ("simple_gla:SimpleGatedLinearAttention", {}),
    "mesa_net": ("mesa_net:MesaNet", {"head_dim": WIDTH // 4}),
}


@pytest.mark.parametrize("mixer", FLA)
@pytest.mark.parametrize("knobs", [{}, {"use_short_conv": True, "conv_size": 3}])
def test_ours_draw_and_compute_what_flas_do(mixer, knobs):
    import importlib

    where, arguments = FLA[mixer]
    module, _, name = where.partition(":")
    ours = layer(mixer, **knobs)
    torch.manual_seed(0)
    theirs = getattr(importlib.import_module(f"fla.layers.{module}"), name)(
        hidden_size=WIDTH, num_heads=4, layer_idx=0, **arguments, **knobs
    ).eval()
    same_but(ours, theirs)
    for steps in (40, 100):
        x = random(2, steps, WIDTH).requires_grad_()
        results = []
        for built in (ours, theirs):
            out = built(x)[0]
            results.append([out, *torch.autograd.grad(out.cos().sum(), [x, *built.parameters()])])
        for one, two in zip(*results, strict=True):
            assert (one - two).norm() <= 1e-6 * two.norm().clamp_min(1e-2)
    for one, two in zip(states(ours, *x.split((70, 30), 1)), states(theirs, *x.split((70, 30), 1)), strict=True):
        assert (one - two).norm() < 1e-6 * two.norm()


@pytest.mark.parametrize("mixer", ["retnet", "lightnet"])
def test_masks_are_refused_by_name(mixer):
    with pytest.raises(NotImplementedError, match="attention_mask"):
        layer(mixer)(random(1, 9, WIDTH), attention_mask=torch.ones(1, 9))


# --- decay -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mixer", GATED)
def test_fixed_decays_do_not_depend_on_the_input(mixer):
    plain = {"use_short_conv": False}  # so that a step writes the same after any state
    learned, fixed = layer(mixer, **plain), layer(mixer, decay="fixed", **plain)
    same_but(fixed, learned, removed=[GATE[mixer]], added=[GATE[mixer]])
    values = weights(fixed)[f"{GATE[mixer]}.values"]
    assert torch.equal(values, weights(learned)[BASE[mixer]]) and values._no_weight_decay
    zero, some, other = torch.zeros(1, 1, WIDTH), random(1, 1, WIDTH, seed=5), 3 * random(1, 1, WIDTH, seed=6)
    for at_zero, at_some, at_other, learned_zero, learned_some in zip(
        *(kept(fixed, x) for x in (zero, some, other)), *(kept(learned, x) for x in (zero, some)), strict=True
    ):
        assert torch.allclose(at_zero, learned_zero, atol=1e-5)  # the constants are those of the bias
        assert torch.allclose(at_zero, at_some, atol=1e-5) and torch.allclose(at_zero, at_other, atol=1e-5)
        assert (learned_zero - learned_some).abs().max() > 1e-3
        assert at_zero.max() < 1


@pytest.mark.parametrize("mixer", [*GATED, "retnet"])
def test_without_decay_nothing_is_forgotten(mixer):
    built = layer(mixer, decay="none", use_short_conv=False)
    usual = layer(mixer, use_short_conv=False)
    same_but(built, usual, removed=[GATE[mixer]] if mixer in GATE else [])
    for x in (torch.zeros(1, 1, WIDTH), 3 * random(1, 1, WIDTH, seed=6)):
        for ratio in kept(built, x):
            assert torch.allclose(ratio, torch.ones_like(ratio), atol=1e-5)
        for ratio in kept(usual, x):
            assert ratio.max() < 1 - 1e-4


@pytest.mark.parametrize("wanted", [0.05, 0.5, 0.999])
@pytest.mark.parametrize("mixer", [*GATED, "retnet"])
def test_the_first_decay_is_the_one_given(mixer, wanted):
    for decay in ("learned", "fixed") if mixer != "retnet" else ("fixed",):
        built = layer(mixer, decay=decay, initial_decay=wanted, use_short_conv=False)
        for ratio in kept(built, torch.zeros(1, 1, WIDTH)):
            assert torch.allclose(ratio, torch.full_like(ratio, wanted), atol=1e-5)
        usual = layer(mixer, decay=decay, use_short_conv=False)
        changed = {n for n, p in weights(built).items() if not torch.equal(p, weights(usual)[n])}
        assert changed == (
            {BASE[mixer] if decay == "learned" else f"{GATE[mixer]}.values"} if mixer in GATE else set()
        )


def test_retention_decays_as_in_the_paper():
    (ratio,) = kept(layer("retnet", heads=8), random(1, 1, WIDTH, seed=5))
    wanted = 1 - 2.0 ** (-5 - torch.arange(8, dtype=torch.float64))
    assert torch.allclose(ratio, wanted[:, None].expand_as(ratio), atol=1e-5)


@pytest.mark.parametrize("mixer", GATED)
@pytest.mark.parametrize("decay", ["fixed", "none"])
def test_models_without_a_learned_decay_train(mixer, decay):
    net = model(mixer, mixer_kwargs={"decay": decay}).train()
    for steps in (40, 97):
        net.zero_grad()
        net(input_ids=ids(steps=steps), labels=ids(steps=steps)).loss.backward()
        assert all(p.grad is not None and p.grad.any() and p.grad.isfinite().all() for p in net.parameters())
    free = next(g for g in models.parameter_groups(net, 0.1) if g["name"] == "no_decay")["names"]
    values = {n for n in dict(net.named_parameters()) if n.endswith(f"{GATE[mixer]}.values")}
    assert values <= set(free) and len(values) == (2 if decay == "fixed" else 0)


# --- positions ---------------------------------------------------------------------------------------------------------------------


def test_rotary_positions_off():
    """Without positions and decay the order of earlier steps is forgotten; with either it is not."""
    x = random(1, 70, WIDTH)
    swapped = x[:, [*range(69, -1, -1)]].roll(-1, 1)  # another order of all steps but the last
    assert torch.equal(swapped[:, -1], x[:, -1])
    for knobs, same in (
        ({"use_rope": False, "decay": "none"}, True),
        ({"use_rope": True, "decay": "none"}, False),
        ({"use_rope": False, "decay": "fixed"}, False),
    ):
        built = layer("retnet", **knobs)
        same_but(built, layer("retnet"))
        with torch.no_grad():
            difference = (built(x)[0][:, -1] - built(swapped)[0][:, -1]).norm()
        assert (difference < 1e-4) == same, knobs


# --- convolution, gate, widths -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mixer", CONVOLVED)
def test_short_convolution(mixer):
    off, on, wide = (
        layer(mixer, **knobs)
        for knobs in ({"use_short_conv": False}, {"use_short_conv": True}, {"use_short_conv": True, "conv_size": 7})
    )
    convolutions = {n for n in weights(on) if "conv1d" in n}
    assert set(weights(on)) - set(weights(off)) == convolutions
    assert convolutions == {f"{part}_conv1d.weight" for part in ("qk" if mixer == "mesa_net" else "qkv")}
    assert {n: p.shape for n, p in weights(on).items() if "conv1d" not in n} == {
        n: p.shape for n, p in weights(off).items()
    }
    for name in weights(on):
        assert weights(wide)[name].shape[-1] == (7 if name in convolutions else weights(on)[name].shape[-1])
    # what one step does with a state does not depend on the inputs before it
    x, earlier = random(1, 1, WIDTH), (random(1, 5, WIDTH, seed=2), random(1, 5, WIDTH, seed=3))
    for built, local in ((off, True), (on, False)):
        projections = []

        def keep(module, args, out, projections=projections):
            projections.append(out[0] if isinstance(out, tuple) else out)

        hook = getattr(built, "q_conv1d", built.q_proj).register_forward_hook(keep)
        with torch.no_grad():
            for before in earlier:
                built(torch.cat((before, x), 1))
        hook.remove()
        assert torch.allclose(projections[0][:, -1], projections[1][:, -1]) == local


@pytest.mark.parametrize("mixer", CONVOLVED)
def test_output_gate(mixer):
    on, off = (layer(mixer, use_output_gate=value) for value in (True, False))
    only_on = set(weights(on)) - set(weights(off))
    assert any(n.startswith("g_proj") for n in only_on)
    assert all(n.startswith(("g_proj", "g_norm_swish_gate")) for n in only_on)
    assert all("norm" in n for n in set(weights(off)) - set(weights(on)))
    if mixer in ("simple_gla", "lightnet"):  # built as fla builds the gated one: the rest is drawn alike
        assert all(torch.equal(p, weights(on)[n]) for n, p in weights(off).items() if n in weights(on))
    with (
        torch.no_grad()
    ):  # norm of the mixed values, then the output projection: with a gate that is 1, the two are the same
        gates = [p for n, p in weights(on).items() if n.startswith("g_proj")]
        off.load_state_dict({n: p for n, p in weights(on).items() if n in weights(off)}, strict=False)
        x = torch.cat((random(2, 70, WIDTH - 1), torch.ones(2, 70, 1)), -1)
        for gate in gates:
            gate.zero_()
        one = 1.2784645427610738  # silu of it is 1
        if len(gates) == 1:
            gates[0][:, -1] = one
        else:
            gates[0][0, -1], gates[1][:, 0] = 1.0, one
        assert torch.allclose(on(x)[0], off(x)[0], atol=1e-5)


@pytest.mark.parametrize("mixer", ["linear_attention", *CONVOLVED])
def test_state_size(mixer):
    usual, small = (
        layer(mixer, **knobs) for knobs in ({}, {"state_size": 5} if mixer != "retnet" else {"state_size": 6})
    )
    size = 6 if mixer == "retnet" else 5
    assert small.q_proj.out_features == small.k_proj.out_features == 4 * size
    if mixer != "mesa_net":  # whose values are as wide as its keys
        assert small.v_proj.weight.shape == usual.v_proj.weight.shape
        assert small.o_proj.weight.shape == usual.o_proj.weight.shape
    made = config(mixer, mixer_kwargs={"state_size": size})
    values = size if mixer == "mesa_net" else small.o_proj.in_features // 4
    wanted = 4 * size * values * (2 if mixer == "mesa_net" else 1) + (4 * size if mixer == "lightnet" else 0)
    assert models.state_size(made) == 2 * wanted


@pytest.mark.parametrize("mixer", ["linear_attention", "gla", "retnet", "simple_gla"])
def test_expand(mixer):
    usual, wide = layer(mixer), layer(mixer, expand=3)
    assert wide.v_proj.out_features == wide.o_proj.in_features == 3 * WIDTH
    values = ("v_proj", "v_conv1d", "o_proj", "g_proj", "g_norm", "norm")
    for name, parameter in weights(usual).items():
        if not name.startswith(values):
            assert weights(wide)[name].shape == parameter.shape, name


@pytest.mark.parametrize("feature_map", ["elementwise_product", "hedgehog", "t2r", "dpfp", "elu", "relu", "identity"])
@pytest.mark.parametrize("normalised", [False, True])
def test_states_of_feature_maps(feature_map, normalised):
    """The formula is right where a feature map widens the keys, and where their sum is carried."""
    kwargs = {"feature_map": feature_map, "do_feature_map_norm": normalised}
    made = config("linear_attention", mixer_kwargs=kwargs)
    built = build_mixer("linear_attention", WIDTH, 4, 0, kwargs)
    assert models.state_size(made) == 2 * models.MIXERS["linear_attention"].state(built)


# --- what is refused -----------------------------------------------------------------------------------------------------------------

BAD = [
    ("retnet", {"decay": "learned"}, "decay is 'learned'; it must be 'fixed' or 'none'"),
    ("gla", {"decay": "some"}, "decay is 'some'; it must be 'learned' or 'fixed' or 'none'"),
    ("gla", {"initial_decay": 1}, "initial_decay is 1; it must be a number above 0 and below 1"),
    ("mesa_net", {"initial_decay": True}, "initial_decay is True"),
    ("simple_gla", {"decay": "none", "initial_decay": 0.5}, "give one of the two"),
    ("gla", {"initial_decay": 0.01, "clamp_min": -0.5}, "clamp_min -0.5 lets a decay not fall below 0.607"),
    ("gla", {"expand_k": 1.0}, "unknown mixer argument 'expand_k'"),
    ("linear_attention", {"decay": "none"}, "unknown mixer argument 'decay'"),
    ("linear_attention", {"use_output_gate": True}, "unknown mixer argument 'use_output_gate'"),
    ("lightnet", {"decay": "fixed"}, "unknown mixer argument 'decay'"),
    ("mesa_net", {"head_dim": 8}, "unknown mixer argument 'head_dim'"),
    ("mesa_net", {"state_size": 129}, "a head has 129 channels, and fla's kernels take at most 128"),
    ("retnet", {"state_size": 5}, "Rotary dimension must be even"),
    ("simple_gla", {"state_size": 0}, "state_size is 0; it must be a whole number of at least 1"),
    ("simple_gla", {"conv_size": 1}, "conv_size is 1; it must be a whole number of at least 2"),
    ("lightnet", {"use_short_conv": 1}, "use_short_conv is 1; it must be true or false"),
    ("simple_gla", {"expand": -1}, "expand is -1; it must be a number above 0"),
]


@pytest.mark.parametrize(("mixer", "kwargs", "text"), BAD)
def test_wrong_values_are_one_sentence(mixer, kwargs, text):
    with pytest.raises(InputError, match=text.replace("(", r"\(")) as caught:
        check_mixer(mixer, WIDTH, 4, kwargs)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("mixer", "width", "near"),
    [
        ("lightnet", 66, "64 or 68"),
        ("mesa_net", 66, "64 or 68"),
        ("retnet", 66, "64 or 72"),
        ("linear_attention", 66, "64 or 68"),
    ],
)
def test_widths_that_do_not_work(mixer, width, near):
    with pytest.raises(InputError, match=f"hidden_size={width} does not work.*{near}"):
        check_mixer(mixer, width, 4)
