"""The published card: valid for the Hub's own classes, its examples run as printed, and hand-written text survives."""

import re

import pytest
import yaml

from selectivbench_hf import materialise
from selectivbench_hf.configs import MANIFEST, read_manifest
from selectivbench_hf.errors import InputError
from selectivbench_hf.hub import cards
from selectivbench_hf.tasks import get_task

REPO = "selectivbench/selectivbench"
SMALL = {"num_train": 300, "num_validation": 20, "num_test": 30}


@pytest.fixture(scope="module")
def manifests(tmp_path_factory):
    """Manifests of five small configs, one with another grammar seed."""
    folder = tmp_path_factory.mktemp("built")
    tasks = [get_task(n, **SMALL) for n in ("lite", "te1_noisy_gaps", "te1_nongrammatical_gaps", "mqar_lite")]
    tasks.append(materialise.config_named(get_task("lite", grammar_seed=2, **SMALL)))
    materialise.build(tasks, folder, progress=False)
    return {task.name: read_manifest(folder / task.name / MANIFEST) for task in tasks}


def test_the_hubs_own_classes_take_the_card(manifests):
    from huggingface_hub import DatasetCard, DatasetCardData

    text = cards.render(manifests, REPO, "v1.0.0")
    card = DatasetCard(text)
    assert isinstance(card.data, DatasetCardData)
    data = card.data.to_dict()
    assert DatasetCardData(**data).to_dict() == data
    assert data["license"] == "apache-2.0" and data["size_categories"] == ["1K<n<10K"]
    assert [c["config_name"] for c in data["configs"]] == [
        "lite",
        "lite_seed2",
        "te1_noisy_gaps",
        "te1_nongrammatical_gaps",
        "mqar_lite",
    ]
    assert [c["config_name"] for c in data["configs"] if c.get("default")] == ["lite"]
    assert {"benchmark", "synthetic", "associative-recall"} <= set(data["tags"])
    noisy = next(c for c in data["configs"] if c["config_name"] == "te1_noisy_gaps")
    assert [f["split"] for f in noisy["data_files"]] == list(manifests["te1_noisy_gaps"]["splits"])
    info = next(i for i in data["dataset_info"] if i["config_name"] == "te1_noisy_gaps")
    assert {s["name"]: s["num_examples"] for s in info["splits"]} == dict(get_task("te1_noisy_gaps", **SMALL).splits)


def test_the_card_says_what_there_is_to_know(manifests):
    text = cards.render(manifests, REPO, "v1.0.0")
    for name, manifest in manifests.items():
        assert f"| `{name}` | {manifest['data_version']} | `{manifest['fingerprint']}` |" in text
        for split in manifest["splits"].values():
            assert split["content_hash"] in text
    facts = manifests["te1_noisy_gaps"]["card"]
    for words in (
        f"{facts['entropy_nats']:.2f} nats = {facts['entropy_bits']:.2f} bits",
        "exact filter",
        "last 8",
        "def features(config, split, example_id, input_ids)",
        "Where this departs from the public reference",
        "arXiv:2601.12598",
        "arXiv:2508.19029",
        "sum the model's class probabilities",
        f"`selectivbench verify {REPO} --revision v1.0.0`",
    ):
        assert words in text, words
    assert not re.search(r"\{\{ \w+ \}\}", text)


def test_the_horizon_family_is_told_where_it_is(tmp_path):
    materialise.build([get_task("horizon_4", **SMALL)], tmp_path, progress=False)
    assert "*Horizon family.* `horizon_*` are fixed grammars" in (tmp_path / "README.md").read_text()
    materialise.build([get_task("lite", **SMALL)], tmp_path / "lite", progress=False)
    assert "Horizon family" not in (tmp_path / "lite/README.md").read_text()


def test_every_table_of_the_card_has_its_columns(manifests):
    """A cell with a bar or a line break would break a table where the Hub draws it."""
    tables, rows = 0, []
    for line in [*cards.render(manifests, REPO, "v1.0.0").splitlines(), ""]:
        if line.startswith("|"):
            rows.append(line.count("|"))
        elif rows:
            assert len(set(rows)) == 1 and len(rows) > 2, (line, rows)
            tables, rows = tables + 1, []
    assert tables >= 8


def test_the_examples_run_as_printed(hub, client, script, tmp_path):
    """With and without the package, in the order of the card: both score the same baseline, to the item."""
    names = []
    for name in ("te1_noisy_gaps", "mqar_lite"):
        path = tmp_path / f"{name}.json"
        path.write_text(get_task(name, **SMALL).to_json())
        names.append(path)
    client("alice")(["push", REPO, "--tag", "v1.0.0", "--tasks", *names])
    card = cards.render(
        {p.stem: read_manifest(tmp_path / "selectivbench" / p.stem / MANIFEST) for p in names}, REPO, "v1.0.0"
    )
    printed = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert len(printed) == 7
    alone = [code for code in printed if "selectivbench_hf" not in code]
    assert len(alone) == 5
    out = script(None)("import sys\nsys.modules['selectivbench_hf'] = None\n" + "\n".join(alone))
    said = re.compile(r"(accuracy [0-9.]+% of [0-9,]+ (?:items|questions))")
    alone, both = said.findall(out), said.findall(script(None)("\n".join(printed)))
    assert [line.split(" of ")[1] for line in alone] == ["6,000 items", "120 questions"]
    assert both == [alone[0], alone[0], alone[1], alone[1]]


def test_notes_are_kept_and_other_edits_are_seen(manifests):
    card = cards.render(manifests, REPO, "v1.0.0", "\nWritten **by hand**.\n\n| a |\n")
    assert cards.notes_of(card, "the card") == "\nWritten **by hand**.\n\n| a |\n"
    assert cards.notes_of(card.replace("\n", "\r\n"), "the card") == "\nWritten **by hand**.\n\n| a |\n"
    again = cards.render(manifests, REPO, "v1.1.0", cards.notes_of(card, "the card"))
    assert "Written **by hand**." in again and 'revision="v1.1.0"' in again
    edited = card.replace(cards.START, cards.START + "\nmore")
    assert cards.notes_of(edited, "the card").startswith("\nmore")
    for change, sentence in [
        (lambda c: c.replace("apache-2.0", "mit"), "edited outside of its notes"),
        (lambda c: c + "\nmore", "edited outside of its notes"),
        (lambda c: c.replace("Made by `selectivbench push`", "Made by hand"), "was not written by"),
        (lambda c: c.replace(cards.END, ""), "lacks the marks of its notes"),
        (lambda c: c.replace(cards.START, cards.END + cards.START), "lacks the marks of its notes, or has them twice"),
        (lambda c: "", "was not written by"),
    ]:
        with pytest.raises(InputError, match=sentence):
            cards.notes_of(change(card), "the card")
    assert cards.notes_of(card + "\nmore", "the card", replace=True) == cards.notes_of(card, "the card")
    assert cards.notes_of(card.replace(cards.END, ""), "the card", replace=True) == "\n"


def test_local_and_published_cards_differ_in_where_they_load_from(manifests):
    from selectivbench_hf import datacard

    local, published = datacard.render(manifests), cards.render(manifests, REPO, "v1.0.0")
    assert 'load_dataset("./selectivbench", "te1_noisy_gaps")' in local and "revision=" not in local
    assert (
        f'load_dataset("{REPO}", "te1_noisy_gaps", revision="v1.0.0")' in published
        and "./selectivbench" not in published
    )
    front = [yaml.safe_load(card.split("---\n")[1]) for card in (local, published)]
    assert front[0] == front[1]
