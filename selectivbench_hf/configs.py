"""One config in a built folder: its name, which files are its own, its manifest, and what is wrong with them."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from .errors import InputError
from .parquet import file_hash
from .values import Plain, plain_value

MANIFEST = "manifest.json"
MANIFEST_FORMAT = "selectivbench-build-1"
TASK = "task.json"
LONGEST_NAME = 100

DATA_FILE = re.compile(r"(train|validation|test|test_gap_[0-9]+)-[0-9]{5}-of-[0-9]{5}\.parquet")


def check_name(name) -> None:
    """Refuse a name that cannot be a folder, a glob without wildcards and a YAML word at once: `load_dataset` needs all three."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name) or name.endswith("."):
        raise InputError(
            f"{name!r} cannot name a config; a name is made of the letters A to Z and a to z, digits, '_', '-' and '.', "
            "begins with a letter, a digit or '_', and does not end with '.'"
        )
    if len(name) > LONGEST_NAME:
        raise InputError(
            f"the name {name[:20]}... of a config has {len(name)} characters; at most {LONGEST_NAME} are allowed"
        )
    if name.lower() == "readme.md":
        raise InputError(f"{name!r} cannot name a config: the data card has that name")
    try:
        word = isinstance(plain_value(Plain(name), "name"), str)
    except InputError:
        word = False
    if not word:
        raise InputError(f"{name!r} cannot name a config: YAML readers take it for a number, a date or a truth value")


def read_manifest(path: Path) -> dict | None:
    """The manifest in a file, None where it is none."""
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest["format"] != MANIFEST_FORMAT:
            return None
        files_of(manifest), manifest["name"], manifest["fingerprint"], manifest["data_version"], manifest["card"]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return manifest


def files_of(manifest: dict) -> dict[str, dict]:
    """Name -> size and hash of each file of a config but the manifest itself."""
    files = [file for split in manifest["splits"].values() for file in split["files"]]
    return {file["name"]: file for file in [*files, manifest["task_file"]]}


def damage(folder: Path, manifest: dict, hashes: bool) -> str:
    """What is wrong with a config's files, or ''."""
    for name, file in files_of(manifest).items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != file["bytes"]:
            return f"{name} has {path.stat().st_size:,} bytes instead of {file['bytes']:,}"
        if hashes and file_hash(path) != file["sha256"]:
            return f"{name} has changed"
    return ""


def refuse_foreign(place: Path) -> None:
    """InputError where replacing `place` would delete anything that no build has written: every entry must be a build's file by its name and,
    where there is a readable manifest, be listed in it."""
    if not (place.exists() or place.is_symlink()):
        return
    if place.is_symlink() or not place.is_dir():
        raise _foreign(place, "")
    names = sorted(p.name for p in place.iterdir())
    manifest = read_manifest(place / MANIFEST)
    own = None if manifest is None else {MANIFEST, *files_of(manifest)}
    for name in names:
        ours = name in own if own is not None else name in (MANIFEST, TASK) or DATA_FILE.fullmatch(name)
        if not ours or not (place / name).is_file():
            raise _foreign(place, name)
    if names and not {MANIFEST, TASK} & set(names):  # other data sets name their files so, too
        raise _foreign(place, names[0])


def _foreign(place, name) -> InputError:
    what = f"{place} holds {name}, which" if name else f"{place}"
    return InputError(
        f"{what} was not written by `selectivbench build` and would be deleted; move it away, or choose another --output or --name"
    )


def repair_command(folder: Path, manifest: dict, bad: str) -> str:
    """The command that makes a damaged config again, whatever keywords it was built with."""
    from .tasks import task_names

    name = manifest["name"]
    if bad.startswith(TASK):
        return "the command that made it"
    words = ["selectivbench", "build", str(folder / name / TASK)]
    if name in task_names() and manifest["card"].get("grammar_seed") not in (None, 1):
        words += ["--name", name]
    return f"`{shlex.join([*words, '--output', str(folder)])}`"
