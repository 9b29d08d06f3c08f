"""The one place that talks to huggingface_hub, so that every failure becomes one sentence and every write is one guarded commit.

huggingface_hub reads HF_ENDPOINT, HF_HUB_OFFLINE and HF_HUB_DISABLE_XET once, when it is first imported; that happens inside these functions.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ..errors import HubFailure, InputError

COMMIT_TRIES = 5  # where others commit at the same moment
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9][A-Za-z0-9_.-]{0,95}")


class Stale(Exception):
    """Somebody else has committed since the parent commit was read."""


def repo_id(text: str, where: str) -> str:
    """`text` if it names a repository, OWNER/NAME; else an InputError. `where`: the flag or field it came from."""
    if (
        not isinstance(text, str)
        or not _ID.fullmatch(text)
        or ".." in text
        or "--" in text
        or text.endswith((".git", ".", "-"))
    ):
        raise InputError(
            f"{where} must be OWNER/NAME, a repository on the Hub (letters, digits, '-', '_' and '.'), got {str(text)[:60]!r}"
        )
    return text


@functools.cache
def api():
    """The client; its progress bars are ours to draw."""
    from huggingface_hub import HfApi
    from huggingface_hub.utils import disable_progress_bars

    from .. import __version__

    disable_progress_bars()
    return HfApi(library_name="selectivbench-hf", library_version=__version__)


@contextlib.contextmanager
def told(doing: str, repo: str) -> Iterator[None]:
    """Turn what huggingface_hub raises into InputError (the request is at fault), HubFailure (the Hub or the network is) or Stale.

    `doing`: the rest of the sentence "cannot ...", such as "push to"; `repo` follows it. (huggingface_hub's own HTTPError is that of its HTTP client.)
    """
    from huggingface_hub import errors

    cannot = f"cannot {doing} {repo}"
    try:
        yield
    except errors.LocalTokenNotFoundError:
        raise InputError(f"{cannot}: there is no token; log in with `hf auth login`, or set HF_TOKEN") from None
    except errors.RevisionNotFoundError:
        raise InputError(f"{cannot}: it has no such revision") from None
    except errors.GatedRepoError:
        raise InputError(f"{cannot}: access to it must be asked for on its page") from None
    except errors.RepositoryNotFoundError as error:
        raise _not_found(cannot, error) from None
    except errors.RemoteEntryNotFoundError as error:
        raise InputError(f"{cannot}: it lacks a file ({_first_line(error)})") from None
    except errors.HFValidationError as error:
        raise InputError(f"{cannot}: {_first_line(error)}") from None
    except errors.OfflineModeIsEnabled:
        raise HubFailure(f"{cannot}: HF_HUB_OFFLINE is set, so nothing is asked of the Hub; unset it") from None
    except errors.LocalEntryNotFoundError as error:
        raise HubFailure(
            f"{cannot}: the Hub does not answer, and nothing of it is cached here ({_first_line(error)})"
        ) from None
    except errors.HfHubHTTPError as error:
        raise _http(cannot, error) from None
    except (errors.HTTPError, ConnectionError, TimeoutError) as error:
        raise HubFailure(
            f"{cannot}: no connection to the Hub ({_first_line(error)}); a rerun goes on where this stopped"
        ) from None
    except UnicodeEncodeError:
        raise InputError(f"{cannot}: the token (or HF_ENDPOINT) holds characters that no request can carry") from None
    except OSError as error:
        if error.strerror is None:  # of huggingface_hub: headers that are not the Hub's
            raise HubFailure(f"{cannot}: {_first_line(error)}") from None
        if error.filename is None:  # no room: what is being written is in the cache
            error.filename = _cache()
        raise
    except (InputError, HubFailure):
        raise
    except (errors.XetDownloadError, errors.RevisionResolutionError) as error:
        raise HubFailure(f"{cannot}: {_first_line(error)}; a rerun goes on where this stopped") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise HubFailure(
            f"{cannot}: the answer is not one of the Hub's ({type(error).__name__}); does a proxy or a login page answer for it?"
        ) from None
    except RuntimeError as error:  # how hf_xet, which sends large files where it is installed, reports every failure
        raise HubFailure(f"{cannot}: {_first_line(error)}; a rerun goes on where this stopped") from None


def _http(cannot: str, error) -> Exception:
    status = error.response.status_code if error.response is not None else None
    says = getattr(error, "server_message", None) or _first_line(error)
    if status == 401:
        return InputError(
            f"{cannot}: there is no token, or the Hub does not know it; log in with `hf auth login`, or set HF_TOKEN"
        )
    if status == 403:
        return InputError(f"{cannot}: the token has no right to write there ({says})")
    if status == 412:
        return Stale(says)
    if status in (400, 404, 409, 413, 422):
        return InputError(f"{cannot}: the Hub refuses it ({says})")
    what = "too many requests in a short time; wait five minutes" if status == 429 else f"the Hub failed ({says})"
    return HubFailure(f"{cannot}: {what}; a rerun goes on where this stopped")


def _not_found(cannot: str, error) -> InputError:
    status = error.response.status_code if getattr(error, "response", None) is not None else None
    if status == 401:
        return InputError(
            f"{cannot}: it does not exist, or is private and there is no token that may see it (`hf auth login`)"
        )
    return InputError(f"{cannot}: there is no such repository, or it is private and not yours")


def _cache() -> str:
    from huggingface_hub.constants import HF_HUB_CACHE

    return f"the Hub's cache {HF_HUB_CACHE}"


def _first_line(error) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def who() -> str:
    """The user name that the token belongs to."""
    with told("log in to", "the Hub"):
        return api().whoami()["name"]


def head(repo: str, kind: str, revision: str | None = None) -> str | None:
    """The commit SHA (40 hex) that `revision` (default main) of a repository stands at; None where there is no such repository.

    kind: "model", "dataset" or "space". Raises InputError where the repository has no such revision. Never answered from the cache.
    """
    from huggingface_hub import errors

    with told("read", repo):
        try:
            return api().repo_info(repo, repo_type=kind, revision=revision).sha
        except errors.RevisionNotFoundError:
            raise InputError(f"{repo} has no revision {revision!r}; it has {_known(tags(repo, kind))}") from None
        except errors.RepositoryNotFoundError:
            return None


def _known(found: dict) -> str:
    return "the tags " + ", ".join(sorted(found)) if found else "no tags"


def tags(repo: str, kind: str) -> dict[str, str]:
    """Tag -> commit SHA."""
    with told("read the tags of", repo):
        return {tag.name: tag.target_commit for tag in api().list_repo_refs(repo, repo_type=kind).tags}


def branches(repo: str, kind: str) -> set[str]:
    with told("read the branches of", repo):
        return {branch.name for branch in api().list_repo_refs(repo, repo_type=kind).branches}


def files(repo: str, kind: str, revision: str) -> dict[str, dict]:
    """Path -> {"size", "sha256" (of the content; None where it is not kept as LFS), "oid" (git's)} of every file at a revision."""
    with told("list the files of", repo):
        entries = api().list_repo_tree(repo, repo_type=kind, revision=revision, recursive=True)
        return {
            e.path: {"size": e.size, "sha256": e.lfs.sha256 if e.lfs else None, "oid": e.blob_id}
            for e in entries
            if hasattr(e, "blob_id")
        }


def history(repo: str, kind: str, revision: str) -> list[tuple[str, str]]:
    """(commit SHA, title) of a revision and all commits before it, the newest first."""
    with told("read the history of", repo):
        return [(c.commit_id, c.title) for c in api().list_repo_commits(repo, repo_type=kind, revision=revision)]


def fetch(repo: str, kind: str, path: str, revision: str, limit: int | None = None) -> Path:
    """A file at a commit SHA, downloaded into the Hub's cache (content there is keyed by commit, so it cannot be another revision's).

    limit: most bytes; a larger file is refused before it is downloaded, by an InputError.
    """
    if limit is not None:
        known = files(repo, kind, revision).get(path)
        if known is not None and known["size"] > limit:
            raise InputError(f"{path} of {repo} has {known['size']:,} bytes; at most {limit:,} are read")
    with told(f"download {path} of", repo):
        return Path(api().hf_hub_download(repo, path, repo_type=kind, revision=revision))


def ensure(
    repo: str, kind: str, sha: str | None, say: Callable[[str], None], *, private: bool, create_pr: bool
) -> str:
    """The commit that main of a repository stands at: `sha`, or that of a new one where there is none (`sha` None).

    Raises InputError for a pull request to what is not there, and where `private` is asked of a public repository that is.
    """
    what = {"dataset": "data set"}.get(kind, kind)
    if sha is None:
        if create_pr:
            raise InputError(f"there is no {what} {repo} to which a pull request could be made")
        with told("make", repo):
            api().create_repo(repo, repo_type=kind, private=private, exist_ok=True)
        say(f"made the {'private ' if private else ''}{what} {repo}")
        return head(repo, kind)
    if private:
        with told("read", repo):
            if not api().repo_info(repo, repo_type=kind).private:
                raise InputError(
                    f"{repo} is there and public; --private only decides for a new one: change it in its settings"
                )
    return sha


def upload(repo: str, kind: str, additions: Sequence, create_pr: bool = False) -> None:
    """Send the large files among `additions` (CommitOperationAdd) ahead of their commit. What the Hub has already is not sent again."""
    with told("upload to", repo):
        api().preupload_lfs_files(repo, additions, repo_type=kind, create_pr=create_pr or None, free_memory=False)


def commit(
    repo: str,
    kind: str,
    operations: Sequence,
    message: str,
    *,
    parent: str | None,
    create_pr: bool = False,
    description: str = "",
):
    """One commit; Stale where main does not stand at `parent` any more. Returns huggingface_hub's CommitInfo (`oid`, `pr_url`)."""
    with told("commit to", repo):
        return api().create_commit(
            repo,
            operations,
            commit_message=message,
            commit_description=description,
            repo_type=kind,
            parent_commit=parent,
            create_pr=create_pr or None,
        )


def guarded(attempt: Callable[[], object], say: Callable[[str], None], repo: str):
    """Run `attempt` (read the head, decide, commit) until nobody else commits in between; HubFailure after COMMIT_TRIES."""
    import random
    import time

    for number in range(1, COMMIT_TRIES + 1):
        try:
            return attempt()
        except Stale:
            if number < COMMIT_TRIES:
                say(
                    f"somebody else has committed to {repo} meanwhile; reading it again (try {number + 1} of {COMMIT_TRIES})"
                )
                time.sleep(random.uniform(0.1, 0.5) * number)
    raise HubFailure(
        f"cannot commit to {repo}: others committed {COMMIT_TRIES} times in between; nothing was written, try again"
    )


def open_pull_requests(repo: str, kind: str, title: str) -> list[tuple[str, str]]:
    """(address, commit SHA) of each open pull request of this title."""
    with told("read the pull requests of", repo):
        found = api().get_repo_discussions(
            repo, repo_type=kind, discussion_type="pull_request", discussion_status="open"
        )
        return [
            (d.url, api().repo_info(repo, repo_type=kind, revision=d.git_reference).sha)
            for d in found
            if d.title == title
        ]


def tag(repo: str, kind: str, name: str, revision: str) -> None:
    """Set a tag at a commit SHA. An existing one is never moved: InputError."""
    with told(f"set the tag {name} on", repo):
        api().create_tag(repo, tag=name, revision=revision, repo_type=kind)
