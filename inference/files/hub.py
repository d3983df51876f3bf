"""Files from the hub, or why they can't be had, in words that say what to do."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from inference.config import ModelConfig
from inference.errors import ModelUnavailable
from inference.files.downloads import Download, Wanted

LOG = logging.getLogger(__name__)

_CLIENTS = ("httpx", "httpx2")  # what the hub's library asks with: their errors of transport are no OSError
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_ELSEWHERE = "name another folder by --huggingface-hub-cache"


def find_snapshot(
    name: str,
    revision: str | None,
    config: ModelConfig,
    patterns: Sequence[str],
    ignored: Sequence[str] = (),
    progress: Callable[[str], None] = LOG.info,
) -> Path:
    """Return a repository's directory in the hub's cache, with the files that match; raise ModelUnavailable.

    They are downloaded if they aren't there; where `config` says that the model was found before, the hub
    is asked only if they have gone since. `ignored`: patterns of files to leave out. `progress` is told how
    far a download is, also from another thread.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    # Its own handler writes to standard error, which the log has, too: each warning would be there twice
    logging.getLogger("huggingface_hub").handlers.clear()
    cache = _checked_cache(name, config)
    find = partial(
        snapshot_download,
        name,
        revision=revision,
        cache_dir=config.cache_dir,
        allow_patterns=list(patterns),
        ignore_patterns=list(ignored),
    )
    try:
        if config.found is not None:
            with suppress(LocalEntryNotFoundError):
                return Path(find(local_files_only=True))
        with Download(Wanted(name, revision, cache, patterns, ignored), progress) as download:
            return Path(find(tqdm_class=download.bars))
    except LocalEntryNotFoundError as error:
        return _part(name, revision, error)
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ModelUnavailable(_why_not(name, revision, error)) from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _CLIENTS:
            raise
        LOG.warning("The hub can't be asked for %s (%s): what its cache has is taken", name, _shown(error))
        try:
            return Path(find(local_files_only=True))
        except LocalEntryNotFoundError as missing:
            return _part(name, revision, missing)


def _part(name: str, revision: str | None, error: Exception) -> Path:
    """Return the directory of a cache that lacks files of a repository; raise ModelUnavailable without one.

    Whether it lacks what is needed, who reads it finds out: a cache may have been filled without the rest.
    """
    place = getattr(error, "snapshot_path", None)  # since huggingface_hub 2 lists what a repository has
    if place is None:
        raise ModelUnavailable(_why_not(name, revision, error)) from error
    LOG.warning("The hub can't be asked for %s, of which its cache lacks files: %s", name, _shown(error))
    return Path(place)


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _checked_cache(name: str, config: ModelConfig) -> Path:
    """Return the hub's cache; raise ModelUnavailable if it is in a home directory, and there is none."""
    from huggingface_hub.constants import HF_HUB_CACHE

    place = config.cache_dir or HF_HUB_CACHE
    try:
        return Path(place).expanduser()
    except RuntimeError as error:  # no HOME, and a user of whom the system knows no more than the number
        raise ModelUnavailable(
            f"`{name}` can't be looked for: the hub's cache would be `{place}`, and there is no such home "
            "directory: set HF_HOME, or --huggingface-hub-cache, to a folder that can be written"
        ) from error


def _why_not(name: str, revision: str | None, error: Exception) -> str:
    from huggingface_hub import constants, errors

    if isinstance(error, errors.GatedRepoError):
        return f"`{name}` is gated: accept its terms on https://huggingface.co/{name}, then set HF_TOKEN"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"`{name}` has no revision `{revision}`: give a branch, tag or commit that exists"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"The hub has no model `{name}`, or it is private: check the name, or set HF_TOKEN"
    if isinstance(error, errors.HFValidationError):
        return f"`{name}` is neither a directory nor a hub id (`org/name`)"
    if isinstance(error, errors.LocalEntryNotFoundError) and constants.is_offline_mode():
        return (
            f"`{name}` is not in the hub's cache, and HF_HUB_OFFLINE keeps it from being downloaded: unset "
            "that, or download it elsewhere and give its directory"
        )
    reason = _trouble(error)
    if reason is not None:
        return f"`{name}` can't be downloaded: {reason}"
    return (
        f"`{name}` is not in the hub's cache and the hub can't be reached ({type(error).__name__}): "
        f"check the network, or download it elsewhere and give its directory"
    )


def _trouble(error: BaseException) -> str | None:
    """Return what went wrong, and what to do; None where the hub wasn't reached, or who knows why."""
    for each in _causes(error):
        status = getattr(getattr(each, "response", None), "status_code", None)
        if isinstance(status, int):
            return _refused(status)
        if isinstance(each, OSError) and each.errno in _FULL:
            return f"no space is left for the hub's cache: make some, or {_ELSEWHERE}"
        if isinstance(each, OSError) and each.errno in _FORBIDDEN:
            where = f"`{each.filename}`" if each.filename else "the hub's cache"
            return f"{where} can't be written ({each.strerror}): allow it, or {_ELSEWHERE}"
    return None


def _refused(status: int) -> str | None:
    if status == 401:
        return "the hub doesn't take the token (401): set HF_TOKEN to one that is valid, or to none"
    if status == 403:
        return "the hub refuses it to this token (403): ask for access, or set HF_TOKEN to another"
    if status == 429:
        return "the hub has had too many requests from here (429): try again later, or set HF_TOKEN"
    if status >= 500:
        return f"the hub answers with an error of its own ({status}): try again later"
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
