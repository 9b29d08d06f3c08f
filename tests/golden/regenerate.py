"""Write tests/golden/content_hashes.json: the content hash of every split of every config at reduced size.

    python tests/golden/regenerate.py

A changed hash is a change of published bytes: it needs a new major DATA_VERSION, never a new file alone.
"""

import json
from pathlib import Path

from selectivbench_hf import get_task, task_names
from selectivbench_hf.builder import content_hash, iterate_tables

RECALL_SIZES = {"num_train": 24, "num_validation": 5, "num_test": 5}
SIZES = {**RECALL_SIZES, "num_items": 70}


def hashes(name: str) -> dict[str, str]:
    task = get_task(name, **(SIZES if get_task(name).family == "grammar" else RECALL_SIZES))
    return {split: content_hash(iterate_tables(task, split)) for split in task.splits}


if __name__ == "__main__":
    path = Path(__file__).parent / "content_hashes.json"
    path.write_text(json.dumps({name: hashes(name) for name in task_names()}, indent=1) + "\n")
    print(path)
