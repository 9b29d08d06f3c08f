"""eval.yaml: what is written is what the Hub asks for, and what is read is held to it strictly."""

import pytest
import yaml

from selectivbench_hf.errors import InputError
from selectivbench_hf.hub import eval_yaml
from selectivbench_hf.tasks import task_names

GOOD = {
    "name": "SelectivBench",
    "description": "Selective memory.",
    "evaluation_framework": "selectivbench",
    "tasks": [
        {"id": "te3_noisy_gaps", "config": "te3_noisy_gaps", "split": "test"},
        {"id": "te1", "config": "te1", "split": "test"},
    ],
}


def test_the_headline_stands_first_and_every_config_once():
    text = eval_yaml.render(task_names())
    data = eval_yaml.check(text)
    assert data == yaml.safe_load(text)
    ids = [task["id"] for task in data["tasks"]]
    assert ids[0] == "te3_noisy_gaps" and sorted(ids) == sorted(task_names())
    assert data["evaluation_framework"] == "selectivbench"
    assert all(set(task) == {"id", "config", "split"} and task["split"] == "test" for task in data["tasks"])


def test_the_loopback_hub_takes_it():
    from .loopback_hub import checks

    assert checks.eval_yaml_faults(yaml.safe_load(eval_yaml.render(["te1", "lite"])), {"selectivbench"}) == []


def test_configs_of_the_data_set_decide_where_they_are_known():
    configs = {"mine": ["train", "validation", "test"], "te1": ["train", "test"]}
    text = eval_yaml.render(configs)
    assert [task["config"] for task in eval_yaml.check(text, configs=configs)["tasks"]] == ["mine", "te1"]
    with pytest.raises(InputError, match="unknown task 'mine'"):
        eval_yaml.check(text)
    with pytest.raises(InputError, match="unknown config 'lite'"):
        eval_yaml.check(eval_yaml.render(["lite"]), configs=configs)
    with pytest.raises(InputError, match="unknown config"):
        eval_yaml.check(task(config=["te1"], id="te1"), configs={"te3_noisy_gaps": ["test"]})


def changed(**values):
    return yaml.safe_dump(GOOD | values, sort_keys=False)


def task(**values):
    return changed(tasks=[GOOD["tasks"][0], GOOD["tasks"][1] | values])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (changed(extra=1), "unknown key 'extra' in eval.yaml"),
        (changed(descripton="x"), "did you mean 'description'"),
        (yaml.safe_dump({k: v for k, v in GOOD.items() if k != "description"}), "eval.yaml lacks 'description'"),
        (changed(evaluation_framework="inspect-ai"), "unknown evaluation_framework 'inspect-ai'"),
        (changed(name=""), "name is empty"),
        (changed(name=7), "name must be text"),
        (changed(description="<script>alert(1)</script>"), "must not hold '<' or '>'"),
        (changed(description="x" * 501), "at most 500"),
        (changed(tasks=[]), "at least one task"),
        (changed(tasks={}), "at least one task"),
        (changed(tasks=["te1"]), "task 1 must be a mapping"),
        (changed(tasks=GOOD["tasks"][::-1]), "headline task te3_noisy_gaps must stand first"),
        (changed(tasks=[GOOD["tasks"][0], dict(GOOD["tasks"][0])]), "te3_noisy_gaps stands twice"),
        (task(id="te9"), "must have that id, got 'te9'"),
        (task(id=None), "must have that id"),
        (task(id="te1_noisy_gaps", config="te1_noisy_gaps", split="test_gap_7"), "unknown split 'test_gap_7'"),
        (task(config="te11", id="te11"), "unknown task 'te11'"),
        (task(config='{"name": "te1"}', id="te1"), "unknown task"),
        (task(config="/etc/passwd.json", id="te1"), "unknown task"),
        (task(config=["te1"], id="te1"), "unknown task"),
        (task(solvers=[]), "unknown key 'solvers'"),
        (task(config="te1", split="test", id="te1") + "name: twice\n", "stands twice"),
        ("a: &x [1]\nb: *x\n", "anchors"),
        ("!!python/object:os.system {}", "tags such as"),
        ("- 1", "must be a mapping"),
        ("", "must be a mapping"),
        (b"\xff\xfe", "not UTF-8"),
        ("x: " + "y" * (65 << 10), "is longer than"),
        (changed().replace("te1", "te1\x00"), "no valid YAML"),
    ],
)
def test_everything_else_is_refused_in_one_sentence(text, sentence):
    with pytest.raises(InputError, match=sentence) as error:
        eval_yaml.check(text)
    assert "\n" not in str(error.value) and len(str(error.value)) < 700


def test_a_second_split_of_a_config_may_have_a_name_of_its_own():
    more = {"id": "te1_noisy_gaps, gap 100", "config": "te1_noisy_gaps", "split": "test_gap_100"}
    data = eval_yaml.check(changed(tasks=[*GOOD["tasks"], more]))
    assert data["tasks"][2] == more
