"""The knobs of S4D, GRU and LSTM: each changes what it says and nothing else."""

import pytest
import torch
from models_helper import WIDTH

from selectivbench_hf import kernels
from selectivbench_hf.errors import InputError
from selectivbench_hf.models import check_mixer
from selectivbench_hf.models.cache import DecodingCache
from selectivbench_hf.models.mixers import build_mixer


def built(mixer, **knobs):
    """A layer of width 32."""
    torch.manual_seed(0)
    return build_mixer(mixer, WIDTH, 4, 0, knobs).eval()


def state_after(layer, *pieces):
    """The recurrent state after these inputs (B, T, D)."""
    cache = DecodingCache()
    with torch.no_grad():
        for piece in pieces:
            layer(piece, past_key_values=cache, use_cache=True)
    return cache[0]["recurrent_state"]


def differing(layer, other):
    """Names of the parameters in which two layers differ."""
    ours, theirs = dict(layer.named_parameters()), dict(other.named_parameters())
    assert ours.keys() == theirs.keys()
    return {name for name in ours if not torch.equal(ours[name], theirs[name])}


@pytest.mark.parametrize("size", [2, 64, 10])
def test_state_size_counts_real_numbers(size):
    state = state_after(built("s4d", state_size=size), torch.randn(1, 5, WIDTH))
    assert state.numel() == WIDTH * size and state.dtype == torch.float32


def test_without_the_output_gate():
    layer, without = built("s4d"), built("s4d", use_output_gate=False)
    assert differing(layer, without) == {"out_proj.weight", "out_proj.bias"}
    assert without.out_proj.weight.shape == (WIDTH, WIDTH)
    x = torch.randn(1, 9, WIDTH)
    fed = []
    for each in (layer, without):
        each.out_proj.register_forward_pre_hook(lambda module, inputs: fed.append(inputs[0]))
    out = without(x)
    gated = layer(x)
    assert torch.equal(*fed) and torch.equal(out, without.out_proj(fed[0]))
    assert torch.equal(gated, torch.nn.functional.glu(layer.out_proj(fed[0])))


@pytest.mark.parametrize("decay", [0.3, 0.999])
def test_s4d_initial_decay(decay):
    layer = built("s4d", initial_decay=decay)
    assert differing(layer, built("s4d")) == {"A_log"}
    x = torch.randn(1, 5, WIDTH)
    before, after = state_after(layer, x), state_after(layer, x, torch.zeros(1, 1, WIDTH))
    assert torch.allclose(after.norm(dim=-1) / before.norm(dim=-1), torch.tensor(decay), rtol=1e-4)


@pytest.mark.parametrize("decay", [0.3, 0.999])
@pytest.mark.parametrize("mixer", ["gru", "lstm"])
def test_initial_decay_of_the_gated_ones(mixer, decay):
    """Measured on a state so small that the output does not turn the gates, less what is written into an empty one."""
    layer = built(mixer, initial_decay=decay)
    assert differing(layer, built(mixer)) == {"rnn.bias_ih_l0", "rnn.bias_hh_l0"}
    x = torch.zeros(1, 1, WIDTH, dtype=torch.float64)
    layer.double()
    small = 1e-6 * torch.randn(1, 1, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        if mixer == "gru":
            layer.rnn.weight_hh_l0[2 * WIDTH :] = (
                0  # what is written must not depend on the state for this measurement
            )
            layer.rnn.weight_hh_l0[:WIDTH] = 0
            # h' = (1 - z) n + z h, and z moves with h: its effect on n is taken out by n = 0
            layer.rnn.bias_ih_l0[2 * WIDTH :] = 0
            layer.rnn.bias_hh_l0[2 * WIDTH :] = 0
            left = layer.rnn(x, small)[1] / small
        else:
            nothing = torch.zeros_like(small)
            left = (layer.rnn(x, (nothing, small))[1][1] - layer.rnn(x, (nothing, nothing))[1][1]) / small
    assert torch.allclose(left, torch.tensor(decay, dtype=torch.float64), rtol=1e-4)


@pytest.mark.parametrize("mixer", ["gru", "lstm"])
def test_they_are_torchs(mixer):
    torch.manual_seed(0)
    theirs = getattr(torch.nn, mixer.upper())(WIDTH, WIDTH, batch_first=True)
    layer, x = built(mixer), torch.randn(2, 9, WIDTH)
    assert torch.equal(layer(x), theirs(x)[0])


BAD = [
    ("s4d", {"state_size": 7}, "must be even"),
    ("s4d", {"state_size": 0}, "at least 1"),
    ("s4d", {"use_output_gate": 1}, "true or false"),
    ("s4d", {"dt_min": 1.0}, "in order"),
    ("s4d", {"initial_decay": 0}, "above 0 and below 1"),
    ("gru", {"initial_decay": 1}, "above 0 and below 1"),
    ("lstm", {"state_size": 3}, "unknown mixer argument 'state_size'"),
    ("gru", {"decay": "none"}, "unknown mixer argument 'decay'"),
]


@pytest.mark.parametrize(("mixer", "knobs", "text"), BAD)
def test_wrong_values_are_one_sentence(mixer, knobs, text):
    with pytest.raises(InputError, match=text) as caught:
        check_mixer(mixer, WIDTH, None, knobs)
    assert "\n" not in str(caught.value)


def test_half_precision_leaves_the_constants_of_s4d_alone(tmp_path):
    """Cast or loaded in bfloat16, only what is not the recurrence is bfloat16."""
    from models_helper import ids, model

    from selectivbench_hf.models import SelectivBenchForStateClassification

    net = model("s4d")
    wanted = net(input_ids=ids()).logits
    net.save_pretrained(tmp_path)
    for half in (
        net.to(torch.bfloat16),
        SelectivBenchForStateClassification.from_pretrained(tmp_path, dtype=torch.bfloat16),
    ):
        layer = half.backbone[0].mixer
        assert all((p.dtype == torch.float32) == (name in layer.float32) for name, p in layer.named_parameters())
        got = half(input_ids=ids()).logits.float()
        assert (got - wanted).norm() / wanted.norm() < 0.02
    assert net.double().backbone[0].mixer.A_log.dtype == torch.float64


def test_the_record_says_torch():
    assert {kernels.backend("cpu", mixer) for mixer in ("s4d", "gru", "lstm")} == {"torch"}
