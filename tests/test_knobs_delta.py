"""The knobs of DeltaNet, Gated DeltaNet, Gated DeltaProduct and Comba: each changes what it says and nothing else."""

import pytest
import torch
from models_helper import WIDTH

pytest.importorskip("triton")
pytest.importorskip("fla", reason="flash-linear-attention is not installed")

from selectivbench_hf import kernels, models
from selectivbench_hf.errors import InputError
from selectivbench_hf.kernels import gated_delta as kernel
from selectivbench_hf.models import mixers
from selectivbench_hf.models.cache import DecodingCache

HEADS = 4
ALL = ("delta_net", "gated_delta_net", "gated_delta_product", "comba")
DECAYING = ALL[1:]
DECAY = {"a_proj.weight", "A_log", "dt_bias"}


@pytest.fixture(autouse=True)
def _enabled():
    kernels.enable()


def layer(mixer, **kwargs):
    """A layer from a fixed seed."""
    torch.manual_seed(0)
    return mixers.build_mixer(mixer, WIDTH, HEADS, 0, kwargs)


def shapes(module):
    """Names and shapes of the parameters."""
    return {name: tuple(p.shape) for name, p in module.named_parameters()}


def changed(mixer, **kwargs):
    """Names of the parameters that are there in one of the default layer and this one only, or have another shape."""
    before, after = shapes(layer(mixer)), shapes(layer(mixer, **kwargs))
    return {name for name in before | after if before.get(name) != after.get(name)}


def inputs(steps=20, seed=1):
    """(2, T, D)."""
    return torch.randn(2, steps, WIDTH, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def seen(monkeypatch):
    """What the kernel was last given: g and beta, (B, T * writes, H)."""
    given, apply = {}, kernel._Delta.apply

    def spy(q, k, p, v, g, beta, *rest):
        given.update(g=g, beta=beta)
        return apply(q, k, p, v, g, beta, *rest)

    monkeypatch.setattr(kernel._Delta, "apply", spy)
    return given


@pytest.mark.parametrize("mixer", ALL)
def test_defaults_are_flas(mixer):
    """With fla's own class and its arguments: the same parameters, drawn the same."""
    import fla.layers

    name = {"delta_net": "DeltaNet", "gated_delta_net": "GatedDeltaNet", "comba": "Comba"}.get(
        mixer, "GatedDeltaProduct"
    )
    torch.manual_seed(0)
    heads = {} if mixer == "delta_net" else {"head_dim": 3 * WIDTH // 4 // HEADS}
    theirs = getattr(fla.layers, name)(hidden_size=WIDTH, num_heads=HEADS, layer_idx=0, **heads).state_dict()
    ours = layer(mixer).state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


@pytest.mark.parametrize("mixer", ALL)
def test_short_convolution(mixer):
    convolutions = {f"{name}_conv1d.weight" for name in "qkv"}
    assert changed(mixer, use_short_conv=False) == convolutions
    assert changed(mixer, use_short_conv=True, conv_size=4) == set()
    assert changed(mixer, conv_size=2) == convolutions
    for size in (2, 4):
        assert layer(mixer, conv_size=size).q_conv1d.weight.shape[-1] == size
    plain, x = layer(mixer, use_short_conv=False).eval(), inputs(1)
    cache = DecodingCache()
    with torch.no_grad():
        plain(x, past_key_values=cache, use_cache=True)
    assert cache[0]["conv_state"] is None


@pytest.mark.parametrize("mixer", ALL)
def test_output_gate(mixer):
    default = mixer != "delta_net"
    assert changed(mixer, use_output_gate=default) == set()
    assert changed(mixer, use_output_gate=not default) == {"g_proj.weight"}
    gated, plain, x = layer(mixer, use_output_gate=True), layer(mixer, use_output_gate=False), inputs()
    plain.load_state_dict({key: value for key, value in gated.state_dict().items() if key != "g_proj.weight"})
    with torch.no_grad():
        open_gate = 0.5 if mixer == "comba" else 0.0  # sigmoid(0) or silu(0)
        gated.g_proj.weight.zero_()
        assert torch.allclose(gated(x)[0], open_gate * plain(x)[0], atol=1e-5)


@pytest.mark.parametrize("mixer", ALL)
def test_state_size(mixer):
    keys = {f"{name}_{part}.weight" for name in "qk" for part in ("proj", "conv1d")}
    assert changed(mixer, state_size=5) == keys
    default = layer(mixer)
    assert changed(mixer, state_size=default.head_k_dim) == set()
    made = layer(mixer, state_size=5)
    assert (made.head_k_dim, made.head_v_dim) == (5, default.head_v_dim)
    config = models.SelectivBenchConfig(
        mixer=mixer, hidden_size=WIDTH, num_hidden_layers=3, mixer_kwargs={"state_size": 5}
    )
    assert models.state_size(config) == 3 * HEADS * 5 * default.head_v_dim


@pytest.mark.parametrize("mixer", ALL)
@pytest.mark.parametrize("expand", [0.5, 1, 2, 2.5])
def test_expand(mixer, expand):
    """The values' width alone; 2.5 makes a ratio to the keys that fla would round down."""
    default, made = layer(mixer), layer(mixer, expand=expand)
    assert made.value_dim == expand * WIDTH and made.key_dim == default.key_dim
    values = {"v_proj.weight", "v_conv1d.weight", "o_norm.weight", "o_proj.weight", "g_proj.weight"} & shapes(
        made
    ).keys()
    assert changed(mixer, expand=expand) == (values if made.value_dim != default.value_dim else set())
    config = models.SelectivBenchConfig(
        mixer=mixer, hidden_size=WIDTH, num_hidden_layers=3, mixer_kwargs={"expand": expand}
    )
    assert models.state_size(config) == 3 * made.key_dim * expand * WIDTH / HEADS


@pytest.mark.parametrize("mixer", ["gated_delta_net", "gated_delta_product", "comba"])
def test_more_heads_of_values_leave_the_width(mixer):
    made = layer(mixer, num_v_heads=8)
    assert made.value_dim == 1.5 * WIDTH and made.head_v_dim == 1.5 * WIDTH / 8
    assert made(inputs())[0].isfinite().all()


@pytest.mark.parametrize("mixer", ["delta_net", "gated_delta_net", "gated_delta_product"])
def test_negative_eigenvalues(mixer, seen):
    """The same layer, beta twice as large."""
    betas = []
    for allowed in (False, True):
        assert changed(mixer, allow_neg_eigval=allowed) == set()
        layer(mixer, allow_neg_eigval=allowed)(inputs())
        betas.append(seen["beta"])
    assert torch.equal(2 * betas[0], betas[1]) and betas[1].max() > 1
    assert layer(mixer).allow_neg_eigval == (mixer == "gated_delta_product")


@pytest.mark.parametrize("mixer", DECAYING)
def test_decay(mixer, seen):
    """Learned: another at every step; fixed: a constant per head, which trains; none: nothing is forgotten."""

    def decays(made, x):
        made(x)
        writes = getattr(made, "num_householder", 1)
        return seen["g"] if seen["g"] is None else seen["g"][:, ::writes]

    learned = layer(mixer)
    assert decays(learned, inputs()).std(1).min() > 0
    assert changed(mixer, decay="learned") == set()

    fixed = layer(mixer, decay="fixed")
    assert changed(mixer, decay="fixed") == {"a_proj.weight"}
    assert all(torch.equal(p, learned.get_parameter(name)) for name, p in fixed.named_parameters())
    wanted = -learned.A_log.exp() * torch.nn.functional.softplus(learned.dt_bias)
    for seed in (1, 2):
        assert torch.allclose(decays(fixed, inputs(seed=seed)), wanted.expand(2, 20, -1))
    fixed(inputs())[0].square().sum().backward()
    assert fixed.A_log.grad.abs().min() > 0 and fixed.dt_bias.grad.abs().min() > 0

    none = layer(mixer, decay="none")
    assert changed(mixer, decay="none") == DECAY
    gates = decays(none, inputs())
    assert gates is None or not gates.any()
    for name, parameter in none.named_parameters():
        if name in ("q_proj.weight", "k_proj.weight", "v_proj.weight", "b_proj.weight"):
            assert torch.equal(parameter, learned.get_parameter(name))
    none.load_state_dict(none.state_dict(), strict=True)


@pytest.mark.parametrize("mixer", DECAYING)
@pytest.mark.parametrize("decay", ["learned", "fixed"])
@pytest.mark.parametrize("wanted", [0.02, 0.9, 0.9999])
def test_initial_decay(mixer, decay, wanted):
    """What a step of zeros leaves of the state, measured; but for dt_bias the layer is the same."""
    made = layer(mixer, initial_decay=wanted, decay=decay, use_short_conv=False).eval()
    plain = layer(mixer, decay=decay, use_short_conv=False)
    assert all(torch.equal(p, plain.get_parameter(n)) for n, p in made.named_parameters() if n != "dt_bias")
    cache = DecodingCache()
    with torch.no_grad():
        made(inputs(7), past_key_values=cache, use_cache=True)
        before = cache[0]["recurrent_state"].clone()
        made(torch.zeros(2, 3, WIDTH), past_key_values=cache, use_cache=True)
    assert torch.allclose(cache[0]["recurrent_state"], before * wanted**3, rtol=1e-4, atol=1e-7)
    assert before.abs().max() > 1e-3


@pytest.mark.parametrize("writes", [1, 2, 3])
def test_num_householder(writes, seen):
    made = layer("gated_delta_product", num_householder=writes)
    wider = {f"{name}.weight" for name in ("k_proj", "v_proj", "b_proj", "k_conv1d", "v_conv1d")}
    assert changed("gated_delta_product", num_householder=writes) == (wider if writes != 2 else set())
    out = made(inputs())[0]
    assert seen["beta"].shape[1] == 20 * writes
    config = models.SelectivBenchConfig(
        mixer="gated_delta_product", hidden_size=WIDTH, num_hidden_layers=3, mixer_kwargs={"num_householder": writes}
    )
    assert models.state_size(config) == 3 * HEADS * 6 * 12
    if writes == 1:
        other = layer("gated_delta_net", allow_neg_eigval=True)
        other.load_state_dict(made.state_dict(), strict=True)
        assert torch.allclose(other(inputs())[0], out, atol=1e-6)


def test_num_heads():
    for heads in (1, 2, 8):
        for mixer in ALL:
            made = mixers.build_mixer(mixer, WIDTH, heads, 0)
            assert made.num_heads == heads and made(inputs())[0].shape == (2, 20, WIDTH)


BAD = [
    ("delta_net", {"use_short_conv": 1}, "use_short_conv is 1; it must be true or false"),
    ("delta_net", {"conv_size": 1}, "conv_size is 1; it must be a whole number of at least 2"),
    ("delta_net", {"decay": "none"}, "'decay'"),
    ("delta_net", {"use_gate": True}, "'use_gate'.*did you mean"),
    ("delta_net", {"expand": 0.3}, r"expand \* hidden_size \(9.6\) must be a multiple of the heads of values \(4\)"),
    ("gated_delta_net", {"decay": "constant"}, "decay is 'constant'; it must be 'learned' or 'fixed' or 'none'"),
    ("gated_delta_net", {"initial_decay": 1.0}, "initial_decay is 1.0; it must be a number above 0 and below 1"),
    ("gated_delta_net", {"initial_decay": 0.5, "decay": "none"}, "give one of the two"),
    ("gated_delta_net", {"state_size": 257}, "257 key channels a head are more than the 256"),
    ("gated_delta_net", {"num_v_heads": 6}, r"num_v_heads \(6\) must be a multiple of num_heads \(4\)"),
    ("gated_delta_net", {"head_dim": 8}, "'head_dim'"),
    ("gated_delta_net", {"num_householder": 2}, "'num_householder'"),
    ("gated_delta_product", {"num_householder": 0}, "num_householder is 0; it must be a whole number of at least 1"),
    ("gated_delta_product", {"use_forget_gate": False}, "'use_forget_gate'"),
    ("gated_delta_product", {"expand": -1}, "expand is -1; it must be a number above 0"),
    ("comba", {"allow_neg_eigval": True}, "'allow_neg_eigval'"),
    ("comba", {"use_output_gate": "no"}, "use_output_gate is 'no'"),
]


@pytest.mark.parametrize(("mixer", "kwargs", "text"), BAD)
def test_a_wrong_value_is_one_sentence(mixer, kwargs, text):
    with pytest.raises(InputError, match=text) as caught:
        models.check_mixer(mixer, WIDTH, HEADS, kwargs)
    assert "\n" not in str(caught.value)


def test_a_width_that_does_not_fit_names_those_that_do():
    for mixer, near in (("delta_net", "64 or 68"), ("gated_delta_product", "64 or 80"), ("comba", "64 or 80")):
        with pytest.raises(InputError, match=near):
            models.check_mixer(mixer, 66)
