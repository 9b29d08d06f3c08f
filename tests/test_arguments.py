"""Flags, YAML and keywords are one set of names with one set of types."""

import dataclasses

import pytest

from selectivbench_hf.arguments import (
    TrainingArguments,
    from_argv,
    load_yaml,
    make_parser,
    merge,
    task_keywords,
    to_yaml,
)
from selectivbench_hf.errors import InputError


def from_yaml(tmp_path, text, *flags):
    (tmp_path / "recipe.yaml").write_text(text)
    return from_argv(["--config", str(tmp_path / "recipe.yaml"), *flags])


def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path):
    args = from_yaml(
        tmp_path, "learning_rate: 1e-4\nhidden_size: 32\nnum_train: 100\n", "--hidden_size", "16", "--num_items=5"
    )
    assert (args.learning_rate, args.hidden_size, args.num_hidden_layers) == (1e-4, 16, 8)
    assert args.task_kwargs == {"num_train": 100, "num_items": 5}


def test_yaml_says_what_it_means(tmp_path):
    args = from_yaml(
        tmp_path,
        """
learning_rate: 1e-3            # text for YAML 1.1
adam_epsilon: 1E-9
weight_decay: .5
mixed_precision: no            # False for YAML 1.1
output_dir: 2026-11-30         # a date for YAML 1.1
mixer: on
max_steps: 20
resume: false
num_heads: ~
warmup_steps: null
mixer_kwargs: {expand_k: 1.5, mode: chunk, use_gk: true, clamp: 1e-2, other: "no"}
eval_splits: [test, test_gap_5]
test_gaps: [1, 5]
noise: none
""",
    )
    assert args.learning_rate == 1e-3 and args.adam_epsilon == 1e-9 and args.weight_decay == 0.5
    assert args.mixed_precision == "no" and args.output_dir == "2026-11-30" and args.mixer == "on"
    assert args.max_steps == 20 and args.resume is False and args.num_heads is args.warmup_steps is None
    assert args.mixer_kwargs == {"expand_k": 1.5, "mode": "chunk", "use_gk": True, "clamp": 0.01, "other": "no"}
    assert args.eval_splits == ["test", "test_gap_5"] and args.task_kwargs["test_gaps"] == [1, 5]
    assert args.task_kwargs["noise"] == "none"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("hiden_size: 3", "unknown argument 'hiden_size' in {file}; did you mean 'hidden_size'"),
        ("num_trian: 3", "did you mean 'num_train'"),
        ("max_steps: 010", "max_steps must be a whole number"),
        ("max_steps: 1_0:30", "whole number"),
        ("max_steps: 1e3", "max_steps must be a whole number such as 64, not '1e3'"),
        ("max_steps: 0", "max_steps must be at least 1"),
        ("resume: yes", "resume must be true or false, not 'yes'"),
        ("learning_rate: .inf", "learning_rate must be a finite number"),
        ("learning_rate: 1e-3 1e-4", "learning_rate must be a finite number"),
        ("learning_rate: -1", "learning_rate must be at least 0"),
        ("learning_rate: 0", "learning_rate must be above 0"),
        ("dropout: 1.0", "dropout must lie in [0, 1)"),
        ("mixer_kwargs: {a: no}", "mixer_kwargs.a: 'no' is read differently"),
        ("mixer_kwargs: {a: 010}", "'010' is read differently"),
        ("mixer_kwargs: {a: 12:30}", "'12:30' is read differently"),
        ("mixer_kwargs: {a: 2026-01-01}", "'2026-01-01' is read differently"),
        ("mixer_kwargs: [1]", "mixer_kwargs must be a mapping"),
        ("num_train: 1_000", "num_train: '1_000' is read differently"),
        ("max_steps: 1\nmax_steps: 2", "'max_steps' stands twice"),
        ("task: !!python/object:os.system x", "are not allowed"),
        ("- a\n- b", "must hold a mapping"),
        ("a: [", "is not valid YAML"),
        ("mixer_kwargs: &a [*a]", "an alias such as *name stands inside the value that it names"),
        ("mixer_kwargs: &a {b: *a}", "an alias such as *name stands inside the value that it names"),
        ("mixer_kwargs: " + "[" * 5000 + "]" * 5000, "nests too deeply"),
        ("mixer_kwargs: {a: " + "9" * 5000 + "}", "is too large a whole number"),
        ("model_seed: " + "9" * 23, "model_seed must be a whole number from 0 to 9223372036854775807"),
        ("mixer_kwargs: {a: 1e999}", "mixer_kwargs.a: 1e999 is too large a number"),
        ("lr: 1e-3", "did you mean 'learning_rate'?"),
        ("block: papr", "unknown block 'papr'; did you mean 'paper'"),
        ("mixed_precision: fp16", "unknown mixed_precision 'fp16'"),
        ("resume: true", "--resume needs --output_dir"),
    ],
)
def test_what_a_file_may_not_say(tmp_path, text, sentence):
    with pytest.raises(InputError) as caught:
        from_yaml(tmp_path, text)
    assert sentence.format(file=str(tmp_path / "recipe.yaml")).split("; did")[0] in str(caught.value)
    assert sentence.split("{file}")[-1] in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--hiden_size", "3"], "unknown flag '--hiden_size'; did you mean '--hidden_size'"),
        (["--learning-rate", "3"], "did you mean '--learning_rate'"),
        (
            ["--learning", "3"],
            "unknown flag '--learning'",
        ),  # no abbreviations: they change meaning when flags are added
        (["--grammar_sed=3"], "did you mean '--grammar_seed'"),
        (["runs/gla"], "unexpected argument 'runs/gla'"),
        (["--max_steps"], "expected one argument"),
        (["--mixer_kwargs", "{a}"], "mixer_kwargs must be a JSON object"),
        (["--mixer_kwargs", '{"a": NaN}'], "NaN is not JSON"),
        (["--task_kwargs", '{"num_trian": 3}'], "unknown builder keyword 'num_trian'"),
        (["--num_train", "no"], "'no' is read differently"),
        (["--mixer_kwargs", '{"a": 1, "b": {"c": 1, "c": 2}}'], "the key 'c' stands twice"),
        (["--train_gap", '{"1": 2, "1": 3}'], "the key '1' stands twice"),
        (["--mixer_kwargs", '{"a": ' + "9" * 5000 + "}"], "a whole number of 5,000 digits is too large"),
        (["--mixer_kwargs", '{"a": 1e999}'], "1e999 is too large a number"),
        (["--mixer_kwargs", "[" * 100_000], "nests too deeply"),
        (["--model_seed", "9" * 23], "model_seed must be a whole number from 0 to 9223372036854775807"),
        (["--model_seed", str(2**63)], "from 0 to 9223372036854775807"),
        (["--data_seed", "-1"], "data_seed must be at least 0"),
        (["--max_steps", "9" * 5000], "(5,000 characters)"),
        (["--num_train", "9" * 5000], "is too large a whole number"),
        (["--lr", "1e-3"], "unknown flag '--lr'; did you mean '--learning_rate'?"),
        (["--batch-size", "8"], "did you mean '--per_device_train_batch_size'?"),
        (["--epochs", "8"], "did you mean '--num_train_epochs'?"),
        (["--eval_splits", "test", "test"], "eval_splits names 'test' twice"),
        (["--config", "/nowhere"], "cannot read the configuration file '/nowhere': No such file"),
    ],
)
def test_what_flags_may_not_say(argv, sentence):
    with pytest.raises(InputError, match="(?s).*") as caught:
        from_argv(argv)
    assert sentence in str(caught.value)


def test_flags_with_values_of_every_kind():
    args = from_argv(
        [
            "--eval_splits",
            "test",
            "test_gap_5",
            "--test_gaps",
            "10",
            "5",
            "--mixer_kwargs",
            '{"expand_k": 1}',
            "--train_gap",
            '{"1": 2, "3": 1}',
            "--task",
            "lite",
        ]
        + ["--all_reachable", "true", "--noise_scale", "1e-1", "--resume", "--output_dir", "/nowhere/run"]
    )
    assert args.eval_splits == ["test", "test_gap_5"] and args.resume is True
    assert args.task_kwargs == {
        "test_gaps": [10, 5],
        "train_gap": {"1": 2, "3": 1},
        "all_reachable": True,
        "noise_scale": 0.1,
    }
    assert from_argv(["--test_gaps", "10"]).task_kwargs == {"test_gaps": [10]}
    assert from_argv(["--eval_splits", "none"]).eval_splits == []
    assert from_argv(["--eval_splits", "test,test_gap_5"]).eval_splits == ["test", "test_gap_5"]


def test_every_field_is_a_flag_and_survives_the_file(tmp_path):
    flags = {o for action in make_parser()._actions for o in action.option_strings}
    assert {f"--{f.name}" for f in dataclasses.fields(TrainingArguments)} | {
        f"--{n}" for n in task_keywords()
    } <= flags
    args = TrainingArguments(
        task="lite", task_kwargs={"num_train": 3, "test_gaps": [1, 5], "noise": "none"}, mixer_kwargs={"a": 1e-5, "b": "no", "c": None, "d": [1, "2"]},
        eval_splits=[], learning_rate=1e-05, mixed_precision="no", output_dir="a b: c",
    )  # fmt: skip
    (tmp_path / "saved.yaml").write_text(to_yaml(args))
    assert TrainingArguments(**merge(("file", load_yaml(tmp_path / "saved.yaml")))) == args
    import yaml

    plain = yaml.safe_load(
        to_yaml(args)
    )  # any other reader sees the same but for 1e-05, which YAML 1.1 takes for text
    assert {k: v for k, v in plain.items() if "rate" not in k and k not in ("adam_epsilon", "mixer_kwargs")} == {
        k: v
        for k, v in args.as_dict().items()
        if "rate" not in k and k not in ("adam_epsilon", "mixer_kwargs", "resume")
    }


def test_python_values_are_checked_as_text_is():
    assert TrainingArguments(learning_rate=1, max_steps="20").learning_rate == 1.0
    for bad in (
        {"max_steps": 1.5},
        {"max_steps": True},
        {"learning_rate": float("nan")},
        {"resume": 1},
        {"mixer_kwargs": [1]},
        {"dropout": None},
    ):
        with pytest.raises(InputError):
            TrainingArguments(**bad)
    import numpy as np

    assert TrainingArguments(hidden_size=np.int64(8)).as_dict()["hidden_size"] == 8
