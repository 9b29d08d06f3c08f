"""Attention over all steps and over a window, GPT-2, and what each keeps between the pieces of a sequence."""

import importlib
import warnings

import pytest
import torch
from models_helper import SYMBOLS, WIDTH, ids, model
from torch.nn import functional as F

from selectivbench_hf.models import MIXERS, attention


def naive(q, k, v, window):
    """Softmax over the whole matrix of scores. q (B, T, H, D), k, v (B, S, H, D)."""
    steps, total = q.shape[1], k.shape[1]
    scores = torch.einsum("bthd,bshd->bhts", q, k) * q.shape[-1] ** -0.5
    own = torch.arange(total - steps, total)[:, None]
    key = torch.arange(total)
    seen = (key <= own) & (key > own - window)
    return torch.einsum("bhts,bshd->bthd", scores.masked_fill(~seen, float("-inf")).softmax(-1), v)


SHAPES = [
    # steps with keys, steps with queries, window
    (1, 1, 1),
    (65, 65, 1),
    (64, 64, 70),
    (65, 65, 64),
    (200, 200, 32),
    (200, 200, 100),
    (231, 200, 32),
    (300, 260, 100),
    (40, 8, 33),
    (33, 1, 32),
    (513, 513, 64),
]


@pytest.mark.parametrize(("total", "steps", "window"), SHAPES)
@pytest.mark.parametrize("kind", ["window", "all"])
def test_values_and_gradients(total, steps, window, kind, monkeypatch):
    monkeypatch.setattr(attention, "QUERY_BLOCK", 128)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(2, n, 3, 8, dtype=torch.float64, generator=generator, requires_grad=True)
        for n in (steps, total, total)
    )
    if kind == "window":
        got, wanted = attention.window_attention(q, k, v, window), naive(q, k, v, window)
    else:
        got, wanted = attention.causal_attention(q, k, v), naive(q, k, v, total)
    assert torch.allclose(got, wanted, atol=1e-13, rtol=0)
    ours, theirs = (torch.autograd.grad(out.cos().sum(), (q, k, v)) for out in (got, wanted))
    assert all(torch.allclose(a, b, atol=1e-12, rtol=0) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("window", [16, 100])
def test_a_window_needs_no_mask_of_the_whole(window, monkeypatch):
    """Memory grows with T * window: no mask, hence no matrix of scores, spans the sequence."""
    sizes, band = [], attention.band
    monkeypatch.setattr(attention, "band", lambda *shape: (sizes.append(shape[:2]), band(*shape))[1])
    x = torch.randn(1, 3000, 1, 4)
    attention.window_attention(x, x, x, window)
    assert sizes and max(max(size) for size in sizes) <= 2 * max(window, attention.SMALLEST_BLOCK)


def test_a_window_sees_its_steps_and_no_other():
    layer = attention.Attention(WIDTH, 4, window_size=7)
    x = torch.randn(1, 100, WIDTH)
    with torch.no_grad():
        before = layer(x)
        for step in (3, 70, 99):
            changed = x.clone()
            changed[:, step] += 1
            moved = (layer(changed) - before).abs().amax((0, 2)) > 1e-6
            assert moved.nonzero().flatten().tolist() == list(range(step, min(step + 7, 100)))


def kept(net, steps):
    """Numbers in the cache after that many steps."""
    with torch.no_grad():
        return net(input_ids=ids(1, steps), use_cache=True).cache.numbers()


def test_what_is_kept_between_pieces():
    window = model("sliding_window", mixer_kwargs={"window_size": 9})
    assert [kept(window, steps) for steps in (1, 9, 10, 80)] == [n * 2 * WIDTH * 2 for n in (1, 9, 9, 9)]
    for mixer in ("transformer", "gpt"):
        assert [kept(model(mixer), steps) for steps in (1, 9, 80)] == [n * 2 * WIDTH * 2 for n in (1, 9, 80)]


def check_pieces(net, x, cuts):
    """The logits of the pieces, with the cache between them, are those of the whole."""
    with torch.no_grad():
        whole = net(input_ids=x).logits
        for pieces in cuts:
            cache, got = None, []
            for part in x.split(pieces, 1):
                out = net(input_ids=part, cache=cache, use_cache=True)
                cache = out.cache
                got.append(out.logits)
            assert torch.allclose(torch.cat(got, 1), whole, atol=1e-5), pieces


@pytest.mark.parametrize("window", [1, 5, 64, 200])
def test_pieces_with_a_window_equal_the_whole(window):
    net = model("sliding_window", mixer_kwargs={"window_size": window})
    check_pieces(net, ids(2, 150), ((1, 4, 5, 140), (100, 50), (70, 1, 79), (1,) * 150))


OPTIONS = [
    ("transformer", {"use_rope": False, "qk_norm": False}),
    ("fox", {"num_kv_heads": 2, "qkv_bias": True, "qk_norm": True, "use_output_gate": True}),
    ("fox", {"decay": "none"}),
    ("path_attention", {"num_kv_heads": 1, "decay": "learned", "use_qk_norm": True, "use_low_rank_w": False}),
    ("path_attention", {"use_short_conv": False, "allow_neg_eigval": False, "decay": "fixed"}),
]


@pytest.mark.parametrize(("mixer", "options"), OPTIONS)
def test_pieces_with_options_equal_the_whole(mixer, options):
    if MIXERS[mixer].needs_fla:
        pytest.importorskip("triton")
        pytest.importorskip("fla")
    check_pieces(model(mixer, mixer_kwargs=options), ids(2, 90), ((1, 4, 85), (65, 25), (3, *(1,) * 87)))


def test_gpts_cache_under_its_older_name():
    """transformers has renamed the argument; the older name must give the same."""
    net = model("gpt")
    x = ids(1, 20)
    with torch.no_grad():
        wanted = net(input_ids=x).logits
        net.backbone._cache_name = "past_key_values"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cache = net(input_ids=x[:, :13], use_cache=True).cache
            got = net(input_ids=x[:, 13:], cache=cache).logits
    assert torch.allclose(got, wanted[:, 13:], atol=1e-5) and cache.get_seq_length() == 20


def test_training_takes_torchs_causal_kernel(monkeypatch):
    """No mask is made where no step was cached: torch then takes its fast path."""
    calls, kernel = [], F.scaled_dot_product_attention

    def spy(q, k, v, *args, **kwargs):
        calls.append((args, kwargs))
        return kernel(q, k, v, *args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    net = model("transformer").train()
    net(input_ids=ids(), labels=ids() % SYMBOLS).loss.backward()
    assert calls == [((), {"is_causal": True})] * 2


LAYERS = [
    ("path:PaTHAttention", {"use_forget_gate": True, "num_kv_heads": 1, "use_qk_norm": True}),
    ("path:PaTHAttention", {"use_w_shortconv": False}),
    ("fox:ForgettingAttention", {"use_output_gate": True, "qk_norm": True}),
]


@pytest.mark.parametrize(("where", "options"), LAYERS)
def test_our_layer_equals_flas(where, options):
    """The subclasses compute a whole sequence as fla's layers do, whose kernels the recordings compare."""
    pytest.importorskip("triton")
    pytest.importorskip("fla")
    import fla.layers

    from selectivbench_hf import kernels

    kernels.enable()
    module, _, name = where.partition(":")
    ours = getattr(importlib.import_module(f"selectivbench_hf.models.layers.{module}"), name)
    torch.manual_seed(0)
    theirs = getattr(fla.layers, name)(hidden_size=WIDTH, num_heads=2, layer_idx=0, **options)
    ours = ours(hidden_size=WIDTH, num_heads=2, layer_idx=0, **options)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    x = torch.randn(2, 70, WIDTH, requires_grad=True)
    outputs = [layer(x)[0] for layer in (ours, theirs)]
    assert torch.equal(*outputs)
    gradients = [
        torch.autograd.grad(out.cos().sum(), [x, *layer.parameters()])
        for out, layer in zip(outputs, (ours, theirs), strict=True)
    ]
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*gradients, strict=True))  # sums in another order
