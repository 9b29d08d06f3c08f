"""`selectivbench build`: tasks as a folder of Parquet files that `load_dataset` reads without this package.

The folder, for `--output selectivbench`:

    selectivbench/README.md                       the data card; its front matter lists the configs that are whole
    selectivbench/te3/train-00000-of-00008.parquet, validation-..., test-..., test_gap_1-..., ...
    selectivbench/te3/task.json                   the task; `sb.get_task` reads it
    selectivbench/te3/manifest.json               sizes and hashes of the files, content hash of each split

The card is the commit point. `load_dataset` takes the configs from it alone, so it is written first (listing nothing: loading fails with a
name that says what to do), and replaced by a rename each time a config has come to lie under its final name. A config is written into a hidden
`.incomplete-*` folder and renamed when its files are on the disk. So whatever moment a build is killed at, the card lists whole configs only;
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
from .errors import InputError
from .parquet import file_hash, write_split

LOCK = ".build.lock"
INCOMPLETE = ".incomplete-"
MANIFEST = "manifest.json"
MANIFEST_FORMAT = "selectivbench-build-1"
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class BuildError(OSError):
    """A build that could not be finished for a reason outside the request, such as a full disk. Its text is one sentence."""


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
        num_proc: processes; each writes one split at a time.
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
        if names.count(name) > 1:
            raise InputError(f"{name} was asked for twice; each config is built once")
        if Path(name).name != name or name.startswith("."):
            raise InputError(f"{name!r} cannot name a config: it must be usable as a folder's name")
    folder = _open_folder(Path(output))
    with _lock(folder, say):
        _sweep(folder, say)
        manifests = _manifests(folder, say, requested=names)
        keep = _plan(tasks, folder, manifests, overwrite, say)
        replaced = set(names) - keep
        manifests = {name: m for name, m in manifests.items() if name not in replaced}
        _write_card(folder, manifests)
        rows = {name: _row(manifests[name], "kept", 0.0) for name in keep}
        todo = [task for task in tasks if task.name not in keep]
        try:
            with _Progress(todo, progress) as bar:
                for task in todo:
                    began = time.perf_counter()
                    manifests[task.name] = _build_one(task, folder, num_proc, bar)
                    _write_card(folder, manifests)
                    rows[task.name] = _row(manifests[task.name], "built", time.perf_counter() - began)
        finally:
            _sweep(folder, lambda sentence: None)
    return [rows[name] for name in names]


def config_named(task):
    """The task under the name of its config: a catalogue task with another grammar seed than 1 is NAME_seedN."""
    from .tasks import task_names

    if task.name in task_names() and task.custom_grammar is None and task.grammar_seed != 1:
        return replace(task, name=f"{task.name}_seed{task.grammar_seed}")
    return task


# -- the folder ----------------------------------------------------------------------------------------------------------


def _open_folder(folder: Path) -> Path:
    """Make the folder, or refuse what is not one of ours, before anything is written."""
    if folder.is_symlink() and not folder.exists():
        raise InputError(f"{folder} is a dangling link; remove it or choose another --output")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; --output must be a folder")
    card = folder / "README.md"
    if card.exists() and datacard.MARKER not in card.read_text(encoding="utf-8", errors="replace"):
        raise InputError(
            f"{card} was not written by `selectivbench build` and would be replaced; choose another --output"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder {folder} cannot be made: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise InputError(f"the folder {folder} cannot be written to")
    return folder


@contextlib.contextmanager
def _lock(folder: Path, say):
    from filelock import FileLock, Timeout

    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"another build is writing into {folder}; waiting for it")
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


def _manifests(folder: Path, say, requested) -> dict[str, dict]:
    """Name -> manifest of each config whose files are all there; damaged ones are told (requested ones are checked again by hash)."""
    found = {}
    for path in sorted(folder.glob(f"*/{MANIFEST}")):
        name = path.parent.name
        manifest = _read_manifest(path)
        if manifest is None or manifest["name"] != name:
            continue
        bad = _damage(path.parent, manifest, hashes=name in requested)
        if bad and name not in requested:
            say(
                f"{name} in {folder} is damaged ({bad}) and is no longer listed; `selectivbench build {name}` restores it"
            )
            continue
        found[name] = manifest | ({"damage": bad} if bad else {})
    return found


def _read_manifest(path: Path) -> dict | None:
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) and manifest.get("format") == MANIFEST_FORMAT else None


def _damage(folder: Path, manifest: dict, hashes: bool) -> str:
    """What is wrong with a config's files, or ''."""
    files = [file for split in manifest["splits"].values() for file in split["files"]]
    files.append(manifest["task_file"])
    for file in files:
        path = folder / file["name"]
        if not path.is_file():
            return f"{file['name']} is missing"
        if path.stat().st_size != file["bytes"]:
            return f"{file['name']} has {path.stat().st_size:,} bytes instead of {file['bytes']:,}"
        if hashes and file_hash(path) != file["sha256"]:
            return f"{file['name']} has changed"
    return ""


def _plan(tasks, folder: Path, manifests: dict, overwrite: bool, say) -> set[str]:
    """The names that can be kept; raises InputError where another build is in the way, before anything is changed."""
    keep, names = set(), {task.name for task in tasks}
    for task in tasks:
        place, manifest = folder / task.name, manifests.get(task.name)
        if manifest is None:
            if place.exists() and any(place.iterdir() if place.is_dir() else [place]):
                broken = place.is_dir() and _only_build_files(place)
                if not broken:
                    raise InputError(
                        f"{place} exists and was not written by `selectivbench build`; move it away or choose another --output"
                    )
                say(f"{task.name} in {folder} has no readable {MANIFEST}; building it again")
        elif manifest["fingerprint"] != task.fingerprint or manifest["data_version"] != task.data_version:
            if not overwrite:
                raise InputError(
                    f"{place} holds other data under the same name: data version {manifest['data_version']}, fingerprint "
                    f"{manifest['fingerprint'][:12]}, asked for {task.data_version}, {task.fingerprint[:12]}; "
                    "--overwrite replaces it, --name or another --output keeps both"
                )
        elif "damage" in manifest:
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


def _only_build_files(place: Path) -> bool:
    return all(p.is_file() and (p.suffix == ".parquet" or p.name in ("task.json", MANIFEST)) for p in place.iterdir())


# -- one config ----------------------------------------------------------------------------------------------------------


def _build_one(task, folder: Path, num_proc: int, bar) -> dict:
    """Write one config into a hidden folder, put it on the disk, and rename it into place."""
    temporary = Path(tempfile.mkdtemp(prefix=f"{INCOMPLETE}{task.name}-", dir=folder))
    free = shutil.disk_usage(folder).free
    started = bar.rows
    try:
        splits = _write_splits(task, temporary, num_proc, bar)
        task_json = task.to_json()
        task_text = task_json if isinstance(task_json, str) else json.dumps(task_json, indent=2, allow_nan=False)
        _write_text(temporary / "task.json", task_text.rstrip("\n") + "\n")
        manifest = {
            "format": MANIFEST_FORMAT,
            "name": task.name,
            "data_version": task.data_version,
            "fingerprint": task.fingerprint,
            "splits": splits,
            "card": datacard.facts(task),
            "task_file": {
                "name": "task.json",
                "bytes": (temporary / "task.json").stat().st_size,
                "sha256": file_hash(temporary / "task.json"),
            },
        }
        _write_text(temporary / MANIFEST, json.dumps(manifest, indent=1, allow_nan=False) + "\n")
        _sync_folder(temporary)
        place = folder / task.name
        if place.exists():  # not listed by the card any more
            place.rename(Path(tempfile.mkdtemp(prefix=INCOMPLETE, dir=folder)) / task.name)
        temporary.chmod(0o755)
        temporary.rename(place)
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


def _write_splits(task, temporary: Path, num_proc: int, bar) -> dict:
    """Split name -> its part of the manifest."""
    names = list(task.splits)
    if num_proc <= 1 or len(names) == 1:
        return {split: write_split(task, split, temporary, bar.update) for split in names}
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, wait

    context = multiprocessing.get_context("spawn")
    counter = context.Value("q", 0)
    with ProcessPoolExecutor(
        min(num_proc, len(names)), mp_context=context, initializer=_start_worker, initargs=(counter,)
    ) as pool:
        order = sorted(names, key=lambda s: -task.splits[s])
        jobs = {split: pool.submit(_work, task, split, temporary) for split in order}
        seen, running = 0, set(jobs.values())
        try:
            while running:
                _, running = wait(running, timeout=0.2)
                bar.update(counter.value - seen)
                seen = counter.value
            return {split: jobs[split].result() for split in names}
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


_COUNTER = None


def _start_worker(counter):
    """Take the counter, and leave when the build is killed: a pool's workers would wait for its next job for ever."""
    import multiprocessing
    import threading

    global _COUNTER
    _COUNTER = counter
    build = multiprocessing.parent_process()
    threading.Thread(target=lambda: (build.join(), os._exit(1)), daemon=True).start()


def _count(rows):
    with _COUNTER.get_lock():
        _COUNTER.value += rows


def _work(task, split, temporary):
    return write_split(task, split, temporary, _count)


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
    files = [file for split in manifest["splits"].values() for file in split["files"]]
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
