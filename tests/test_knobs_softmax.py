"""The knobs of the attention models: each changes what it says and nothing else."""

import pytest
import torch
from models_helper import HEADS, WIDTH, ids, model

from selectivbench_hf import kernels, models
from selectivbench_hf.errors import InputError
from selectivbench_hf.models import mixers


def layer(mixer, width=WIDTH, heads=4, **kwargs):
    """A layer of which each parameter is drawn from a seed of its own: the same whatever else the layer has."""
    if models.MIXERS[mixer].needs_fla:
        kernels.enable()
    built = mixers.build_mixer(mixer, width, heads, 0, kwargs).eval()
    for name, parameter in built.named_parameters():
        with torch.no_grad():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(sum(map(ord, name)))))
            parameter.mul_(0.3)
    return built


def shapes(module):
    """Names and shapes of the parameters."""
    return {name: tuple(p.shape) for name, p in module.named_parameters()}


def run(module, x):
    """The output of a layer of ours or of fla's."""
    with torch.no_grad():
        out = module(x)
    return out[0] if isinstance(out, tuple) else out


@pytest.mark.parametrize("mixer", ["transformer", "sliding_window"])
def test_rotary_positions(mixer):
    """Without them the order of the earlier steps does not count; parameters are the same."""
    x = torch.randn(1, 20, WIDTH)
    swapped = x[:, [5, 1, 2, 3, 4, 0, *range(6, 20)]]
    for rope in (True, False):
        made = layer(mixer, use_rope=rope)
        assert shapes(made) == shapes(layer(mixer))
        assert torch.allclose(run(made, x)[:, -1], run(made, swapped)[:, -1], atol=1e-5) != rope
    assert mixers.build_mixer(mixer, 36, 4, 0, {"use_rope": False}).head_dim == 9  # pairs are needed for rotation only


@pytest.mark.parametrize("mixer", ["transformer", "sliding_window"])
def test_norm_of_queries_and_keys(mixer):
    with_norm, without = layer(mixer), layer(mixer, qk_norm=False)
    extra = {"q_norm.weight", "k_norm.weight"}
    assert shapes(with_norm).keys() - shapes(without).keys() == extra
    assert all(shapes(with_norm)[name] == shape for name, shape in shapes(without).items())
    x = torch.randn(1, 20, WIDTH)
    for made, invariant in ((with_norm, True), (without, False)):
        before = run(made, x)
        with torch.no_grad():
            made.q_proj.weight.mul_(3)
        assert torch.allclose(run(made, x), before, atol=1e-4) == invariant


def test_window_size():
    x = torch.randn(1, 90, WIDTH)
    whole = layer("transformer")
    for window in (1, 30, 90, 500):
        made = layer("sliding_window", window_size=window)
        assert shapes(made) == shapes(whole)
        agree = torch.isclose(run(made, x), run(whole, x), atol=1e-5).all(-1).sum().item()
        assert agree == min(window, 90)  # the first steps, for which the window is all there is
        config = models.SelectivBenchConfig(
            mixer="sliding_window", hidden_size=WIDTH, num_hidden_layers=3, mixer_kwargs={"window_size": window}
        )
        assert models.state_size(config) == 3 * 2 * window * WIDTH
    assert torch.equal(run(layer("sliding_window"), x), run(layer("sliding_window", window_size=32), x))


@pytest.mark.parametrize("mixer", ["transformer", "sliding_window"])
def test_short_convolution(mixer):
    """It mixes each step's queries, keys and values with the steps right before, and is otherwise the layer without it."""
    x = torch.randn(2, 50, WIDTH)
    plain, made = layer(mixer), layer(mixer, use_short_conv=True, conv_size=3)
    assert shapes(made) == shapes(plain) | {"conv1d.weight": (3 * WIDTH, 1, 3)}
    assert layer(mixer, use_short_conv=True).conv1d.kernel_size == (4,)
    changed = x.clone()
    changed[:, 30] += 1
    assert not torch.equal(run(made, x)[:, 30:33], run(made, changed)[:, 30:33])
    assert torch.equal(run(made, x)[:, :30], run(made, changed)[:, :30])
    whole = run(made, x)
    for pieces in ((1, 1, 48), (20, 30), (1,) * 50):
        cache = models.cache.DecodingCache()
        with torch.no_grad():
            parts = [made(part, past_key_values=cache, use_cache=True) for part in x.split(pieces, 1)]
        assert torch.allclose(torch.cat(parts, 1), whole, atol=1e-5) and cache.get_seq_length() == 50
    with torch.no_grad():
        made.conv1d.weight.zero_()
        made.conv1d.weight[..., -1] = 1  # each step itself alone
    assert torch.allclose(run(made, x), run(plain, x), atol=1e-5)


BAD = [
    ("transformer", {"use_rope": 1}, "use_rope is 1; it must be true or false"),
    ("transformer", {"use_short_conv": 1}, "use_short_conv is 1; it must be true or false"),
    (
        "transformer",
        {"conv_size": 1, "use_short_conv": True},
        "conv_size is 1; it must be a whole number of at least 2",
    ),
    ("transformer", {"qk_norm": "no"}, "qk_norm is 'no'; it must be true or false"),
    ("transformer", {"window_size": 5}, "'window_size'"),
    ("transformer", {"use_output_gate": True}, "'use_output_gate'"),
    ("sliding_window", {"window_size": 0}, "window_size is 0; it must be a whole number of at least 1"),
    ("sliding_window", {"window_size": 2.5}, "window_size is 2.5"),
    ("sliding_window", {"windowsize": 2}, "did you mean 'window_size'"),
    ("gpt", {"use_rope": False}, "'use_rope'"),
    ("fox", {"window_size": 5}, "'window_size'"),
    ("fox", {"decay": "constant"}, "decay is 'constant'; it must be 'learned' or 'fixed' or 'none'"),
    ("fox", {"initial_decay": 1.0}, "initial_decay is 1.0; it must be a number above 0 and below 1"),
    ("fox", {"initial_decay": 0.5, "decay": "none"}, "give one of the two"),
    ("fox", {"use_output_gate": "yes"}, "use_output_gate is 'yes'"),
    ("path_attention", {"conv_size": 1}, "conv_size is 1; it must be a whole number of at least 2"),
    ("path_attention", {"use_forget_gate": True}, "'use_forget_gate'"),
    ("path_attention", {"allow_neg_eigval": 2}, "allow_neg_eigval is 2; it must be true or false"),
    ("path_attention", {"initial_decay": 0.5}, "give one of the two"),
    ("path_attention", {"num_kv_heads": 3}, "num_kv_heads"),
    ("fox", {"num_kv_heads": 3}, "num_heads must be divisible by num_kv_heads"),
]


@pytest.mark.parametrize(("mixer", "kwargs", "text"), BAD)
def test_a_wrong_value_is_one_sentence(mixer, kwargs, text):
    if models.MIXERS[mixer].needs_fla:
        pytest.importorskip("fla")
    with pytest.raises(InputError, match=text) as caught:
        models.check_mixer(mixer, WIDTH, HEADS.get(mixer, 4), kwargs)
    assert "\n" not in str(caught.value)


def test_number_of_heads():
    for heads in (1, 2, 16):
        net = model("transformer", num_heads=heads)
        assert net.backbone[0].mixer.head_dim == WIDTH // heads
        assert net(input_ids=ids()).logits.isfinite().all()


def gates(made, x):
    """fox: what each step leaves of all earlier ones' scores, (B, T, H)."""
    with torch.no_grad():
        return made.f_proj(x).float().sigmoid()


def test_foxs_output_gate():
    pytest.importorskip("fla")
    x = torch.randn(1, 20, WIDTH)
    gated, plain = layer("fox", use_output_gate=True), layer("fox")
    assert shapes(gated) == shapes(plain) | {"g_proj.weight": (WIDTH, WIDTH)}
    with torch.no_grad():
        gated.g_proj.weight.zero_()  # a gate of one half on every channel
    assert torch.allclose(run(gated, x), run(plain, x) / 2, atol=1e-6)


def test_foxs_decay():
    pytest.importorskip("fla")
    x = torch.randn(2, 20, WIDTH)
    learned, fixed, none = (layer("fox", decay=decay) for decay in ("learned", "fixed", "none"))
    projection = {"f_proj.weight", "f_proj.bias"}
    others = {name: shape for name, shape in shapes(learned).items() if name not in projection}
    assert shapes(fixed) == others | {"f_proj.values": (4,)} and shapes(none) == others
    assert gates(learned, x).std((0, 1)).min() > 0.01
    assert (gates(fixed, x) == gates(fixed, x[:1, :1])).all() and 0.1 < gates(fixed, x).mean() < 0.9
    assert (gates(none, x) == 1).all()
    # nothing forgotten: the order of the earlier steps does not count
    swapped = x[:, [5, 1, 2, 3, 4, 0, *range(6, 20)]]
    for made, same in ((learned, False), (fixed, False), (none, True)):
        assert torch.allclose(run(made, x)[:, -1], run(made, swapped)[:, -1], atol=1e-5) == same
    run_with_gradient = mixers.build_mixer("fox", WIDTH, 4, 0, {"decay": "fixed"})
    run_with_gradient(x)[0].square().sum().backward()
    assert run_with_gradient.f_proj.values.grad.abs().min() > 0


@pytest.mark.parametrize("decay", ["learned", "fixed"])
def test_foxs_initial_decay(decay):
    pytest.importorskip("fla")
    torch.manual_seed(0)
    made = mixers.build_mixer("fox", WIDTH, 4, 0, {"initial_decay": 0.97, "decay": decay})
    torch.manual_seed(0)
    plain = mixers.build_mixer("fox", WIDTH, 4, 0, {})
    assert torch.allclose(gates(made, torch.zeros(1, 1, WIDTH)), torch.tensor(0.97), atol=1e-6)
    for name, value in plain.named_parameters():
        if not name.startswith("f_proj"):
            assert torch.equal(made.get_parameter(name), value)


WIDTHS = [
    ("fox", 66, 4, "64 or 68"),
    ("fox", 2048, 4, "at most 256 channels, not 512"),
    ("transformer", 36, 4, "32 or 40"),
]


@pytest.mark.parametrize(("mixer", "width", "heads", "text"), WIDTHS)
def test_a_width_that_does_not_work(mixer, width, heads, text):
    if models.MIXERS[mixer].needs_fla:
        pytest.importorskip("fla")
    with pytest.raises(InputError, match=text):
        models.check_mixer(mixer, width, heads)
