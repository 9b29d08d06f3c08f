"""Sizing: the width that comes nearest to a number of parameters or to a size of the state, and the flags that ask for it."""

import json

import pytest
import torch
from models_helper import ALL, STATES, SYMBOLS

import selectivbench_hf as sb
from selectivbench_hf import models, results
from selectivbench_hf.arguments import TrainingArguments, from_argv, merge
from selectivbench_hf.errors import InputError
from selectivbench_hf.models import MIXERS, hidden_size_for, mixers
from selectivbench_hf.training import main, train

FIELDS = {"num_symbols": SYMBOLS, "num_states": STATES}
# one number a channel, where more would be wide models; matrices of at least 64 rows
WANTED = {"gru": 500, "lstm": 500, "hgrn": 500, "log_linear_mamba2": 30_000}
TINY = {"num_train": 24, "num_validation": 4, "num_test": 3, "num_items": 5, "test_gaps": [1]}


@pytest.fixture(autouse=True)
def _fla(request):
    if MIXERS.get(
        getattr(getattr(request.node, "callspec", None), "params", {}).get("mixer"), MIXERS["gpt"]
    ).needs_fla:
        pytest.importorskip("triton")
        pytest.importorskip("fla")


def real(mixer, width, layers, **fields):
    return models.SelectivBenchForStateClassification(
        models.SelectivBenchConfig(mixer=mixer, hidden_size=width, num_hidden_layers=layers, **FIELDS, **fields)
    )


@pytest.mark.parametrize("mixer", ALL)
def test_what_is_counted_is_the_real_model_and_no_other_width_is_nearer(mixer):
    before = torch.random.get_rng_state()
    found = hidden_size_for(mixer, num_parameters=3e5, num_hidden_layers=3, **FIELDS)
    assert torch.equal(before, torch.random.get_rng_state())
    made = real(mixer, found.hidden_size, 3)
    assert found.parameters == models.parameter_counts(made)["total"]
    assert found.num_heads == made.config.num_heads
    assert found.state_size == models.state_size(made.config)
    assert found.deviation == pytest.approx((found.parameters - 3e5) / 3e5) and -0.5 <= found.deviation <= 1
    # the next widths on either side, looked for one by one
    for step in (-1, 1):
        width = found.hidden_size + step
        heads = models.mixer.heads_for
        while width > 0 and mixers.why_not(MIXERS[mixer], width, heads(width), None):
            width += step
        if width > 0:
            other = models.parameter_counts(real(mixer, width, 3))["total"]
            assert max(other / 3e5, 3e5 / other) >= max(found.parameters / 3e5, 3e5 / found.parameters)


@pytest.mark.parametrize("mixer", [name for name in ALL if MIXERS[name].state])
def test_a_state_of_that_size(mixer):
    found = hidden_size_for(mixer, state_size=WANTED.get(mixer, 4_000), num_hidden_layers=2, **FIELDS)
    config = models.SelectivBenchConfig(mixer=mixer, hidden_size=found.hidden_size, num_hidden_layers=2, **FIELDS)
    assert models.state_size(config) == found.state_size
    assert 0.5 <= found.state_size / WANTED.get(mixer, 4_000) <= 2


def test_fields_are_kept_at_every_width():
    plain = hidden_size_for("transformer", num_parameters=1e6, num_hidden_layers=2, **FIELDS)
    bare = hidden_size_for("transformer", num_parameters=1e6, num_hidden_layers=2, mlp=False, num_heads=6, **FIELDS)
    assert bare.hidden_size > plain.hidden_size and bare.hidden_size % 12 == 0 and bare.num_heads == 6
    assert (
        bare.parameters
        == models.parameter_counts(real("transformer", bare.hidden_size, 2, mlp=False, num_heads=6))["total"]
    )


def test_the_task_decides_encoder_and_head():
    lite = hidden_size_for("transformer", num_parameters=2e6, task=sb.get_task("lite"), num_hidden_layers=4)
    te7 = hidden_size_for("transformer", num_parameters=2e6, task=sb.get_task("te7"), num_hidden_layers=4)
    assert lite.hidden_size > te7.hidden_size


def test_the_table_of_positions_is_counted_apart():
    found = hidden_size_for("gpt", num_parameters=1e5, num_hidden_layers=2, max_position_embeddings=5000, **FIELDS)
    same = hidden_size_for("gpt", num_parameters=1e5, num_hidden_layers=2, max_position_embeddings=10, **FIELDS)
    assert found == same


def test_a_mixer_from_outside_that_has_few_widths():
    found = hidden_size_for("test_sizing:multiples_of_48", num_parameters=1e5, num_hidden_layers=2, **FIELDS)
    assert found.hidden_size == 96 and found.parameters < 2e5
    with pytest.raises(InputError, match="can have no hidden size up to 256.*never"):
        hidden_size_for("test_sizing:never", num_parameters=1e5, **FIELDS)


def multiples_of_48(hidden_size, num_heads, layer_idx):
    """A linear map that is picky about its width."""
    if hidden_size % 48:
        raise ValueError("it must be a multiple of 48")
    return torch.nn.Linear(hidden_size, hidden_size)


def never(hidden_size, num_heads, layer_idx):
    """No width is right."""
    raise ValueError("never")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            {"num_parameters": 3},
            "no model of mixer 'transformer' comes within a factor of 2 of 3 parameters; the nearest:",
        ),
        ({"num_parameters": 1e15}, "within a factor of 2"),
        ({}, "give one of num_parameters and state_size"),
        ({"num_parameters": 1e5, "state_size": 1e5}, "give one of"),
        ({"num_parameters": float("nan")}, "num_parameters is nan; it must be a number of at least 1"),
        ({"num_parameters": "2e6"}, "num_parameters is '2e6'"),
        ({"num_parameters": True}, "num_parameters is True"),
        ({"state_size": 1e5}, "mixer 'transformer' has no state of a fixed size to match"),
        ({"num_parameters": 1e5, "hidden_size": 32}, "leave it out"),
        ({"num_parameters": 1e5, "mixer_kwargs": {"rope_thta": 1.0}}, "did you mean 'rope_theta'"),
        ({"num_parameters": 1e5, "blok": "paper"}, "did you mean 'block'"),
    ],
)
def test_bad_input_is_one_sentence(arguments, sentence):
    with pytest.raises(InputError) as caught:
        hidden_size_for("transformer", **{"num_hidden_layers": 1, **FIELDS, **arguments})
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


# ---------------------------------------------------------------- train.py


def test_flags():
    assert TrainingArguments().hidden_size == 256
    args = from_argv(["--match_params", "2e6", "--mlp", "false"])
    assert (args.match_params, args.hidden_size, args.mlp) == (2e6, None, False)
    assert args == TrainingArguments(**merge(("file", args.as_dict())))  # as the run folder keeps them
    assert from_argv(["--mlp"]).mlp is True and from_argv([]).mlp is None


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (
            ["--match_params", "2e6", "--hidden_size", "64"],
            "hidden_size and match_params both say how wide the model is",
        ),
        (["--match_params", "2e6", "--match_state", "1e5"], "match_params and match_state both"),
        (["--match_params", "0.5"], "match_params must be at least 1"),
        (["--match_params", "2M"], "match_params must be a finite number"),
        (["--match_parms", "2e6"], "did you mean '--match_params'"),
        (["--mlp", "no"], "mlp must be true or false, not 'no'"),
    ],
)
def test_flags_that_cannot_be(argv, sentence):
    with pytest.raises(InputError) as caught:
        from_argv(argv)
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def test_a_module_has_its_own_width(tmp_path):
    task = sb.get_task("lite_noisy_gaps", **TINY)
    module = torch.nn.Linear(task.num_symbols, task.num_states)
    with pytest.raises(InputError, match="a module has its own"):
        train(task, module, match_params=1e4, output_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_matched_run_says_and_records_what_it_chose_and_resumes_to_the_bit(tmp_path, capsys):
    torch.set_num_threads(1)
    common = {"match_params": 2e4, "num_hidden_layers": 1, "max_steps": 4, "save_steps": 2, "mlp": False}
    task = sb.get_task("lite_noisy_gaps", **TINY)
    whole = train(task, "transformer", output_dir=tmp_path / "whole", **common)
    said = capsys.readouterr().err
    sizing = whole.record["model"]["sizing"]
    assert f"matched: hidden_size {sizing['hidden_size']} with 4 heads has {sizing['parameters']:,} parameters" in said
    assert (sizing["matched"], sizing["wanted"]) == ("parameters", 2e4)
    assert sizing["parameters"] == whole.record["model"]["parameters"]
    assert sizing["deviation"] == pytest.approx((sizing["parameters"] - 2e4) / 2e4)
    assert whole.record["model"]["config"]["hidden_size"] == sizing["hidden_size"]
    assert whole.record["arguments"]["hidden_size"] is None and whole.record["arguments"]["match_params"] == 2e4
    assert whole.model.backbone[0].mlp is None

    given = train(
        task, "transformer", output_dir=tmp_path / "given", hidden_size=sizing["hidden_size"],
        **{k: v for k, v in common.items() if k != "match_params"},
    )  # fmt: skip
    assert (
        given.record["model"]["sizing"] is None
        and given.record["training"]["loss"] == whole.record["training"]["loss"]
    )

    def stop(run, *arguments):
        raise KeyboardInterrupt

    import selectivbench_hf.training as training

    step = training._Run.step
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(training._Run, "step", lambda run: stop(run) if run.state.step == 3 else step(run))
        train(task, "transformer", output_dir=tmp_path / "cut", **common)
    again = train(task, "transformer", output_dir=tmp_path / "cut", resume=True, **common)
    assert again.record["training"]["resumes"] == 1 and again.record["model"]["sizing"] == sizing
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name]), name


def test_resuming_by_the_command_keeps_the_match(tmp_path, capsys):
    words = [str(w) for k, v in TINY.items() for w in (f"--{k}", *(v if isinstance(v, list) else [v]))]
    base = ["--output_dir", str(tmp_path / "run"), "--resume"]
    first = ["--task", "lite_noisy_gaps", *words, "--mixer", "transformer", "--num_hidden_layers", "1"]
    assert main([*first, "--match_params", "2e4", "--max_steps", "2", *base]) == 0
    assert main(base) == 0
    assert "already finished" in capsys.readouterr().err
    assert main([*base, "--hidden_size", "64"]) == 2
    assert "both say how wide the model is" in capsys.readouterr().err
    assert main([*base, "--match_params", "3e4"]) == 2
    assert "match_params is 30000.0 here and was 20000.0 when the run began" in capsys.readouterr().err
    record, fault = results.latest(tmp_path / "run")
    assert fault is None
    results.validate(record)
    assert json.loads(json.dumps(record["model"]["sizing"]))["matched"] == "parameters"
