"""Writing the splits of one config with several processes: each writes whole files, one more draws train in order for its content hash."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from .parquet import file_ranges, hash_split, split_entry, write_file, write_split


class BuildError(OSError):
    """A build that could not be finished for a reason outside the request, such as a full disk. Its text is one sentence."""


def write_splits(task, folder: Path, num_proc: int, bar) -> dict:
    """Write all splits of a task into `folder`; split name -> its part of the manifest. The same bytes for any `num_proc`.

    Whatever ends it early, such as Ctrl-C, ends the workers at once.
    """
    if num_proc <= 1:
        return {split: write_split(task, split, folder, bar.update) for split in task.splits}
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, wait
    from concurrent.futures.process import BrokenProcessPool

    jobs = _jobs(task)
    context = multiprocessing.get_context("spawn")
    counts = context.RawArray("q", len(jobs))  # rows written by each job: one writer a place, so nothing to lock
    pool = ProcessPoolExecutor(
        min(num_proc, len(jobs)), mp_context=context, initializer=_start_worker, initargs=(counts,)
    )
    workers = {}
    try:
        with _signals_held():  # workers inherit this: Ctrl-C reaches the build alone, which ends them
            running = {key: pool.submit(_work, place, task, key, folder) for place, key in enumerate(jobs)}
            workers = dict(pool._processes or {})
        seen, left = 0, set(running.values())
        while left:
            done, left = wait(left, timeout=0.2)
            for job in done:
                job.result()
            now = sum(counts)
            bar.update(now - seen)
            seen = now
        results = {key: job.result() for key, job in running.items()}
        pool.shutdown()
    except BaseException as error:
        for worker in workers.values():
            worker.kill()
        pool.shutdown(wait=True, cancel_futures=True)
        if isinstance(error, BrokenProcessPool):
            raise BuildError(
                f"a worker process of the build of {task.name} was killed, perhaps for want of memory; nothing half-made was left: "
                "try a smaller --num_proc"
            ) from None
        raise
    out = {}
    for split in task.splits:
        if (split, None, False) in results:
            out[split] = results[split, None, False]
        else:
            files = [results[split, number, False] for number in range(len(file_ranges(task, split)))]
            out[split] = split_entry(task, split, results[split, None, True], files)
    return out


def _jobs(task) -> list[tuple]:
    """(split, number of the file or None for the whole split, only hash it?), in the order in which they are begun: the longest first."""
    hashes, files, whole = [], [], []
    for split in sorted(task.splits, key=lambda s: -task.splits[s] * task.max_steps(s)):
        count = len(file_ranges(task, split))
        if split == "train" and count > 1:
            hashes.append((split, None, True))
            files += [(split, number, False) for number in range(count)]
        else:
            whole.append((split, None, False))
    return hashes + whole + files


@contextlib.contextmanager
def _signals_held():
    """Hold SIGINT and SIGTERM back meanwhile, where the system can; processes started meanwhile never get them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_COUNTS = None


def _start_worker(counts):
    """Take the counters, and leave when the build is killed: a pool's workers would wait for its next job for ever."""
    import multiprocessing
    import threading

    global _COUNTS
    _COUNTS = counts
    build = multiprocessing.parent_process()
    threading.Thread(target=lambda: (build.join(), os._exit(1)), daemon=True).start()


def _work(place, task, key, folder):
    split, number, only_hash = key

    def count(rows):
        _COUNTS[place] += rows

    if only_hash:
        return hash_split(task, split)
    return (
        write_split(task, split, folder, count) if number is None else write_file(task, split, number, folder, count)
    )
