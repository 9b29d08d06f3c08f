"""Mixers and modules from outside the package: what is refused, each in one sentence, and what is left as it was."""

import json

import pytest
import torch
from models_helper import STATES, SYMBOLS, config, ids, model
from torch import nn
from transformers import AutoConfig, AutoModelForTokenClassification

from selectivbench_hf import models
from selectivbench_hf.errors import InputError

REFUSED = [
    ("shared", {}, "shares weights: 'weight' of layer 1 is 'weight' of layer 0"),
    ("tied", {}, "shares weights: 'b.weight' of layer 0 is 'a.weight' of layer 0"),
    ("random_buffer", {}, "buffer 'table'.*not saved"),
    ("random_attribute", {}, "not in its state_dict"),
    ("acausal", {}, "not causal.*step 63"),
    ("acausal", {"zero": True}, "not causal"),
    ("wide", {}, r"returned shape \(1, 64, 33\)"),
    ("lazy", {}, "lazy parameter 'weight'"),
    ("number", {}, "returned int; it must return a torch.nn.Module"),
    ("signature", {}, "hidden_size, num_heads, layer_idx"),
    ("broken", {}, "cannot be built"),
    ("deaf", {}, "fails on an input of shape"),
    ("double", {}, "returned float64 for an input in float32"),
    ("in_place", {}, "changes its input in place"),
    ("random_output", {}, "draws random numbers in evaluation mode"),
    ("batch_norm", {}, "in training mode, is not causal"),
    ("time_first", {}, "mixes the sequences of a batch"),
    ("one_state", {}, "after 32 steps its cache says 0: call"),
]


@pytest.mark.parametrize(("function", "kwargs", "text"), REFUSED)
def test_a_mixer_that_cannot_work_is_refused_in_one_sentence(function, kwargs, text):
    with pytest.raises(InputError, match=text) as caught:
        model(f"outside_mixers:{function}", mixer_kwargs=kwargs)
    assert "\n" not in str(caught.value) and f"'outside_mixers:{function}'" in str(caught.value)


@pytest.mark.parametrize(
    ("mixer", "text"),
    [("os:getcwd", "hidden_size, num_heads"), (":build", "my_module:build"), ("os:", "my_module:build")],
)
def test_a_name_that_is_no_builder(mixer, text):
    with pytest.raises(InputError, match=text) as caught:
        model(mixer, mixer_kwargs={})
    assert "\n" not in str(caught.value)


def test_a_module_that_does_not_import(tmp_path, monkeypatch):
    (tmp_path / "half_written_mixer.py").write_text("def build(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match="importing 'half_written_mixer' failed: SyntaxError"):
        models.check_mixer("half_written_mixer:build", 64)


def test_a_good_mixer_passes_and_the_random_numbers_stay(tmp_path):
    torch.manual_seed(5)
    made = models.SelectivBenchForStateClassification(config("outside_mixers:fourier"))
    torch.manual_seed(5)
    nn.Linear(SYMBOLS, 32)  # the encoder is drawn first
    assert torch.equal(made.backbone[0].mixer.filter, torch.randn(4096, 32))
    made.eval().save_pretrained(tmp_path)
    again = models.SelectivBenchForStateClassification.from_pretrained(tmp_path)
    assert torch.equal(again(input_ids=ids()).logits, made(input_ids=ids()).logits)


def test_a_model_made_in_bfloat16_is_checked_in_float32():
    made = AutoModelForTokenClassification.from_config(
        config("outside_mixers:fourier", mixer_kwargs={}), dtype=torch.bfloat16
    )
    assert made.encoder.weight.dtype == torch.bfloat16 and torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("name", [["gla"], {"gla": 1}, None, 3])
def test_a_name_that_is_no_text(name):
    with pytest.raises(InputError, match="unknown mixer"):
        models.SelectivBenchForStateClassification(models.SelectivBenchConfig(mixer=name))


KWARGS = [
    ("gla", {"gate_low_rank_dim": "big"}, "gate_low_rank_dim is 'big'; it must be a whole number of at least 1"),
    ("gla", {"gate_low_rank_dim": -1}, "gate_low_rank_dim is -1"),
    ("gla", {"gate_low_rank_dim": 0}, "gate_low_rank_dim is 0"),
    ("linear_attention", {"feature_map": "foo"}, "'feature_map': 'foo'.*Not supported feature map"),
    ("mamba2", {"expand": "x"}, "expand is 'x'; it must be a number above 0"),
    ("gpt", {"activation_function": "gelu_neww"}, "did you mean 'gelu_new'"),
    ("gpt", {"activation_function": 3}, "unknown activation_function '3'"),
    ("gpt", {"n_inner": -5}, "n_inner is -5; it must be a whole number of at least 1"),
    ("gpt", {"attn_pdrop": 2.0}, "'attn_pdrop': 2.0"),
    ("transformer", {"rope_theta": 0}, "rope_theta is 0; it must be a number above 0"),
    ("transformer", {"rope_theta": "big"}, "rope_theta is 'big'"),
    ("transformer", {"norm_eps": -1.0}, "norm_eps is -1.0"),
]


@pytest.mark.parametrize(("mixer", "kwargs", "text"), KWARGS)
def test_values_that_no_layer_can_have(mixer, kwargs, text):
    if mixer in ("gla", "linear_attention", "mamba2"):
        pytest.importorskip("triton")
        pytest.importorskip("fla")
    with pytest.raises(InputError, match=text) as caught:
        models.check_mixer(mixer, 64, None, kwargs)
    assert "\n" not in str(caught.value)


class Task:
    """What wrapping looks at."""

    num_symbols, num_states = SYMBOLS, STATES


class Answers(nn.Module):
    """A linear model whose answer is changed on its way out."""

    def __init__(self, change):
        super().__init__()
        self.linear, self.change = nn.Linear(SYMBOLS, STATES), change

    def forward(self, x):
        """Logits, changed."""
        return self.change(self.linear(x))


WRAPPED = [
    (lambda: nn.Linear(SYMBOLS, STATES, device="meta"), "'weight' on the meta device"),
    (lambda: nn.Linear(SYMBOLS, STATES).bfloat16(), "'weight' in bfloat16; parameters must be float32"),
    (lambda: nn.Linear(SYMBOLS, STATES).double(), "'weight' in float64"),
    (lambda: nn.LazyLinear(STATES), "lazy parameter 'weight'"),
    (lambda: Answers(lambda out: out.detach()), "without a gradient"),
    (lambda: Answers(lambda out: out.detach().numpy()), "returned ndarray"),
    (lambda: Answers(lambda out: None), "returned NoneType"),
]


@pytest.mark.parametrize("index", range(len(WRAPPED)))
def test_a_module_that_cannot_learn(index):
    make, text = WRAPPED[index]
    with pytest.raises(InputError, match=text) as caught:
        models.wrap_module(make(), Task())(input_ids=ids())
    assert "\n" not in str(caught.value)


def test_detached_logits_are_fine_for_evaluation():
    net = models.wrap_module(Answers(lambda out: out.detach()), Task())
    with torch.no_grad():
        assert net.train()(input_ids=ids()).logits.shape == (3, 97, STATES)
    assert net.eval()(input_ids=ids()).logits.shape == (3, 97, STATES)


@pytest.mark.parametrize("heads", [0, -2, 1.5, True])
def test_heads_that_cannot_be(heads):
    for make in (lambda: models.check_mixer("transformer", 64, heads), lambda: config("transformer", num_heads=heads)):
        with pytest.raises(InputError, match="num_heads is"):
            make()


def test_a_saved_configuration_runs_no_code_from_outside_by_itself(tmp_path):
    """A stranger's config.json may name any function of any module; only a name that was given in this process is followed."""
    models.SelectivBenchForStateClassification(config("outside_mixers:fourier")).save_pretrained(tmp_path)
    text = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(text | {"mixer": "builtins:print"}))
    for load in (AutoConfig, AutoModelForTokenClassification, models.SelectivBenchForStateClassification):
        with pytest.raises(InputError, match=r"'builtins:print', code from outside .*get_mixer\('builtins:print'\)"):
            load.from_pretrained(tmp_path)
    models.get_mixer("builtins:print")
    assert AutoConfig.from_pretrained(tmp_path).mixer == "builtins:print"
