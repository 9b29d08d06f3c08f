"""`selectivbench models` and docs/models.md: what they say of a mixer is what its layer has, holds and does."""

import itertools
import re
from pathlib import Path

import pytest
import torch
from models_helper import ALL, HEADS, SMALL, WIDTH, config, ids, model
from torch import nn

import selectivbench_hf as sb
from selectivbench_hf import cli, models, models_command
from selectivbench_hf.errors import InputError
from selectivbench_hf.models import MIXERS, mixer, taxonomy
from selectivbench_hf.models.cache import STATE, DecodingCache
from selectivbench_hf.models.not_offered import NOT_OFFERED

PAGE = Path(__file__).parent.parent / "docs/models.md"
LAYERS = [name for name in ALL if not MIXERS[name].whole]


@pytest.fixture(autouse=True)
def _fla(request):
    name = getattr(getattr(request.node, "callspec", None), "params", {}).get("name")
    if MIXERS[name].needs_fla if name else False:
        _needs_fla()


def _needs_fla():
    pytest.importorskip("triton")
    pytest.importorskip("fla")


def described(name, kwargs=None, **more):
    return taxonomy.describe(
        name, WIDTH, HEADS.get(name), mixer_kwargs={**SMALL.get(name, {}), **(kwargs or {})}, **more
    )


@pytest.mark.parametrize("name", ALL)
def test_the_line_of_the_table_is_complete(name):
    entry = MIXERS[name]
    assert entry.decay in mixer.DECAYS and entry.mixing in mixer.MIXINGS
    assert entry.write and entry.write == entry.write.strip()
    assert re.fullmatch(r"[A-Za-z][^,]* \d{4}(, arXiv:\d{4}\.\d{4,5})?", entry.paper), entry.paper
    assert entry.build.__doc__.strip().endswith(".")


@pytest.mark.parametrize("name", ALL)
def test_a_row(name, monkeypatch):
    monkeypatch.setattr(taxonomy, "STEPS", 100)
    row = described(name, num_hidden_layers=3, num_symbols=7, num_states=11)
    assert row["problem"] is None
    made = model(name, num_hidden_layers=3)
    assert row["model_parameters"] == models.parameter_counts(made)["total"]
    if not MIXERS[name].whole:
        assert row["layer_parameters"] == sum(p.numel() for p in made.backbone[2].mixer.parameters())
    assert row["num_heads"] == made.config.num_heads
    # a training step costs three products for each matrix, except that the features need no gradient
    floor = 6 * sum(p.numel() for p in made.parameters() if p.ndim == 2) * 0.8
    assert row["model_train_flops"] > floor or name == "gpt"
    if MIXERS[name].state is None:
        assert row["state_size"] is None and row["state_growth"] > 0
    else:
        assert row["state_size"] > 0 and row["state_growth"] == 0


@pytest.mark.parametrize("name", ALL)
def test_the_state_grows_as_the_row_says(name):
    row = described(name, count=False)
    net = model(name, num_hidden_layers=1)
    cache, sizes = DecodingCache(), []
    with torch.no_grad():
        for piece in ids(1, 100).split(20, 1):
            net(input_ids=piece, cache=cache, use_cache=True)
            sizes.append(cache.numbers(STATE))
    if row["state_growth"]:
        assert [b - a for a, b in itertools.pairwise(sizes)] == [20 * row["state_growth"]] * 4
    else:
        assert sizes[-1] == row["state_size"]


@pytest.mark.parametrize("name", LAYERS)
def test_what_is_called_an_output_gate_is_one(name):
    """Where it is shut, the layer gives nothing whatever its input; a layer said to have none is not shut by any module."""
    net = model(name, num_hidden_layers=1, mixer_kwargs={**SMALL.get(name, {})})
    layer = net.backbone[0].mixer
    gate = taxonomy.output_gate(layer)
    assert described(name, count=False)["output_gate"] == (gate is not None)
    assert described(name, count=False)["short_conv"] == (taxonomy.short_convolution(layer) is not None)
    if gate is None:
        return
    x = torch.randn(2, 40, WIDTH)
    usual = spread(layer, x)
    part = layer.get_submodule(gate)
    smallest = []
    for value in (0.0, -1e4):  # what shuts a gate that multiplies, a swish, a sigmoid
        if isinstance(part, nn.LSTM):
            with torch.no_grad():
                part.bias_hh_l0[-WIDTH:] = -1e4
            smallest.append(spread(layer, x))
            continue
        handle = part.register_forward_hook(
            lambda module, inputs, output, value=value: shut(layer, gate, output, value)
        )
        smallest.append(spread(layer, x))
        handle.remove()
    assert usual > 1e-3
    assert min(smallest) < 1e-6 * usual


def spread(layer, x):
    """How far the outputs of a layer lie apart over sequences and steps."""
    with torch.no_grad():
        out = layer(x)
    out = out[0] if isinstance(out, tuple) else out
    return float((out - out[:1, :1]).abs().max())


def shut(layer, gate, output, value):
    """The output of the module that computes a gate, with the gate's channels set."""
    output, wide = output.clone(), output.shape[-1]
    if gate == "out_proj":  # S4D: (values, gate)
        output[..., wide // 2 :] = value
    elif gate != "in_proj":
        output[:] = value
    elif wide == 2 * layer.intermediate_size:  # Mamba: (x, gate)
        output[..., layer.intermediate_size :] = value
    else:  # Mamba-2: (gate, x, B, C, dt)
        output[..., : layer.intermediate_size] = value
    return output


@pytest.mark.parametrize("name", [n for n in LAYERS if "use_output_gate" in MIXERS[n].knobs])
@pytest.mark.parametrize("wanted", [True, False])
def test_the_output_gate_is_seen_to_come_and_go(name, wanted):
    rows = [described(name, {"use_output_gate": gate}, count=False) for gate in (wanted, not wanted)]
    assert rows[0]["output_gate"] is wanted and rows[1]["output_gate"] is not wanted
    assert (rows[0]["layer_parameters"] > rows[1]["layer_parameters"]) is wanted


@pytest.mark.parametrize("name", [n for n in LAYERS if "use_short_conv" in MIXERS[n].knobs])
@pytest.mark.parametrize("wanted", [True, False])
def test_the_short_convolution_is_seen_to_come_and_go(name, wanted):
    made = model(name, num_hidden_layers=1, mixer_kwargs={**SMALL.get(name, {}), "use_short_conv": wanted})
    assert (taxonomy.short_convolution(made.backbone[0].mixer) is not None) is wanted
    assert described(name, {"use_short_conv": wanted}, count=False)["short_conv"] is wanted


# ---------------------------------------------------------------- counting


def test_the_count_of_attention_is_its_products():
    row = taxonomy.describe("transformer", 32, num_hidden_layers=2, num_symbols=7, num_states=11)
    steps, width = taxonomy.STEPS, 32
    projections = 4 * width * width * 2 * 3
    attention = (
        2 * 2 * steps * width + 5 * 2 * steps * width
    )  # two products forward, five backward (flash recomputes one)
    assert row["layer_train_flops"] == projections + attention and row["flops_note"] is None
    intermediate = config("transformer").intermediate_size
    rest = 2 * 2 * 7 * width + 3 * 2 * width * 11 + 2 * 3 * 3 * 2 * width * intermediate
    assert row["model_train_flops"] == 2 * row["layer_train_flops"] + rest


def test_the_counter_sees_inside_our_kernels():
    """What a custom autograd function computes, forward and backward, is counted as if it stood in the open."""
    _needs_fla()
    from selectivbench_hf.kernels.simple_gla import simple_gla

    inputs = [torch.randn(1, 64, 2, 8, requires_grad=True) for _ in range(3)]
    with taxonomy.FlopCounterMode(display=False) as counter:
        out = simple_gla(*inputs, chunk=32)[0]
    chunks, heads, length, wide = 2, 2, 32, 8
    products = 2 * chunks * heads * length * (2 * wide * wide + 2 * length * wide)
    assert counter.get_total_flops() == products
    with taxonomy.FlopCounterMode(display=False) as counter:
        out.sum().backward()
    assert counter.get_total_flops() > products


def test_an_lstm_in_one_operation_is_counted():
    lstm, x = nn.LSTM(16, 24, batch_first=True), torch.randn(2, 10, 16)
    with taxonomy.FlopCounterMode(display=False, custom_mapping=taxonomy.FORMULAS) as counter:
        lstm(x)[0].sum().backward()
    products = 2 * 20 * 4 * 24 * (16 + 24)
    assert counter.get_total_flops() == pytest.approx(3 * products, rel=0.15)


def test_what_is_not_counted_is_said(monkeypatch):
    class Fourier(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.filter = nn.Parameter(torch.randn(taxonomy.STEPS, width))

        def forward(self, x, past_key_values=None, use_cache=False):
            steps = x.shape[1]
            spectrum = torch.fft.rfft(x, 2 * steps, dim=1) * torch.fft.rfft(self.filter[:steps], 2 * steps, dim=0)
            return torch.fft.irfft(spectrum, 2 * steps, dim=1)[:, :steps]

    added(monkeypatch, "fourier", lambda hidden_size, num_heads, layer_idx: Fourier(hidden_size))
    row = taxonomy.describe("fourier", 16)
    assert (
        row["layer_train_flops"] == 0
        and row["flops_note"] == "without FFTs; products with weights only; what else the layer does is element-wise"
    )


def added(monkeypatch, name, build, **more):
    monkeypatch.setitem(MIXERS, name, mixer.Mixer(name, build, "classic", **more))


# ---------------------------------------------------------------- what goes wrong is told


def test_a_width_that_a_mixer_cannot_have_is_told_in_its_row(capsys):
    assert cli.main(["models", "--mixer", "transformer", "sliding_window", "--hidden_size", "36"]) == 0
    out = capsys.readouterr().out
    assert "\ntransformer: hidden_size=36 does not work for mixer 'transformer'" in out
    assert "the nearest that work: 32 or 40" in out


def test_without_triton_attention_is_described_and_an_lrm_says_why(monkeypatch):
    find = mixer.importlib.util.find_spec
    monkeypatch.setattr(
        mixer.importlib.util, "find_spec", lambda name, *more: None if name == "triton" else find(name, *more)
    )
    row = taxonomy.describe("gla", 32)
    assert "the package 'triton' is not installed here" in row["problem"] and row["layer_parameters"] is None
    assert (row["decay"], row["paper"]) == (MIXERS["gla"].decay, MIXERS["gla"].paper)
    assert taxonomy.describe("transformer", 32, count=False)["problem"] is None


def test_a_state_that_is_not_what_its_formula_says_is_told(monkeypatch):
    class Cached(nn.Module):
        def forward(self, x, past_key_values=None, use_cache=False):
            if past_key_values is not None:
                past_key_values.update(recurrent_state=x[:, -1], layer_idx=0, offset=x.shape[1])
            return x

    added(monkeypatch, "wrong", lambda hidden_size, num_heads, layer_idx: Cached(), state=lambda layer: 7)
    row = taxonomy.describe("wrong", 16, count=False)
    assert row["problem"] == "the layer's cache holds 16 numbers of state and its formula says 7"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--mixer", "transfromer"], "error: unknown mixer 'transfromer'; did you mean 'transformer'"),
        (["--hidden_size", "0"], "error: selectivbench models: argument --hidden_size: must be a whole number"),
        (
            ["--json", "--markdown"],
            "error: selectivbench models: argument --markdown: not allowed with argument --json",
        ),
        (["--hiden_size", "3"], "error: unknown flag '--hiden_size' in selectivbench models; did you mean"),
        (["--task", "te33"], "error: unknown task 'te33'"),
        (["--mixer", "transformer", "--hidden_size", "36", "--markdown"], "error: the page needs every mixer"),
    ],
)
def test_bad_flags(capsys, arguments, sentence):
    assert cli.main(["models", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith(sentence) and err.count("\n") == 1, err


def test_the_command(selectivbench, strict_json):
    rows = strict_json(selectivbench("models", "--json", "--mixer", "transformer", "--hidden_size", 64).stdout)
    assert [row["name"] for row in rows] == ["transformer"] and rows[0]["backend_here"] == "torch-sdpa"
    assert rows[0]["model_parameters"] and rows[0]["hidden_size"] == 64


def test_the_table(capsys):
    assert cli.main(["models", "--mixer", "transformer", "gpt", "--num_hidden_layers", "2", "--task", "lite"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].split() == [
        "mixer",
        "decay",
        "write",
        "mixing",
        "parts",
        "state",
        "layer",
        "model",
        "FLOPs",
    ]
    assert "256 a step" in out and "runs here as torch-sdpa: transformer, gpt" in out
    assert "parameters of 2 blocks" in " ".join(out.split()) and "head for lite (" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 120


# ---------------------------------------------------------------- docs/models.md


def test_the_page_is_what_the_code_says():
    """All but the FLOPs, which depend on how the kernels of the day cut a sequence and take longer."""
    _needs_fla()
    rows = list(models_command.collect(count=False, task=sb.get_task("te3_noisy_gaps"), num_hidden_layers=8))
    assert [row["problem"] for row in rows] == [None] * len(rows)
    now = models_command.markdown(rows, "te3_noisy_gaps", 8).splitlines()
    page = PAGE.read_text(encoding="utf-8").splitlines()
    counted = list(models_command.COLUMNS).index(models_command.COUNTED) + 1

    def comparable(line):
        cells = line.split(" | ")
        if len(cells) == len(models_command.COLUMNS) and not line.startswith("| mixer"):
            cells[counted - 1] = ""
        return " | ".join(cells)

    written = [comparable(line) for line in page if not line.startswith(r"\*")]
    assert written == [comparable(line) for line in now], "run: selectivbench models --markdown > docs/models.md"
    rows = [
        line.split(" | ")
        for line in page
        if line.startswith("| `") and line.count(" | ") == len(models_command.COLUMNS) - 1
    ]
    assert len(rows) == len(MIXERS) and all(re.match(r"[\d.]+ M", cells[counted - 1]) for cells in rows)


def test_every_layer_of_fla_is_a_mixer_or_has_a_reason():
    _needs_fla()
    import fla.layers

    used = {
        base.__name__
        for entry in MIXERS.values()
        if entry.needs_fla
        for base in mixer.load_class(entry.layer).__mro__
        if base.__module__.startswith("fla.layers.")
    }
    assert set(fla.layers.__all__) == (used & set(fla.layers.__all__)) | set(NOT_OFFERED)
    assert not used & set(NOT_OFFERED), "offered and not offered"
    assert all(len(reason) > 20 and not reason.endswith(".") for reason in NOT_OFFERED.values())


def test_the_page_needs_every_mixer():
    with pytest.raises(InputError, match="cannot be described: because"):
        models_command.markdown([{"name": "x", "problem": "because"}], "te3", 8)
