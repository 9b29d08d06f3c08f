"""Files of a run that must never be half-made: checkpoints with a manifest of SHA-256 sums, saved models, small text files.

Everything is written beside its place under a name that no reader looks at, flushed to the disk, and renamed. A checkpoint is the folder
`checkpoints/step-00000100/` with model.safetensors, optimizer.pt, rng.pt (one random state per process), state.json and manifest.json.
"""

import hashlib
import io
import json
import os
import shutil
import uuid
from pathlib import Path

PREFIX, MANIFEST = "step-", "manifest.json"


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read; the text is one clear sentence."""


def strict_json(value, **kw) -> str:
    """JSON without NaN or Infinity (ValueError when one is left in `value`)."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False, **kw)


def _flush(path: Path):
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError:
        pass  # some file systems cannot sync a folder
    finally:
        os.close(fd)


def write_text(path, text: str) -> None:
    """Replace the file `path` in one step: readers see the old text or the new, never a part."""
    path = Path(path)
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        with open(part, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


class new_folder:
    """Context manager: yields an empty folder to fill; on success it takes the place of `path`, on any error nothing is left."""

    def __init__(self, path):
        self.path = Path(path)
        self.part = self.path.with_name(f".{self.path.name}.{uuid.uuid4().hex[:8]}.part")

    def __enter__(self) -> Path:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.part.mkdir()
        return self.part

    def __exit__(self, kind, value, trace):
        try:
            if kind is None:
                mask = os.umask(0)
                os.umask(mask)
                for file in self.part.rglob("*"):
                    if file.is_file():
                        file.chmod(0o666 & ~mask)  # safetensors writes files that only their owner can read
                    _flush(file)
                old = None
                if (
                    self.path.exists()
                ):  # two renames: in the instant between, a reader finds nothing rather than a mixture
                    old = self.path.with_name(f".{self.path.name}.{uuid.uuid4().hex[:8]}.old")
                    os.rename(self.path, old)
                os.rename(self.part, self.path)
                _flush(self.path.parent)
                if old is not None:
                    shutil.rmtree(old, ignore_errors=True)
        finally:
            if self.part.exists():
                shutil.rmtree(self.part, ignore_errors=True)


def clean(folder) -> None:
    """Remove what killed writers left in `folder` (their names start with a dot and end in .part or .old). An .old folder whose
    replacement never arrived is put back."""
    for left in Path(folder).glob(".*.old"):
        place = left.with_name(left.name[1:].rsplit(".", 2)[0])
        if not place.exists():
            os.rename(left, place)
    for left in [*Path(folder).glob(".*.part"), *Path(folder).glob(".*.old")]:
        shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)


def sha256(path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else _sha256(file)


def _sha256(file):  # Python 3.10
    digest = hashlib.sha256()
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def out_of_room(error: OSError, folder, what: str, needed: int | None = None) -> str:
    """One sentence for a failed write: what, where, how much was needed and is free."""
    place = Path(folder)
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    need = f"about {needed / 1e6:.1f} MB needed, " if needed else ""
    return f"could not write {what} in {folder}: {error.strerror or error} ({need}{free / 1e6:.1f} MB free)"


def save(folder, step: int, tensors: dict, optimizer: dict, rng: list, state: dict, keep: int | None = None) -> Path:
    """Write checkpoint `step` under `folder` and drop all but the `keep` newest. CheckpointError when the disk refuses; older ones stay."""
    import torch
    from safetensors.torch import save as to_bytes

    folder, path = Path(folder), Path(folder) / f"{PREFIX}{step:08d}"
    blob = to_bytes(tensors)
    needed = len(blob) + sum(
        t.numel() * t.element_size() for s in optimizer["state"].values() for t in s.values() if torch.is_tensor(t)
    )
    try:
        with new_folder(path) as part:
            (part / "model.safetensors").write_bytes(blob)
            for name, value in (("optimizer.pt", optimizer), ("rng.pt", rng)):
                buffer = io.BytesIO()  # torch's own file writer hides a full disk behind an inner error
                torch.save(value, buffer)
                (part / name).write_bytes(buffer.getbuffer())
            (part / "state.json").write_text(strict_json(state, indent=1), encoding="utf-8")
            sums = {f.name: {"sha256": sha256(f), "bytes": f.stat().st_size} for f in sorted(part.iterdir())}
            (part / MANIFEST).write_text(strict_json({"step": step, "files": sums}, indent=1), encoding="utf-8")
    except OSError as error:
        last, _ = newest(folder)
        raise CheckpointError(
            out_of_room(error, folder, f"checkpoint {path.name}", needed)
            + f"; the last good checkpoint is {last.name if last else 'none'}"
        ) from None
    earlier = [p for p in listed(folder) if p.name < path.name]  # what stands above is no part of this course
    for old in earlier[keep - 1 :] if keep else []:
        shutil.rmtree(old, ignore_errors=True)
    return path


def set_aside(folder, step: int) -> list[str]:
    """Rename the checkpoints above `step`, which a resume passed over, to broken-step-*: they no longer count. One notice for each."""
    notices = []
    for path in listed(folder):
        if path.name > f"{PREFIX}{step:08d}":
            place = path.with_name(f"broken-{path.name}")
            shutil.rmtree(place, ignore_errors=True)
            os.rename(path, place)
            notices.append(
                f"checkpoint {path.name} is kept as {place.name}, which no run reads; delete it as you like"
            )
    return notices


def listed(folder) -> list[Path]:
    """Checkpoint folders, newest first (not checked)."""
    return sorted((p for p in Path(folder).glob(PREFIX + "*") if p.is_dir()), key=lambda p: p.name, reverse=True)


def fault(path) -> str | None:
    """What is wrong with a checkpoint folder, or None when every file of its manifest is there with its size and SHA-256."""
    path = Path(path)
    try:
        files = json.loads((path / MANIFEST).read_text(encoding="utf-8"))["files"]
        missing = {"model.safetensors", "optimizer.pt", "rng.pt", "state.json"} - set(files)
        if missing:
            return f"its manifest lacks {', '.join(sorted(missing))}"
        for name, entry in files.items():
            if not (path / name).is_file():
                return f"{name} is missing"
            size = (path / name).stat().st_size
            if size != entry["bytes"]:
                return f"{name} has {size} bytes instead of {entry['bytes']}"
            if sha256(path / name) != entry["sha256"]:
                return f"the content of {name} has changed"
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{MANIFEST} cannot be read ({error})"
    return None


def newest(folder) -> tuple[Path | None, list[str]]:
    """The newest complete checkpoint (or None) and one notice for each broken one passed over."""
    notices = []
    for path in listed(folder):
        problem = fault(path)
        if problem is None:
            return path, notices
        notices.append(f"checkpoint {path.name} is broken ({problem}) and is skipped")
    return None, notices


def load(path) -> tuple[dict, dict, list, dict]:
    """(model tensors, optimiser state, random states by process, state) of a checkpoint folder."""
    import torch
    from safetensors.torch import load_file

    path = Path(path)
    optimizer = torch.load(path / "optimizer.pt", map_location="cpu", weights_only=True)
    rng = torch.load(path / "rng.pt", map_location="cpu", weights_only=True)
    return (
        load_file(path / "model.safetensors"),
        optimizer,
        rng,
        json.loads((path / "state.json").read_text(encoding="utf-8")),
    )
