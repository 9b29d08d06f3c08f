"""The knobs of the state-space models: each changes what it says and nothing else."""

import pytest
import torch
from models_helper import WIDTH

from selectivbench_hf import kernels
from selectivbench_hf.errors import InputError
from selectivbench_hf.kernels.log_linear import log_linear
from selectivbench_hf.kernels.scan import selective_scan
from selectivbench_hf.kernels.simple_gla import simple_gla
from selectivbench_hf.models import check_mixer
from selectivbench_hf.models.cache import DecodingCache
from selectivbench_hf.models.mixers import build_mixer

pytest.importorskip("triton")
pytest.importorskip("fla", reason="flash-linear-attention is not installed")


MAMBAS = ["mamba", "mamba2", "log_linear_mamba2"]
STATES = {"log_linear_mamba2": 64}  # what its kernel on CUDA takes


@pytest.fixture(autouse=True)
def _enabled():
    kernels.enable()


def built(mixer, seed=0, **knobs):
    """A layer of width 32."""
    torch.manual_seed(seed)
    return build_mixer(mixer, WIDTH, 4, 0, {"state_size": STATES.get(mixer, 16), **knobs}).eval()


def parameters(layer):
    """Its parameters by name."""
    return dict(layer.named_parameters())


def differing(layer, other):
    """Names of the parameters that only one of two layers has, or with other shapes or values."""
    ours, theirs = parameters(layer), parameters(other)
    return {
        name
        for name in ours.keys() | theirs.keys()
        if name not in ours or name not in theirs or not torch.equal(ours[name], theirs[name])
    }


def state_after(layer, *pieces):
    """The recurrent state after these inputs (B, T, D), and all outputs."""
    cache, outputs = DecodingCache(), []
    with torch.no_grad():
        for piece in pieces:
            outputs.append(layer(piece, past_key_values=cache, use_cache=True)[0])
    return cache[0]["recurrent_state"], torch.cat(outputs, 1)


def kept(layer):
    """What a step with an input of zero leaves of each number of the state. The layer has no convolution, so it writes nothing."""
    start = torch.randn(1, 4, WIDTH)  # an even number: the next step merges no blocks of log-linear attention
    before, _ = state_after(layer, start)
    after, _ = state_after(layer, start, torch.zeros(1, 1, WIDTH))
    return after[before != 0] / before[before != 0]


@pytest.mark.parametrize("mixer", MAMBAS)
def test_the_defaults_change_nothing(mixer):
    layer = built(mixer)
    spelled = built(mixer, use_short_conv=True, use_output_gate=True, decay="learned", conv_size=4, expand=2)
    assert differing(layer, spelled) == set()
    assert set(layer.state_dict()) == set(spelled.state_dict())


def last_step(layer, x, monkeypatch):
    """Decay and key (Mamba's B) of the last step of x (1, T, D), as the layer hands them to its scan."""
    seen = []

    def scan(u, dt, A, key, *rest):
        seen.extend(((dt[:, -1, :, None] * A).exp(), key[:, -1]))
        return selective_scan(u, dt, A, key, *rest)

    def gla(q, k, v, g, *rest):
        seen.extend((torch.ones(1) if g is None else g[:, -1, :, None, None].exp(), k[:, -1]))
        return simple_gla(q, k, v, g, *rest)

    def levels(q, k, v, g, *rest):
        seen.extend((g[:, -1, :, None, None].exp(), k[:, -1]))
        return log_linear(q, k, v, g, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(kernels.log_linear_mamba2, "log_linear", levels)
        patched.setattr(kernels.mamba, "selective_scan", scan)
        patched.setattr(kernels.mamba2, "simple_gla", gla)
        state_after(layer, x)
    return seen


@pytest.mark.parametrize("mixer", MAMBAS)
@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_conv_size_is_how_many_steps_meet_before_the_state(mixer, size, monkeypatch):
    """1 stands for no convolution. A step's key is a function of what the convolution lets it see."""
    layer = built(mixer, **({"use_short_conv": False} if size == 1 else {"conv_size": size}))
    conv = {name for name in parameters(built(mixer)) if name.startswith("conv1d.")}
    if size == 1:
        assert differing(layer, built(mixer)) == conv
    else:
        assert layer.conv1d.weight.shape[-1] == size and parameters(layer).keys() == parameters(built(mixer)).keys()
    x = torch.randn(1, 20, WIDTH)
    key = last_step(layer, x, monkeypatch)[1]
    for step, seen in ((19 - size, False), (20 - size, True)):
        changed = x.clone()
        changed[:, step] += 1
        assert torch.equal(last_step(layer, changed, monkeypatch)[1], key) != seen


@pytest.mark.parametrize("mixer", MAMBAS)
def test_without_the_output_gate_its_rows_are_gone(mixer):
    layer, without = built(mixer), built(mixer, use_output_gate=False)
    assert differing(layer, without) - {"in_proj.bias"} == {"in_proj.weight"}
    inner = 2 * WIDTH
    gate = slice(inner, 2 * inner) if mixer == "mamba" else slice(0, inner)
    rest = torch.ones(len(layer.in_proj.weight), dtype=torch.bool)
    rest[gate] = False
    assert torch.equal(layer.in_proj.weight[rest], without.in_proj.weight)
    x = torch.randn(1, 9, WIDTH)
    gated, plain = state_after(layer, x), state_after(without, x)
    assert torch.allclose(gated[0], plain[0]) and not torch.allclose(gated[1], plain[1])


@pytest.mark.parametrize("mixer", MAMBAS)
@pytest.mark.parametrize("how", ["learned", "fixed", "none"])
def test_decay(mixer, how, monkeypatch):
    """ "fixed" forgets as the layer does for an input of zero, whatever the input, and "none" nothing; what is written stays."""
    layer, learned = built(mixer, decay=how), built(mixer)
    assert differing(layer, learned) == ({"A_log"} if how == "none" else set())
    x, y = torch.randn(1, 4, WIDTH), torch.randn(1, 4, WIDTH)
    bare, bare_learned = built(mixer, decay=how, use_short_conv=False), built(mixer, use_short_conv=False)
    decay = last_step(bare, x, monkeypatch)[0]
    assert torch.equal(decay, last_step(bare, y, monkeypatch)[0]) == (how != "learned")
    if how == "none":
        assert (decay == 1).all() and (kept(bare) == 1).all()
    elif how == "fixed":
        assert torch.equal(decay, last_step(bare_learned, 0 * x, monkeypatch)[0]) and decay.max() < 1
    # the first step's state is only what it wrote
    assert torch.allclose(state_after(layer, x[:, :1])[0], state_after(learned, x[:, :1])[0])
    layer.train()
    layer(x)[0].cos().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in layer.parameters())


@pytest.mark.parametrize("mixer", MAMBAS)
@pytest.mark.parametrize("how", ["learned", "fixed"])
@pytest.mark.parametrize("decay", [0.3, 0.999])
def test_initial_decay_is_what_a_step_leaves(mixer, how, decay):
    layer = built(mixer, initial_decay=decay, decay=how)
    assert differing(layer, built(mixer)) == {"A_log"}
    left = kept(built(mixer, initial_decay=decay, decay=how, use_short_conv=False))
    assert torch.allclose(left, torch.tensor(decay), rtol=1e-4)


@pytest.mark.parametrize(
    ("mixer", "size", "expand"),
    [(m, n, e) for m in ("mamba", "mamba2") for n in (3, 16, 40) for e in (1, 1.5, 2)]
    + [("log_linear_mamba2", n, e) for n in (64, 128) for e in (1, 2)],
)
def test_state_size_and_expand_are_the_sides_of_the_state(mixer, size, expand):
    layer = built(mixer, state_size=size, expand=expand)
    state, _ = state_after(layer, torch.randn(1, 5, WIDTH))
    matrices = 14 if mixer == "log_linear_mamba2" else 1  # of which 2 are in use after 5 steps
    assert state.numel() == matrices * expand * WIDTH * size and size in state.shape[-2:]
    if matrices > 1:
        assert state.flatten(2).any(-1).squeeze(0).tolist() == [n in (0, 2) for n in range(14)]


BAD = [
    ({"use_short_conv": 1}, "use_short_conv is 1; it must be true or false"),
    ({"use_output_gate": "no"}, "use_output_gate is 'no'; it must be true or false"),
    ({"conv_size": 1}, "conv_size is 1; it must be a whole number of at least 2"),
    ({"state_size": 0}, "state_size is 0; it must be a whole number of at least 1"),
    ({"expand": 0}, "expand is 0; it must be a number above 0"),
    ({"expand": 1.01}, "must be a whole number"),
    ({"decay": "off"}, "decay is 'off'; it must be 'learned' or 'fixed' or 'none'"),
    ({"initial_decay": 1.0}, "initial_decay is 1.0; it must be a number above 0 and below 1"),
    ({"initial_decay": 0.5, "decay": "none"}, "give one of the two"),
    ({"conv_kernel": 3}, "did you mean 'conv_"),
]


@pytest.mark.parametrize(
    ("mixer", "knobs", "text"),
    [(mixer, knobs, text) for mixer in MAMBAS for knobs, text in BAD]
    + [
        ("log_linear_mamba2", {"state_size": 32}, "state_size is 32; it must be a multiple of 64"),
        ("log_linear_mamba2", {"expand": 3}, r"expand \* hidden_size / num_heads \(24\) must be a power of two"),
        ("log_linear_mamba2", {"head_dim": 32}, "unknown mixer argument 'head_dim'"),
    ],
)
def test_wrong_values_are_one_sentence(mixer, knobs, text):
    with pytest.raises(InputError, match=text) as caught:
        check_mixer(mixer, WIDTH, None, knobs)
    assert "\n" not in str(caught.value)
