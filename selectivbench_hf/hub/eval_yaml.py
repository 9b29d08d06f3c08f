"""`eval.yaml`, by which the Hub makes a data set a benchmark: written from the configs, and checked strictly wherever it comes from.

The Hub's own check asks for name, description, evaluation_framework and each task's id; here nothing may be unknown, doubled or missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..datacard import HEADLINE
from ..errors import InputError, unknown

FILE = "eval.yaml"
FRAMEWORK = "selectivbench"  # must be in the Hub's closed list of evaluation frameworks: docs/registering.md
NAME = "SelectivBench"
DESCRIPTION = (
    "What a sequence model keeps and what it ignores: states of random grammars under gaps, noise and distractors, and recall. "
    "The score is the accuracy in per cent on a test drawn from the hash of the submitted weights."
)
LIMIT = 64 << 10  # bytes
KEYS = ("name", "description", "evaluation_framework", "tasks")
TASK_KEYS = ("id", "config", "split")


def headline_first(names: Iterable[str]) -> list[str]:
    """The names in their order, but the headline task first: the Hub shows the first task where none is asked for."""
    names = list(names)
    return [n for n in names if n == HEADLINE] + [n for n in names if n != HEADLINE]


def render(configs: Iterable[str]) -> str:
    """The file for a data set's configs: one task each, scored on its split `test`."""
    import yaml

    tasks = [{"id": name, "config": name, "split": "test"} for name in headline_first(configs)]
    data = {"name": NAME, "description": DESCRIPTION, "evaluation_framework": FRAMEWORK, "tasks": tasks}
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)


def check(text, where: str = FILE, configs: Mapping[str, Iterable[str]] | None = None) -> dict:
    """The content of an eval.yaml if it is one of this benchmark, else an InputError for the first thing that is wrong.

    Args:
        text: the file, str or UTF-8 bytes of at most `LIMIT`.
        where: what messages call it.
        configs: config -> splits of the data set that it belongs to; default the catalogue's tasks, `_seedN` names too.
    """
    from .untrusted import keys, plain_text, strict_yaml

    data = keys(strict_yaml(text, where, LIMIT), KEYS, where)
    plain_text(data["name"], f"{where}: name", 100)
    plain_text(data["description"], f"{where}: description", 500)
    if data["evaluation_framework"] != FRAMEWORK:
        raise unknown("evaluation_framework", data["evaluation_framework"], [FRAMEWORK], where)
    if not isinstance(data["tasks"], list) or not data["tasks"]:
        raise InputError(f"{where}: tasks must be a list of at least one task")
    ids, places = set(), set()
    for number, task in enumerate(data["tasks"], 1):
        keys(task, TASK_KEYS, f"{where}: task {number}")
        splits = _splits(task["config"], where, configs)
        if task["split"] not in splits:
            raise unknown("split", task["split"], splits, f"{where}: {task['config']}")
        if task["id"] != task["config"] and task["split"] == "test":
            raise InputError(
                f"{where}: the task of {task['config']}'s test must have that id, got {str(task['id'])[:60]!r}"
            )
        plain_text(task["id"], f"{where}: id of task {number}", 120)
        if task["id"] in ids or (task["config"], task["split"]) in places:
            raise InputError(f"{where}: {task['id']} stands twice")
        ids.add(task["id"])
        places.add((task["config"], task["split"]))
    if data["tasks"] and HEADLINE in ids and data["tasks"][0]["id"] != HEADLINE:
        raise InputError(f"{where}: the headline task {HEADLINE} must stand first, got {data['tasks'][0]['id']}")
    return data


def _splits(config, where, configs) -> list[str]:
    from ..tasks import get_task, task_names

    if configs is not None:
        if not isinstance(config, str) or config not in configs:
            raise unknown("config", str(config)[:100], configs, where)
        return list(configs[config])
    try:
        if not isinstance(config, str) or config.lstrip()[:1] in ("{", "[") or config.endswith(".json"):
            raise InputError("")
        return list(get_task(config).splits)
    except InputError:
        raise unknown("task", str(config)[:100], task_names(), where) from None
