"""Our DeltaNet and Gated DeltaProduct are fla's layers, but for the type in which the kernel computes on CUDA."""

import pytest
import torch

pytest.importorskip("triton")
pytest.importorskip("fla", reason="flash-linear-attention is not installed")

import fla.layers
from fla_interpreter import run_case

from selectivbench_hf import kernels
from selectivbench_hf.models.cache import DecodingCache
from selectivbench_hf.models.layers import delta

SMALL = {"hidden_size": 32, "num_heads": 2, "layer_idx": 0}
PRODUCT = {**SMALL, "head_dim": 8}
CASES = [
    (delta.DeltaNet, fla.layers.DeltaNet, SMALL),
    (delta.DeltaNet, fla.layers.DeltaNet, {**SMALL, "use_gate": True, "allow_neg_eigval": True, "conv_bias": True}),
    (
        delta.DeltaNet,
        fla.layers.DeltaNet,
        {**SMALL, "use_short_conv": False, "qk_activation": "silu", "expand_v": 0.5},
    ),
    (delta.DeltaNet, fla.layers.DeltaNet, {**SMALL, "qk_activation": "relu", "qk_norm": "sum", "use_beta": False}),
    (delta.DeltaNet, fla.layers.DeltaNet, {**SMALL, "use_short_conv": False, "qk_activation": "elu"}),
    (delta.DeltaNet, fla.layers.DeltaNet, {**SMALL, "qk_activation": "identity", "mode": "fused_recurrent"}),
    (delta.GatedDeltaProduct, fla.layers.GatedDeltaProduct, PRODUCT),
    (delta.GatedDeltaProduct, fla.layers.GatedDeltaProduct, {**PRODUCT, "num_householder": 3, "num_v_heads": 4}),
    (
        delta.GatedDeltaProduct,
        fla.layers.GatedDeltaProduct,
        {**PRODUCT, "use_short_conv": False, "use_output_gate": False},
    ),
    (
        delta.GatedDeltaProduct,
        fla.layers.GatedDeltaProduct,
        {**PRODUCT, "use_forget_gate": False, "allow_neg_eigval": False},
    ),
]


@pytest.fixture(autouse=True)
def _enabled():
    kernels.enable()


def pair(ours, theirs, arguments):
    """Both layers with the same parameters, drawn by fla."""
    torch.manual_seed(0)
    original = theirs(**arguments)
    made = ours(**arguments)
    made.load_state_dict(original.state_dict(), strict=True)
    return made, original


@pytest.mark.filterwarnings("ignore:ShortConvolution is crucial")
@pytest.mark.parametrize("steps", [1, 40, 100])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_equal_to_flas_layer(case, steps):
    made, original = pair(*CASES[case])
    x = torch.randn(2, steps, 32)
    for train in (True, False):
        got, wanted = run_case(made.train(train), x, train), run_case(original.train(train), x, train)
        assert got.keys() == wanted.keys()
        assert all(torch.equal(got[key], wanted[key]) for key in got)
    with torch.no_grad():
        caches = DecodingCache(), DecodingCache()
        for part in x.split((steps + 1) // 2, 1):
            a, b = (
                m(part, past_key_values=c, use_cache=True)[0] for m, c in zip((made, original), caches, strict=True)
            )
            assert torch.equal(a, b)
    assert torch.equal(caches[0][0]["recurrent_state"], caches[1][0]["recurrent_state"])


@pytest.mark.parametrize("case", [0, 6])
def test_float32_is_rounded_around_the_kernel_alone(case, monkeypatch):
    """As on CUDA: the kernel gets bfloat16 and float32 gates and states, and what it returns goes on in float32."""
    made, _ = pair(*CASES[case])
    home = fla.layers.delta_net if case == 0 else fla.layers.gated_deltaproduct
    name = "chunk_delta_rule" if case == 0 else "chunk_gated_delta_product"
    kernel, types = getattr(home, name), []

    def spy(**arguments):
        types.append({key: value.dtype for key, value in arguments.items() if isinstance(value, torch.Tensor)})
        return kernel(**arguments)

    x = torch.randn(2, 100, 32)
    wanted = run_case(made, x, True)
    monkeypatch.setattr(home, name, spy)
    monkeypatch.setattr(delta, "_refused", lambda q: q.dtype == torch.float32)
    got = run_case(made, x, True)
    half = dict.fromkeys(("q", "k", "v", "beta"), torch.bfloat16)
    assert types == [half | ({"g": torch.float32} if case else {})]
    assert made.computes_in == "bfloat16"
    for key, value in wanted.items():
        assert got[key].dtype == torch.float32
        difference = (got[key] - value).norm() / value.norm()
        assert 1e-6 < difference < 0.03, key


def test_an_attention_mask_is_refused():
    made, _ = pair(*CASES[0])
    with pytest.raises(NotImplementedError, match="pad on the right"):
        made(torch.randn(1, 5, 32), attention_mask=torch.ones(1, 5))


def test_the_record_tells_the_type():
    assert kernels.backend("cuda:0", "delta_net") == "fla-triton (float32 as bfloat16)"
    assert kernels.backend("cuda:0", "gated_delta_product") == "fla-triton (float32 as bfloat16)"
    assert kernels.backend("cuda:0", "gated_delta_net") == "fla-triton"
    assert kernels.backend("cpu", "delta_net") == "cpu-chunked"
