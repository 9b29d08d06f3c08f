"""`selectivbench verify`: a published or built data set held against its manifests, its card and the generator. Nothing of it is trusted.

Every difference is named, not the first alone: a file that is missing, damaged or in no manifest; sizes, columns and splits that the card states
otherwise; a content hash; a sequence that stands in two splits; a task that is not the manifest's; values that the generator does not draw.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from ..configs import MANIFEST, MANIFEST_FORMAT, TASK, check_name, files_of
from ..errors import InputError, unknown
from ..parquet import file_hash
from . import untrusted
from .data_files import DataFiles
from .verify_card import CARD, EVAL, card_differences, eval_differences
from .verify_split import Difference, check_split

SAMPLE = 1000  # rows of a split drawn again: all of a published validation or test split
MOST_JSON, MOST_FILE = 4 << 20, 4 << 30  # bytes: of manifest.json or task.json, of a data file
ROOT = {CARD, EVAL, ".gitattributes", ".build.lock"}  # files beside the configs


def verify(
    files: DataFiles,
    names: Sequence[str] | None = None,
    sample: int | None = SAMPLE,
    progress: bool = False,
) -> list[dict]:
    """Check every config of a data set, or those in `names`.

    Args:
        sample: rows of each split that are drawn again and compared, None for all.

    Returns:
        One dict for each config and, first, one for what belongs to none: name, splits, sequences, files, bytes, drawn_again (sequences),
        changed (how the task differs from the catalogue's of that name, as text), seconds, differences (list of Difference).

    Raises:
        InputError: it holds no config, or none of that name.
        HubFailure: a download failed.
    """
    found = sorted({path.split("/")[0] for path in files.listing if "/" in path})
    if not any(f"{name}/{MANIFEST}" in files.listing for name in found):
        raise InputError(f"{files.where} holds no config of SelectivBench (no NAME/{MANIFEST})")
    for name in names or ():
        if name not in found:
            raise unknown("config", name, found, files.where)
    chosen = [name for name in found if names is None or name in names]
    began = time.perf_counter()
    own = [
        Difference("it is no part of a published data set", file=_printable(path))
        for path in sorted(files.listing)
        if "/" not in path and path not in ROOT
    ]
    rows, manifests = [], {}
    with _Progress(progress) as bar:
        for name in chosen:
            row, manifests[name] = _config(files, name, sample, bar)
            rows.append(row)
    sound = {name: manifest for name, manifest in manifests.items() if manifest is not None}
    own += _versions(sound)
    own += card_differences(files, sound, found if names is None else None)
    own += eval_differences(files, sound if sound.keys() == set(found) else None)
    first = _row(files.where, began, own) | {"files": sum("/" not in p for p in files.listing)}
    first["bytes"] = sum(file["size"] for path, file in files.listing.items() if "/" not in path)
    return [first, *rows]


def _printable(path: str) -> str:
    """A name from outside in printable ASCII."""
    return untrusted.shown(path)[1:-1]


def _row(name, began, differences) -> dict:
    counts = dict.fromkeys(("splits", "sequences", "files", "bytes", "drawn_again"), 0)
    seconds = round(time.perf_counter() - began, 2)
    return {"name": name, **counts, "changed": "", "seconds": seconds, "differences": differences}


# -- one config ----------------------------------------------------------------------------------------------------------


def _config(files: DataFiles, name: str, sample, bar) -> tuple[dict, dict | None]:
    """The row of a config, and its manifest where that is sound, with the columns that its task has."""
    began, differences = time.perf_counter(), []

    def differ(what, **where):
        differences.append(Difference(what, config=_printable(name), **where))

    inside = {path.partition("/")[2]: file for path, file in files.listing.items() if path.startswith(f"{name}/")}
    try:
        check_name(name)
        manifest = read_manifest(files, name)
    except InputError as error:
        differ(str(error), file=MANIFEST)
        return _row(_printable(name), began, differences), None
    for path in sorted(set(inside) - set(files_of(manifest)) - {MANIFEST}):
        differ("it is not in the manifest", file=_printable(path))
    for path, stated in files_of(manifest).items():
        if path not in inside:
            differ("it is missing", file=path)
            continue
        size, most = inside[path]["size"], MOST_JSON if path == TASK else MOST_FILE
        if size != stated["bytes"]:
            differ(f"it has {size:,} bytes, the manifest says {stated['bytes']:,}", file=path)
        if size > most:
            differ(f"it has {size:,} bytes; at most {most:,} are read", file=path)
        elif (sha := file_hash(files.path(f"{name}/{path}"))) != stated["sha256"]:
            differ(f"its SHA-256 is {sha}, the manifest says {stated['sha256']}", file=path)
    row = _row(name, began, differences)
    row |= {"files": len(inside), "bytes": sum(file["size"] for file in inside.values())}
    task = _task(files, name, manifest, inside, differ)
    if task is not None:
        row |= _splits(files, name, task, manifest, inside, sample, bar, differences)
    manifest = manifest | {"card": {} if task is None else _columns(task)}
    row["seconds"] = round(time.perf_counter() - began, 2)
    return row, manifest


def _columns(task) -> dict:
    from ..datacard import column_types

    return {"family": task.family, "column_types": column_types(task)}


def _task(files, name, manifest, inside, differ):
    """The task of task.json, where it is the manifest's; None where there is nothing to compare the data with."""
    from ..tasks import get_task

    if TASK not in inside or inside[TASK]["size"] > MOST_JSON:
        return None
    try:
        path = files.path(f"{name}/{TASK}")
        data = untrusted.strict_json(untrusted.read_bytes(path, MOST_JSON), TASK, MOST_JSON)
        if not isinstance(data, dict):
            raise InputError(f"{TASK} is no JSON object")
        _refuse_outside_data(data)
        task = get_task(data)
        fingerprint = task.fingerprint
    except InputError as error:
        differ(f"no task can be made from it, so the data were not compared with the generator: {error}", file=TASK)
        return None
    if data.get("data_version") != manifest["data_version"]:
        differ(
            f"it is of data version {data.get('data_version')}, the manifest of {manifest['data_version']}", file=TASK
        )
    if task.name != name:
        differ(f"it is the task {untrusted.shown(task.name)}", file=TASK)
    if fingerprint != manifest["fingerprint"]:
        differ(
            f"the generator gives it the fingerprint {fingerprint}, the manifest says {manifest['fingerprint']}",
            file=TASK,
        )
    if {s: entry["num_sequences"] for s, entry in manifest["splits"].items()} != task.splits:
        sizes = ", ".join(f"{split} {size:,}" for split, size in task.splits.items())
        differ(f"the splits or their sizes are not the task's, which are {sizes}", file=MANIFEST)
    return task


def _refuse_outside_data(data: dict) -> None:
    """A published task holds all that it needs: neither a data set nor a file that it names is ever looked for."""
    if data.get("symbols") is not None:
        raise InputError("its symbols are not one-hot, which no published rows are")
    if data.get("custom_grammar") is not None and not isinstance(data["custom_grammar"], dict):
        raise InputError("custom_grammar must be the grammar itself")


def _splits(files, name, task, manifest, inside, sample, bar, differences) -> dict:
    def place(file_name):
        file = inside.get(file_name)
        return None if file is None or file["size"] > MOST_FILE else files.path(f"{name}/{file_name}")

    hashes, drawn = {}, 0
    for split, entry in manifest["splits"].items():
        if split not in task.splits:  # said by _task
            continue
        if entry["fingerprint"] != task.split_fingerprint(split):
            what = f"the generator gives the split the fingerprint {task.split_fingerprint(split)}, the manifest says {entry['fingerprint']}"
            differences.append(Difference(what, config=name, split=split, file=MANIFEST))
        check = check_split(task, split, entry, place, sample, bar.update)
        differences += [replace(d, config=name) for d in check.differences]
        hashes[split] = check.hashes
        drawn += check.drawn
    differences += [replace(d, config=name) for d in _meetings(hashes)]
    sequences = sum(entry["num_sequences"] for entry in manifest["splits"].values())
    return {
        "splits": len(manifest["splits"]),
        "sequences": sequences,
        "drawn_again": drawn,
        "changed": _changed(task),
    }


def _changed(task) -> str:
    from ..datacard import changed

    return ", ".join(f"{key}={value}" for key, value in changed(task).items())


def _meetings(hashes: dict[str, np.ndarray]) -> list[Difference]:
    """Splits that share a sequence. The test splits of other gaps hold the items of `test` by design, so they are not held against each other."""
    out = []
    for one, other in combinations(hashes, 2):
        if one.startswith("test") and other.startswith("test"):
            continue
        meet = np.isin(hashes[one], hashes[other])
        if meet.any():
            what = f"{meet.sum():,} of its sequences stand in {other} too, so the splits are not disjoint"
            out.append(Difference(what, split=one, row=int(np.argmax(meet))))
    return out


# -- the manifest --------------------------------------------------------------------------------------------------------


def read_manifest(files: DataFiles, name: str) -> dict:
    """The manifest of a config, every part of it that is used checked; InputError with what is wrong."""
    path = f"{name}/{MANIFEST}"
    if path not in files.listing:
        raise InputError("it is missing")
    size = files.listing[path]["size"]
    if size > MOST_JSON:
        raise InputError(f"it has {size:,} bytes; at most {MOST_JSON:,} are read")
    data = untrusted.strict_json(untrusted.read_bytes(files.path(path), MOST_JSON), "it", MOST_JSON)
    if not isinstance(data, dict) or data.get("format") != MANIFEST_FORMAT:
        raise InputError(f"it is no manifest of the format {MANIFEST_FORMAT}")
    if data.get("name") != name:
        raise InputError(f"it is the manifest of {untrusted.shown(data.get('name'))}")
    _hex(data.get("fingerprint"), "fingerprint")
    if not re.fullmatch(r"\d{1,4}\.\d{1,4}\.\d{1,4}", str(data.get("data_version"))):
        raise InputError(f"data_version must be three numbers, got {untrusted.shown(data.get('data_version'))}")
    if not isinstance(data.get("splits"), dict) or not data["splits"]:
        raise InputError("splits must be an object with a split at least")
    for split, entry in data["splits"].items():
        _split_entry(split, entry)
    _file_entry(data.get("task_file"), "task_file", TASK)
    if not isinstance(data.get("card"), dict):
        raise InputError("card must be an object")
    return data


def _split_entry(split, entry):
    where = f"the split {untrusted.shown(split)}"
    if not re.fullmatch(r"train|validation|test|test_gap_[0-9]{1,6}", split):
        raise InputError(f"{where} has no name of a split")
    if not isinstance(entry, dict):
        raise InputError(f"{where} must be an object")
    for key in ("num_sequences", "num_bytes"):
        _count(entry.get(key), f"{key} of {where}")
    for key in ("content_hash", "fingerprint"):
        _hex(entry.get(key), f"{key} of {where}")
    if not isinstance(entry.get("files"), list) or not 1 <= len(entry["files"]) <= 1000:
        raise InputError(f"files of {where} must be a list of 1 to 1,000")
    for number, file in enumerate(entry["files"]):
        _file_entry(file, f"file {number} of {where}", f"{split}-{number:05d}-of-{len(entry['files']):05d}.parquet")
        _count(file.get("rows"), f"rows of file {number} of {where}")
    if sum(file["rows"] for file in entry["files"]) != entry["num_sequences"]:
        raise InputError(f"the rows of the files of {where} do not add up to {entry['num_sequences']:,}")


def _file_entry(file, where, name):
    """A file has the one name that a build gives it, so no name can lead out of the folder."""
    if not isinstance(file, dict) or file.get("name") != name:
        got = file.get("name") if isinstance(file, dict) else file
        raise InputError(f"{where} must be named {name}, got {untrusted.shown(got)}")
    _count(file.get("bytes"), f"bytes of {where}")
    _hex(file.get("sha256"), f"sha256 of {where}")


def _count(value, where):
    if type(value) is not int or value < 0:
        raise InputError(f"{where} must be a whole number of at least 0, got {untrusted.shown(value)}")


def _hex(value, where):
    if not isinstance(value, str) or not re.fullmatch(r"[0-9a-f]{64}", value):
        raise InputError(f"{where} must be 64 hex digits, got {untrusted.shown(value)}")


def _versions(manifests) -> list[Difference]:
    versions = sorted({manifest["data_version"] for manifest in manifests.values()})
    if len(versions) < 2:
        return []
    which = "; ".join(f"{v}: {', '.join(n for n, m in manifests.items() if m['data_version'] == v)}" for v in versions)
    return [Difference(f"the configs are of several data versions ({which})")]


class _Progress:
    """A progress bar of the sequences read, on stderr where that is a terminal."""

    def __init__(self, show: bool):
        from tqdm import tqdm

        self._bar = tqdm(unit=" sequences", desc="verify", disable=None if show else True, mininterval=0.2)
        self.update = self._bar.update

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._bar.close()
