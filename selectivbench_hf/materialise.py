"""`selectivbench build`: tasks as a folder of Parquet files that `load_dataset` reads without this package.

The folder, for `--output selectivbench`:

    selectivbench/README.md                       the data card; its front matter lists the configs that are whole
    selectivbench/te3/train-00000-of-00008.parquet, validation-..., test-..., test_gap_1-..., ...
    selectivbench/te3/task.json                   the task; `sb.get_task` reads it
    selectivbench/te3/manifest.json               sizes and hashes of the files, content hash of each split

The card is the commit point. `load_dataset` takes the configs from it alone, so it is written first (listing nothing: loading fails with a
name that says what to do), and replaced by a rename each time a config has come to lie under its final name. A config is written into a hidden
`.selectivbench-incomplete-*` folder and renamed when its files are on the disk. So whatever moment a build is killed at, the card lists whole configs only;
a rerun sweeps the leftovers, keeps what is finished and makes the rest. A lock lets two builds into one folder wait for each other.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from . import datacard
from .configs import (
    MANIFEST,
    MANIFEST_FORMAT,
    TASK,
    check_name,
    damage,
    files_of,
    read_manifest,
    refuse_foreign,
    repair_command,
)
from .errors import InputError
from .parquet import file_hash
from .symbols import NOT_IN_ROWS
from .workers import BuildError, write_splits

LOCK = ".build.lock"
INCOMPLETE = ".selectivbench-incomplete-"
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def build(
    tasks: Sequence,
    output: str | os.PathLike,
    *,
    num_proc: int = 1,
    overwrite: bool = False,
    progress: bool = True,
    say: Callable[[str], None] | None = None,
) -> list[dict]:
    """Write each task into the folder `output` as the config `task.name`; what is there and whole is kept.

    Args:
        tasks: Task objects with distinct names.
        output: the folder; made if missing. Files in it that are not a build's are left alone.
        num_proc: processes; each writes one file at a time.
        overwrite: replace configs of the same name that hold other data.
        progress: show a progress bar on stderr.
        say: receives sentences about what was kept, swept or repaired; default none.

    Returns:
        One dict per task, in order: name, status ("built" or "kept"), sequences, files, bytes (on disk), seconds, fingerprint.

    Raises:
        InputError: `output` is no folder of builds, or holds other data under the same name (nothing is changed then).
        BuildError: the disk is full; nothing half-made is left.
    """
    say = say or (lambda sentence: None)
    names = [task.name for task in tasks]
    for name in names:
        check_name(name)
        if names.count(name) > 1:
            raise InputError(f"{name} was asked for twice; each config is built once")
    if any(getattr(task, "symbols", None) is not None for task in tasks):
        raise InputError(NOT_IN_ROWS)
    folder = Path(output)
    _check_folder(folder)
    if folder.is_dir():  # what must be refused is refused before anything is made
        quiet = lambda sentence: None
        _plan(tasks, folder, _manifests(folder, quiet, hashes=(), damaged=names), overwrite, quiet)
    with _opened(folder, say) as manifests_left:
        _sweep(folder, say)
        manifests = _manifests(folder, say, hashes=names, damaged=names)
        keep = _plan(tasks, folder, manifests, overwrite, say)
        old = {name: m for name, m in manifests.items() if "damage" not in m}
        manifests = {name: m for name, m in manifests.items() if name in keep or name not in names}
        rows = {name: _row(manifests[name], "kept", 0.0) for name in keep}
        todo = [task for task in tasks if task.name not in keep]
        try:
            _write_card(folder, manifests)
            with _Progress(todo, progress) as bar:
                for task in todo:
                    began = time.perf_counter()
                    manifests[task.name] = _build_one(task, folder, num_proc, bar)
                    _write_card(folder, manifests)
                    rows[task.name] = _row(manifests[task.name], "built", time.perf_counter() - began)
        finally:
            _sweep(folder, lambda sentence: None)
            for name, manifest in old.items():  # not replaced after all: still whole, so still listed
                if name not in manifests and read_manifest(folder / name / MANIFEST) == manifest:
                    manifests[name] = manifest
            if manifests:
                _write_card(folder, manifests)
            manifests_left.update(manifests)
    return [rows[name] for name in names]


def config_named(task):
    """The task under the name of its config: a catalogue task with another grammar seed than 1 is NAME_seedN."""
    from .tasks import task_names

    if task.family == "recall":
        return task
    if task.name in task_names() and task.custom_grammar is None and task.grammar_seed not in (None, 1):
        return replace(task, name=f"{task.name}_seed{task.grammar_seed}")
    return task


# -- the folder ----------------------------------------------------------------------------------------------------------


def _check_folder(folder: Path):
    """Refuse what is not a folder of builds or cannot become one, before anything is written."""
    if folder.is_symlink() and not folder.exists():
        raise InputError(f"{folder} is a dangling link; remove it or choose another --output")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; --output must be a folder")
    card = folder / "README.md"
    if card.is_dir():
        raise InputError(f"{card} is a folder where the data card would be written; choose another --output")
    if card.exists() and datacard.MARKER not in card.read_text(encoding="utf-8", errors="replace"):
        raise InputError(
            f"{card} was not written by `selectivbench build` and would be replaced; choose another --output"
        )
    if folder.exists() and not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"the folder {folder} cannot be written to")


@contextlib.contextmanager
def _opened(folder: Path, say):
    """The folder, made and locked. Gives a dict to be filled with the configs that it holds at the end: where there are none, what was made here
    is removed again: card, lock, and the folder with its parents."""
    made = [p for p in (folder, *folder.parents) if not p.exists()]
    had_card, left = (folder / "README.md").exists(), {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _remove(made)
        raise InputError(f"the folder {folder} cannot be made: {error.strerror}") from None
    try:
        had_lock = (folder / LOCK).exists()
        with _lock(folder, say):
            try:
                yield left
            finally:
                if not left and not had_card:
                    (folder / "README.md").unlink(missing_ok=True)
                    if not had_lock:
                        with contextlib.suppress(OSError):  # while it is held, so that no one else holds it
                            (folder / LOCK).unlink()
    finally:
        if not left:
            _remove(made)


def _remove(folders):
    """Remove folders as far as they are empty."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


@contextlib.contextmanager
def _lock(folder: Path, say):
    from filelock import FileLock, Timeout

    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"another build is writing into {folder}; waiting for it")
        lock.acquire()
    while not (folder / LOCK).exists():  # a build that came to nothing has removed it meanwhile
        lock.release()
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _sweep(folder: Path, say):
    """Remove what killed builds left; called under the lock, so nothing there is in use."""
    left = [p for p in folder.iterdir() if p.name.startswith(INCOMPLETE)]
    for path in left:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    if left:
        say(
            f"removed what an interrupted build had left ({len(left)} hidden {'entry' if len(left) == 1 else 'entries'})"
        )


def _manifests(folder: Path, say, hashes, damaged) -> dict[str, dict]:
    """Name -> manifest of each config whose files are all there, those in `hashes` checked by hash too. Damage is marked where the name stands
    in `damaged` (they are built again), else the config is left out and that is said."""
    found = {}
    for path in sorted(folder.glob(f"*/{MANIFEST}")):
        name = path.parent.name
        manifest = read_manifest(path)
        if manifest is None or manifest["name"] != name or name.startswith(INCOMPLETE):
            continue
        bad = damage(path.parent, manifest, hashes=name in hashes)
        if bad and name not in damaged:
            command = repair_command(folder, manifest, bad)
            say(f"{name} in {folder} is damaged ({bad}) and is no longer listed; {command} restores it")
            continue
        found[name] = manifest | ({"damage": bad} if bad else {})
    return found


def _plan(tasks, folder: Path, manifests: dict, overwrite: bool, say) -> set[str]:
    """The names that can be kept; raises InputError where another build is in the way, before anything is changed."""
    keep, names = set(), {task.name for task in tasks}
    for task in tasks:
        place, manifest = folder / task.name, manifests.get(task.name)
        if manifest is None:
            refuse_foreign(place)
            other = read_manifest(place / MANIFEST)
            if other is not None and not overwrite:
                raise InputError(
                    f"{place} holds the config {other['name']}, moved from elsewhere; --overwrite replaces it, --name or another --output keeps both"
                )
            if place.exists() and any(place.iterdir()):
                say(f"{task.name} in {folder} has no readable {MANIFEST} of its own; building it again")
        elif manifest["fingerprint"] != task.fingerprint or manifest["data_version"] != task.data_version:
            if not overwrite:
                raise InputError(
                    f"{place} holds other data under the same name: data version {manifest['data_version']}, fingerprint "
                    f"{manifest['fingerprint'][:12]}, asked for {task.data_version}, {task.fingerprint[:12]}; "
                    "--overwrite replaces it, --name or another --output keeps both"
                )
            refuse_foreign(place)
        elif "damage" in manifest:
            refuse_foreign(place)
            say(f"{task.name} in {folder} is damaged ({manifest['damage']}); building it again")
        else:
            keep.add(task.name)
    for name, manifest in manifests.items():
        if name not in names and tasks and manifest["data_version"] != tasks[0].data_version:
            raise InputError(
                f"{folder} holds {name} of data version {manifest['data_version']}, and this package makes {tasks[0].data_version}; "
                "one folder holds one version: choose another --output"
            )
    return keep


# -- one config ----------------------------------------------------------------------------------------------------------


def _build_one(task, folder: Path, num_proc: int, bar) -> dict:
    """Write one config into a hidden folder, put it on the disk, and rename it into place."""
    temporary = Path(tempfile.mkdtemp(prefix=f"{INCOMPLETE}{task.name}-", dir=folder))
    free = shutil.disk_usage(folder).free
    started = bar.rows
    try:
        splits = write_splits(task, temporary, num_proc, bar)
        task_json = task.to_json()
        task_text = task_json if isinstance(task_json, str) else json.dumps(task_json, indent=2, allow_nan=False)
        _write_text(temporary / TASK, task_text.rstrip("\n") + "\n")
        manifest = {
            "format": MANIFEST_FORMAT,
            "name": task.name,
            "data_version": task.data_version,
            "fingerprint": task.fingerprint,
            "splits": splits,
            "card": datacard.facts(task),
            "task_file": {
                "name": TASK,
                "bytes": (temporary / TASK).stat().st_size,
                "sha256": file_hash(temporary / TASK),
            },
        }
        _write_text(temporary / MANIFEST, json.dumps(manifest, indent=1, allow_nan=False) + "\n")
        _sync_folder(temporary)
        place = folder / task.name
        refuse_foreign(place)  # again: minutes may have passed
        temporary.chmod(0o755)
        away = Path(tempfile.mkdtemp(prefix=INCOMPLETE, dir=folder)) / task.name
        try:
            if place.exists():  # not listed by the card any more
                place.rename(away)
            temporary.rename(place)
        except BaseException:
            if away.exists() and not place.exists():
                away.rename(place)
            raise
        _sync_folder(folder)
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise BuildError(_disk_full(task, folder, temporary, bar.rows - started, free, error)) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return manifest


def _disk_full(task, folder, temporary, done, free, error) -> str:
    written = sum(p.stat().st_size for p in temporary.rglob("*") if p.is_file())
    total = sum(task.splits.values())
    needed = f"about {written * total // done:,} bytes" if done else f"more than {written:,} bytes"
    what = (
        "a file may not grow further"
        if error.errno == errno.EFBIG
        else "the disk is full"
        if error.errno == errno.ENOSPC
        else "the quota is used up"
    )
    return (
        f"{what}: {task.name} needs {needed} in {folder}, {free:,} bytes were free when it began and {written:,} had been written; "
        "nothing half-made was left"
    )


# -- small things --------------------------------------------------------------------------------------------------------


def _write_card(folder: Path, manifests: dict):
    """Replace README.md by a rename, if it changes."""
    text = datacard.render(manifests)
    place = folder / "README.md"
    if place.exists() and place.read_text(encoding="utf-8") == text:
        return
    temporary = folder / f"{INCOMPLETE}card-{os.getpid()}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    try:
        _write_text(temporary, text)
        os.replace(temporary, place)
    except OSError as error:
        if error.errno in DISK_FULL:
            raise BuildError(
                f"the disk is full: no room for the card {place}; free bytes: {shutil.disk_usage(folder).free:,}"
            ) from None
        raise
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(folder)


def _write_text(path: Path, text: str):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path):
    """Put a folder's entries on the disk, where the system can do that for folders."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _row(manifest: dict, status: str, seconds: float) -> dict:
    files = [file for name, file in files_of(manifest).items() if name != TASK]
    return {
        "name": manifest["name"],
        "status": status,
        "sequences": sum(s["num_sequences"] for s in manifest["splits"].values()),
        "files": len(files),
        "bytes": sum(f["bytes"] for f in files),
        "seconds": round(seconds, 2),
        "fingerprint": manifest["fingerprint"],
    }


class _Progress:
    """A progress bar that counts also when it is not shown."""

    def __init__(self, tasks, show: bool):
        from tqdm import tqdm

        total = sum(sum(task.splits.values()) for task in tasks)
        self.rows = 0
        self._bar = tqdm(total=total, unit=" sequences", desc="build", disable=not (show and tasks), mininterval=0.2)

    def update(self, rows: int):
        self.rows += rows
        self._bar.update(rows)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._bar.close()
