"""The knobs of KDA, Gated DeltaNet-2 and RWKV-7: each changes what it says and nothing else. And RWKV-7's first values and depth."""

import math
import warnings

import pytest
import torch
from models_helper import WIDTH, ids, model

from selectivbench_hf import kernels, models
from selectivbench_hf.errors import InputError
from selectivbench_hf.kernels import bindings
from selectivbench_hf.models import mixers
from selectivbench_hf.models.cache import DecodingCache

pytest.importorskip("triton")
pytest.importorskip("fla", reason="flash-linear-attention is not installed")

ALL = pytest.mark.parametrize("mixer", ["kda", "gated_delta_net2", "rwkv7"])
DELTA = pytest.mark.parametrize("mixer", ["kda", "gated_delta_net2"])
GATES = {"kda": {"A_log", "dt_bias"}, "gated_delta_net2": {"A_log", "dt_bias"}, "rwkv7": {"w_lora.values"}}
GATE_INPUT = {
    "kda": {"f_proj.0.weight", "f_proj.1.weight"},
    "gated_delta_net2": {"f_proj.0.weight", "f_proj.1.weight"},
    "rwkv7": {"x_w", "w_lora.lora.0.weight", "w_lora.lora.2.weight", "w_lora.lora.2.bias"},
}


@pytest.fixture(autouse=True)
def _enabled():
    kernels.enable()


def layer(mixer, seed=0, width=WIDTH, heads=4, moved=0.0, depth=2, **kwargs):
    """Layer 0, with every parameter moved from its start by normal noise of that size (o_proj of RWKV-7 starts at zero)."""
    config = models.SelectivBenchConfig(mixer=mixer, hidden_size=width, num_hidden_layers=depth)
    torch.manual_seed(seed)
    built = mixers.build_mixer(mixer, width, heads, 0, kwargs, config).eval()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(torch.randn_like(parameter) * moved)
    return built


def parameters(module):
    """By name."""
    return dict(module.named_parameters())


def run(module, x, cache=None):
    """The output, (B, T, D)."""
    with torch.no_grad():
        return module(x, past_key_values=cache, use_cache=cache is not None)[0]


@pytest.fixture
def seen(monkeypatch):
    """What the recurrences are called with: a list of dicts g, beta (of the delta rules: how much is erased)."""
    calls = []

    def spy(module, name, **positions):
        real = getattr(module, name)

        def record(*args, **kwargs):
            calls.append({key: args[index] for key, index in positions.items()})
            return real(*args, **kwargs)

        monkeypatch.setattr(module, name, record)

    spy(bindings.kda, "kda", g=3, beta=4)
    spy(bindings.kda, "gdn2", g=3, beta=4)
    spy(bindings.rwkv7, "dplr", g=5)
    return calls


def same_but(before, after, removed=(), added=(), changed=()):
    """The parameters of two layers from one seed are equal but for those named."""
    old, new = parameters(before), parameters(after)
    assert old.keys() - new.keys() == set(removed) and new.keys() - old.keys() == set(added)
    different = {n for n in old.keys() & new.keys() if not torch.equal(old[n], new[n])}
    assert different == set(changed)


@ALL
def test_learned_decays_depend_on_the_input(mixer, seen):
    run(layer(mixer, moved=0.3), torch.randn(2, 70, WIDTH))
    assert (seen[0]["g"] < 0).all() and seen[0]["g"].std((0, 1)).min() > 0


@ALL
def test_fixed_decays_do_not(mixer, seen):
    made = layer(mixer, decay="fixed")
    same_but(layer(mixer), made, removed=GATE_INPUT[mixer], added=GATES[mixer] - parameters(layer(mixer)).keys())
    run(layer(mixer), torch.zeros(2, 70, WIDTH))
    run(made, torch.randn(2, 70, WIDTH))
    learned, fixed = (call["g"] for call in seen)
    assert torch.allclose(fixed, learned)  # what the learned decays are for an input of zero
    trained = layer(mixer, moved=0.3, decay="fixed")
    trained(torch.randn(2, 70, WIDTH))[0].cos().sum().backward()
    assert all(parameters(trained)[name].grad.any() for name in GATES[mixer])
    assert all(parameters(trained)[name]._no_weight_decay for name in GATES[mixer])


@ALL
def test_without_decay_nothing_is_forgotten(mixer, seen):
    made = layer(mixer, decay="none")
    gone = GATE_INPUT[mixer] | (GATES[mixer] & parameters(layer(mixer)).keys())
    same_but(layer(mixer), made, removed=gone)
    for dtype in (torch.float32, torch.bfloat16):
        run(made.to(dtype), torch.randn(2, 70, WIDTH, dtype=dtype))
    assert all((call["g"] == 0).all() for call in seen) and len(seen) == 2


def measured_decay(made):
    """What an input of zero, seen for the second time, leaves of the state."""
    cache = DecodingCache()
    run(made, torch.randn(2, 5, WIDTH), cache)
    run(made, torch.zeros(2, 1, WIDTH), cache)
    before = cache[0]["recurrent_state"].clone()
    run(made, torch.zeros(2, 1, WIDTH), cache)
    return cache[0]["recurrent_state"] / before


@ALL
@pytest.mark.parametrize("decay", ["learned", "fixed"])
@pytest.mark.parametrize("value", [0.6, 0.99])
def test_initial_decay_is_what_a_step_leaves(mixer, decay, value):
    free = {} if mixer == "rwkv7" else {"use_short_conv": False}
    made = layer(mixer, initial_decay=value, decay=decay, **free)
    assert torch.allclose(measured_decay(made), torch.tensor(value), atol=1e-5)
    bias = "dt_bias"
    if mixer == "rwkv7":
        bias = "w_lora.lora.2.bias" if decay == "learned" else "w_lora.values"
    same_but(layer(mixer, decay=decay, **free), made, changed={bias})


def test_initial_decay_of_a_bounded_gate():
    made = layer("kda", initial_decay=0.3, lower_bound=-2.0, use_short_conv=False)
    assert torch.allclose(measured_decay(made), torch.tensor(0.3), atol=1e-5)
    with pytest.raises(InputError, match=r"initial_decay is 0.1; with lower_bound=-2.0 a step leaves more than 0.135"):
        layer("kda", initial_decay=0.1, lower_bound=-2.0)


@DELTA
def test_output_gate_of_delta_rules(mixer):
    """Off: no gate's parameters. A gate that gives 0 everywhere halves what is left without it."""
    x = torch.randn(2, 70, WIDTH)
    with_gate, without = layer(mixer), layer(mixer, use_output_gate=False)
    same_but(with_gate, without, removed={"g_proj.0.weight", "g_proj.1.weight", "g_proj.1.bias"})
    with torch.no_grad():
        with_gate.g_proj[1].weight.zero_()
        with_gate.g_proj[1].bias.zero_()
    assert torch.allclose(2 * run(with_gate, x), run(without, x), atol=1e-6)


def test_output_gate_of_rwkv7():
    """Off: no gate's parameters. A gate that gives 1 everywhere is as none."""
    x = torch.randn(2, 70, WIDTH)
    with_gate, without = layer("rwkv7"), layer("rwkv7", use_output_gate=False)
    same_but(with_gate, without, removed={"x_g", "g_lora.lora.0.weight", "g_lora.lora.2.weight"})
    with torch.no_grad():
        with_gate.g_lora.lora[0].weight.zero_()
        with_gate.g_lora.lora[2].weight.fill_(2 / with_gate.g_lora.low_rank_dim)
        for made in (with_gate, without):
            made.o_proj.weight.copy_(torch.eye(WIDTH))
    assert run(without, x).std() > 0.1
    assert torch.allclose(run(with_gate, x), run(without, x), atol=1e-5)


@DELTA
def test_short_convolution(mixer):
    with_conv, without = parameters(layer(mixer)), parameters(layer(mixer, use_short_conv=False))
    assert with_conv.keys() - without.keys() == {f"{name}_conv1d.weight" for name in "qkv"}
    assert all(with_conv[name].shape == p.shape for name, p in without.items())
    assert with_conv["q_conv1d.weight"].shape[-1] == 4
    assert parameters(layer(mixer, conv_size=3))["q_conv1d.weight"].shape[-1] == 3
    caches = []
    for made in (layer(mixer), layer(mixer, use_short_conv=False)):
        caches.append(DecodingCache())
        run(made, torch.randn(1, 9, WIDTH), caches[-1])
    assert caches[0][0]["conv_state"][0].shape[-1] == 4 and caches[1][0]["conv_state"] is None


@DELTA
@pytest.mark.parametrize("negative", [False, True])
def test_negative_eigenvalues(mixer, negative, seen):
    made = layer(mixer, allow_neg_eigval=negative)
    same_but(layer(mixer), made)
    with torch.no_grad():
        made.b_proj.weight.mul_(30)
    run(made, torch.randn(2, 70, WIDTH))
    most = 2 if negative else 1
    assert (seen[0]["beta"] > 0).all() and most * 0.95 < seen[0]["beta"].max() <= most


@DELTA
@pytest.mark.parametrize(("kwargs", "keys", "values"), [
    ({}, 8, 8), ({"state_size": 5}, 5, 8), ({"expand": 2}, 8, 16), ({"state_size": 12, "expand": 0.5}, 12, 4),
    ({"state_size": 7, "expand": 1.5}, 7, 12), ({"num_v_heads": 8}, 8, 4), ({"num_v_heads": 8, "expand": 2}, 8, 8),
])  # fmt: skip
def test_state_and_width(mixer, kwargs, keys, values):
    made = layer(mixer, **kwargs)
    config = models.SelectivBenchConfig(mixer=mixer, hidden_size=WIDTH, num_hidden_layers=1, mixer_kwargs=kwargs)
    heads = kwargs.get("num_v_heads", 4)
    assert made.q_proj.out_features == made.k_proj.out_features == 4 * keys
    assert made.v_proj.out_features == made.o_proj.in_features == heads * values
    assert models.state_size(config) == heads * keys * values
    assert run(made, torch.randn(1, 70, WIDTH)).shape == (1, 70, WIDTH)


VARIANTS = [
    ("gated_delta_net2", {"decay": "fixed", "use_output_gate": False}),
    ("gated_delta_net2", {"decay": "none", "use_short_conv": False, "num_v_heads": 8, "expand": 2}),
    ("kda", {"use_output_gate": False}), ("kda", {"decay": "fixed"}), ("kda", {"decay": "none", "use_short_conv": False}),
    ("kda", {"state_size": 5, "expand": 2, "num_v_heads": 8}), ("kda", {"lower_bound": -5.0, "safe_gate": True}),
    ("rwkv7", {"use_output_gate": False}), ("rwkv7", {"decay": "fixed"}), ("rwkv7", {"decay": "none", "fuse_norm": True}),
]  # fmt: skip


@pytest.mark.parametrize(("mixer", "kwargs"), VARIANTS)
def test_models_with_a_knob_turned_train_save_and_decode(mixer, kwargs, tmp_path):
    net = model(mixer, mixer_kwargs=kwargs).train()
    x = ids(steps=70)
    net(input_ids=x, labels=x.clamp_max(5)).loss.backward()
    assert [n for n, p in net.named_parameters() if p.grad is None or not p.grad.any()] == []
    net.eval().save_pretrained(tmp_path)
    again = models.SelectivBenchForStateClassification.from_pretrained(tmp_path)
    with torch.no_grad():
        whole = net(input_ids=x).logits
        assert torch.equal(again(input_ids=x).logits, whole)
        cache, got = None, []
        for part in x.split((3, 1, 66), 1):
            out = net(input_ids=part, cache=cache, use_cache=True)
            cache = out.cache
            got.append(out.logits)
    assert torch.allclose(torch.cat(got, 1), whole, atol=1e-4)


BAD = [
    (("gated_delta_net2", WIDTH, None, {"initial_decay": 2}), "initial_decay is 2"),
    (("gated_delta_net2", WIDTH, None, {"expand_v": 2}), "unknown mixer argument 'expand_v'"),
    (("gated_delta_net2", 2048, 4), "512 key channels a head are more than the 256"),
    (("kda", WIDTH, None, {"use_short_conv": "no"}), "use_short_conv is 'no'; it must be true or false"),
    (("kda", WIDTH, None, {"conv_size": 1}), "conv_size is 1"),
    (("kda", WIDTH, None, {"decay": "off"}), "decay is 'off'; it must be 'learned' or 'fixed' or 'none'"),
    (("kda", WIDTH, None, {"initial_decay": 1.0}), "initial_decay is 1.0"),
    (("kda", WIDTH, None, {"decay": "none", "initial_decay": 0.5}), "give one of the two"),
    (("kda", WIDTH, None, {"state_size": 300}), "300 key channels a head are more than the 256"),
    (("kda", WIDTH, None, {"expand": 0.3}), r"expand \* hidden_size \(9.6\) must be a multiple of the heads of values \(4\)"),
    (("kda", WIDTH, None, {"num_v_heads": 6}), r"num_v_heads \(6\) must be a multiple of num_heads \(4\)"),
    (("kda", WIDTH, None, {"head_dim": 8}), "unknown mixer argument 'head_dim'"),
    (("kda", WIDTH, None, {"safe_gate": True}), "safe_gate needs a lower_bound"),
    (("kda", WIDTH, None, {"lower_bound": 1.0}), "must be below 0"),
    (("kda", 66), "64 or 68"),
    (("kda", 2048, 4), "512 key channels a head are more than the 256"),
    (("rwkv7", WIDTH, None, {"initial_decay": 0.5}), "a step of RWKV-7 leaves more than 0.5452"),
    (("rwkv7", WIDTH, None, {"value_dim": 64}), "unknown mixer argument 'value_dim'"),
    (("rwkv7", WIDTH, None, {"use_short_conv": True}), "unknown mixer argument 'use_short_conv'"),
    (("rwkv7", WIDTH, None, {"decay": 1}), "decay is 1"),
    (("rwkv7", 66), "64 or 68"),
    (("rwkv7", 32, 32), "heads of 1 channels; fla's layer takes 2 to 256.*64"),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(BAD)))
def test_bad_values_are_one_sentence(case):
    arguments, text = BAD[case]
    with pytest.raises(InputError, match=text) as caught:
        models.check_mixer(*arguments)
    assert "\n" not in str(caught.value)


def test_rwkv7_starts_as_flas_layer_does():
    """Both layers of a model of two, and nothing is said about it."""
    from fla.layers.rwkv7 import RWKV7Attention

    config = models.SelectivBenchConfig(mixer="rwkv7", hidden_size=WIDTH, num_hidden_layers=2)
    for index in (0, 1):
        torch.manual_seed(3)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ours = mixers.build_mixer("rwkv7", WIDTH, 4, index, {}, config)
        torch.manual_seed(3)
        with pytest.warns(UserWarning, match="According to Bo"):
            theirs = RWKV7Attention(
                hidden_size=WIDTH, num_heads=4, head_dim=None, layer_idx=index, num_hidden_layers=2
            )
        mine, wanted = ours.state_dict(), theirs.state_dict()
        assert mine.keys() == wanted.keys() and all(torch.equal(mine[name], wanted[name]) for name in wanted)
        assert torch.allclose(ours.g_norm.weight, torch.tensor(((index + 1) / 2) ** 0.7))


def test_one_layer_of_rwkv7():
    """fla's formula divides by the number of layers less one; the norm's weight is ((index + 1) / layers) ** 0.7 = 1."""
    made = layer("rwkv7", depth=1)
    assert torch.equal(made.g_norm.weight, torch.ones(WIDTH)) and made.num_hidden_layers == 1
    same_but(layer("rwkv7"), made, changed={"g_norm.weight"})
    net = model("rwkv7", num_hidden_layers=1)
    assert net(input_ids=ids()).logits.isfinite().all()


def test_later_layers_of_rwkv7_read_the_first_ones_values():
    net = model("rwkv7", num_hidden_layers=3)
    later = net.backbone[1].mixer
    with pytest.raises(ValueError, match="layer 1 of RWKV-7 needs the values of layer 0"):
        later(torch.randn(1, 5, WIDTH))
    first, x = torch.randn(2, 1, 5, WIDTH), torch.randn(1, 5, WIDTH)
    with torch.no_grad():
        outputs = [later(x, shared={"v_first": values})[0] for values in first]
        assert not torch.allclose(*outputs)
        later.v_lora.lora[2].bias.fill_(-math.inf)  # the layer's own values only
        later.v_lora.lora[2].weight.zero_()
        outputs = [later(x, shared={"v_first": values})[0] for values in first]
    assert torch.equal(*outputs)


def test_rwkv7s_mixtures_do_not_decay():
    """As in the authors' training: weight decay is for matrices."""
    groups = {group["name"]: group["names"] for group in models.parameter_groups(model("rwkv7"), 0.1)}
    free = [name.rpartition(".")[2] for name in groups["no_decay"] if ".mixer." in name]
    assert {"x_r", "x_w", "x_k", "x_v", "x_a", "x_g", "r_k", "k_k", "k_a", "bias", "weight"} == set(free)
    assert all(name.endswith(".weight") for name in groups["decay"])
