"""Publishing tasks as a data set on the Hub: written locally, compared with what is there, sent ahead, then one commit and one tag.

What a push would change is computed from the repository alone, so a push that was cut at any moment is finished by running it again: blobs that
arrived are not sent twice, a commit that arrived leaves nothing but its tag to set, and a finished push leaves nothing to do. A tag is never moved:
one whose content differs from what would be pushed needs a new version. What would change, and what is refused, is in `publish_plan`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..configs import files_of
from ..errors import InputError
from . import client, eval_yaml
from .publish_plan import KIND, Choices, Plan, Published, Reader, major, make_plan, refuse_other_rows

BATCH = 16  # files sent between two steps of the progress bar
_TAG = re.compile(r"v(0|[1-9]\d{0,5})\.(0|[1-9]\d{0,5})\.(0|[1-9]\d{0,5})")


def check_tag(tag: str) -> str:
    """`tag` if it is vX.Y.Z with the data version's X, else an InputError."""
    from ..tasks import DATA_VERSION

    first = DATA_VERSION.split(".")[0]
    match = _TAG.fullmatch(tag)
    if match is None or match[1] != first:
        raise InputError(
            f"--tag must be v{first}.Y.Z with whole numbers Y and Z, as the data version is {DATA_VERSION}, got {tag[:40]!r}"
        )
    return tag


@dataclass
class Outcome:
    """What a push did: `commit` (SHA; None in a dry run), `committed` and `tagged` by this run, `pull_request` (address)."""

    plan: Plan
    commit: str | None = None
    committed: bool = False
    tagged: bool = False
    pull_request: str | None = None


def push(
    repo: str,
    tag: str,
    folder: Path,
    ours: dict[str, dict],
    show: Callable[[Plan], None],
    say: Callable[[str], None],
    choices: Choices,
    *,
    private: bool = False,
    create_pr: bool = False,
    dry_run: bool = False,
    progress: bool = True,
) -> Outcome:
    """Publish our configs (name -> manifest) of the built `folder` as `repo` under `tag`.

    `show` is called once with the plan before anything is sent. Others who commit meanwhile are respected: the plan is made again.
    """
    reader, shown = Reader(repo), []

    def show_once(plan):
        if not shown:
            show(plan)
        shown.append(plan)

    def attempt() -> Outcome:
        head = client.head(repo, KIND)
        tags = {} if head is None else client.tags(repo, KIND)
        _check_versions(reader, tags, ours)
        if head is not None and tag in client.branches(repo, KIND):
            raise InputError(
                f"{repo} has a branch named {tag}, which would be read in place of the tag; delete that branch, or choose the next version"
            )
        if tag in tags:
            plan = make_plan(reader, reader.at(tags[tag]), folder, ours, tag, choices)
            if not plan.empty:
                raise InputError(
                    f"{repo} has the tag {tag} already, with other content ({_changes(plan)}); a tag is never moved: choose the next version"
                )
            show_once(plan)
            return Outcome(plan, tags[tag])
        base = reader.at(head)
        refuse_other_rows(repo, "main", base.configs, ours)
        plan = make_plan(reader, base, folder, ours, tag, choices)
        show_once(plan)
        if dry_run:
            return Outcome(plan)
        plan.base.sha = client.ensure(repo, KIND, head, say, private=private, create_pr=create_pr)
        if create_pr:
            return _propose(reader, plan, tag, progress)
        oid = plan.base.sha if plan.empty else _commit(repo, plan, tag, False, progress).oid
        _set_tag(repo, tag, oid)
        return Outcome(plan, oid, committed=not plan.empty, tagged=True)

    return client.guarded(attempt, say, repo)


def offline_plan(repo: str, tag: str, folder: Path, ours: dict[str, dict], choices: Choices) -> Plan:
    """What a push into a new repository would do; asks nothing of the Hub."""
    return make_plan(Reader(repo), Published(None), folder, ours, tag, choices)


def _check_versions(reader: Reader, tags: dict[str, str], ours: dict[str, dict]) -> None:
    """Our rows must be those of every tag of this major data version."""
    first = major(next(iter(ours.values())))
    for tag, sha in sorted(tags.items()):
        match = _TAG.fullmatch(tag)
        if match and match[1] == first:
            refuse_other_rows(reader.repo, tag, reader.at(sha, only=list(ours)).configs, ours)


def _changes(plan: Plan) -> str:
    paths = [*plan.add, *plan.delete]
    return ", ".join(paths[:3]) + (f" and {len(paths) - 3} more files" if len(paths) > 3 else "")


def _commit(repo: str, plan: Plan, tag: str, create_pr: bool, progress: bool):
    """Send the files ahead, then commit all of it at once. Returns huggingface_hub's CommitInfo."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete
    from tqdm import tqdm

    known = {f"{n}/{file}": said["sha256"] for n, m in plan.manifests.items() for file, said in files_of(m).items()}
    additions, sizes = [], plan.sizes()
    with tqdm(total=sum(sizes.values()), unit="B", unit_scale=True, desc="upload", disable=not progress) as bar:
        paths = list(sizes)
        for start in range(0, len(paths), BATCH):
            batch = [CommitOperationAdd(path, plan.add[path]) for path in paths[start : start + BATCH]]
            for operation in batch:
                path = operation.path_in_repo
                if path in known and operation.upload_info.sha256.hex() != known[path]:
                    raise InputError(f"{plan.add[path]} has changed since it was built; run the push again")
            client.upload(repo, KIND, batch, create_pr=create_pr)
            additions += batch
            bar.update(sum(sizes[operation.path_in_repo] for operation in batch))
    deletions = [CommitOperationDelete(path) for path in plan.delete]
    names = [name for name, status in plan.status.items() if status in ("new", "changed")]
    try:
        return client.commit(
            repo,
            KIND,
            [*additions, *deletions],
            f"SelectivBench {tag}",
            parent=plan.base.sha,
            create_pr=create_pr,
            description=f"Configs: {', '.join(names)}." if names else "",
        )
    except InputError as error:
        if eval_yaml.FILE in plan.add and ("eval.yaml" in str(error) or "evaluation_framework" in str(error)):
            raise InputError(
                f"{error}; until it knows the evaluation framework {eval_yaml.FRAMEWORK} (docs/registering.md), --skip_eval_yaml publishes without"
            ) from None
        raise


def _propose(reader: Reader, plan: Plan, tag: str, progress: bool) -> Outcome:
    """A pull request with the plan; one that is open and holds exactly that already is named instead."""
    if plan.empty:
        return Outcome(plan, plan.base.sha)
    for address, sha in client.open_pull_requests(reader.repo, KIND, f"SelectivBench {tag}"):
        there = reader.at(sha, only=())
        if there.fulfils(plan.add, plan.delete):
            return Outcome(plan, sha, pull_request=address)
    info = _commit(reader.repo, plan, tag, True, progress)
    return Outcome(plan, info.oid, committed=True, pull_request=info.pr_url)


def _set_tag(repo: str, tag: str, oid: str) -> None:
    """Set the tag, unless another push of the same content has just done it."""
    try:
        client.tag(repo, KIND, tag, oid)
    except InputError:
        if client.tags(repo, KIND).get(tag) != oid:
            raise
