"""Downloads: what is said of one that failed, and when none is tried."""

from __future__ import annotations

import errno
import logging
import sys
from pathlib import Path

import httpx
import pytest
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from huggingface_hub.utils.logging import get_logger

from inference.config import Found, ModelConfig
from inference.errors import ModelUnavailable
from inference.files.checkpoint import find_checkpoint
from inference.files.hub import find_snapshot
from inference.text.files import find_files


def answered(status: int) -> HfHubHTTPError:
    request = httpx.Request("GET", "https://hub.example")
    return HfHubHTTPError("no", response=httpx.Response(status, request=request))


def caused_by(cause: Exception) -> LocalEntryNotFoundError:
    """Return what huggingface_hub raises where the hub's answer was an error."""
    error = LocalEntryNotFoundError("An error happened while trying to locate the files on the Hub")
    error.__cause__ = cause
    return error


FAILURES = [
    (OSError(errno.ENOSPC, "No space left on device"), r"no space is left .* --huggingface-hub-cache"),
    (PermissionError(errno.EACCES, "Permission denied", "/data/hub"), r"`/data/hub` can't be written \(Perm"),
    (OSError(errno.EROFS, "Read-only file system"), r"the hub's cache can't be written"),
    (answered(401), r"doesn't take the token \(401\)"),
    (answered(403), r"refuses it to this token \(403\)"),
    (caused_by(answered(429)), r"too many requests from here \(429\): try again later"),
    (caused_by(answered(503)), r"an error of its own \(503\): try again later"),
]


@pytest.mark.parametrize(("error", "message"), FAILURES)
def test_a_failed_download_says_why(error: Exception, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    config = ModelConfig(model_id="org/name")
    with pytest.raises(ModelUnavailable, match=f"org/name.* can't be downloaded: .*{message}"):
        find_checkpoint(config, print)
    with pytest.raises(ModelUnavailable, match=f"org/name.* can't be downloaded: .*{message}"):
        find_files(config)


def test_what_the_library_warns_of_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    def warn(*_: object, **__: object) -> str:
        get_logger("huggingface_hub.file_download").warning("the cache is slow")
        return "/"

    library = logging.getLogger("huggingface_hub")
    monkeypatch.setattr(library, "handlers", [logging.StreamHandler(sys.stderr)])
    monkeypatch.setattr("huggingface_hub.snapshot_download", warn)
    find_snapshot("org/name", None, ModelConfig(), ["*"])
    assert caplog.messages == ["the cache is slow"]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("error", [caused_by(ConnectionError("no network")), answered(418)])
def test_a_hub_out_of_reach_is_told_as_before(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(ModelUnavailable, match="can't be reached"):
        find_checkpoint(ModelConfig(model_id="org/name"), print)
    with pytest.raises(ModelUnavailable, match="can't be reached"):
        find_files(ModelConfig(model_id="org/name"))


def incomplete(place: Path) -> LocalEntryNotFoundError:
    """Return what huggingface_hub raises, since version 2, for a cache that lacks any of the files."""
    error = LocalEntryNotFoundError("LICENSE.txt is not in the cache")
    error.snapshot_path = str(place)
    return error


@pytest.mark.parametrize("asks", [True, False])
def test_a_cache_that_lacks_files_is_taken_where_the_hub_cannot_be_asked(
    asks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, local_files_only: bool = False, **__: object) -> str:
        if asks and not local_files_only:
            raise httpx.ProxyError("no way")
        raise incomplete(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    assert find_snapshot("org/name", None, ModelConfig(), ["*"]) == tmp_path
    assert "LICENSE.txt is not in the cache" in caplog.messages[-1]
    assert ("ProxyError: no way" in caplog.messages[0]) == asks
    again = ModelConfig(found=Found("a" * 40, None))
    assert find_snapshot("org/name", "a" * 40, again, ["*"]) == tmp_path


def test_the_variable_that_keeps_the_hub_from_being_asked_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelUnavailable, match="HF_HUB_OFFLINE keeps it from being downloaded"):
        find_snapshot("org/name", None, ModelConfig(cache_dir=str(tmp_path)), ["*"])


@pytest.mark.parametrize("kind", [httpx.ProxyError, httpx.ReadError, httpx.RemoteProtocolError])
@pytest.mark.parametrize("cached", [False, True])
def test_an_error_of_transport_leaves_what_the_cache_has(
    cached: bool, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, local_files_only: bool = False, **__: object) -> str:
        if not local_files_only:
            raise kind("no way")
        if not cached:
            raise LocalEntryNotFoundError("nothing there")
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    if cached:
        assert find_snapshot("org/name", None, ModelConfig(), ["*"]) == tmp_path
        return
    with pytest.raises(ModelUnavailable, match="is not in the hub's cache and the hub can't be reached"):
        find_snapshot("org/name", None, ModelConfig(), ["*"])


def test_errors_of_others_are_not_taken_for_the_hubs(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> str:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(RuntimeError):
        find_snapshot("org/name", None, ModelConfig(), ["*"])


@pytest.mark.parametrize("gone", [False, True])
def test_what_was_found_before_is_asked_for_only_where_it_has_gone(
    gone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def download(*_: object, local_files_only: bool = False, **__: object) -> str:
        asked.append(not local_files_only)
        if local_files_only and gone:
            raise LocalEntryNotFoundError("some have gone")
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    again = ModelConfig(found=Found("a" * 40, None))
    assert find_snapshot("org/name", "a" * 40, again, ["*"]) == tmp_path
    assert asked == [False, *([True] if gone else [])]
    asked.clear()
    assert find_snapshot("org/name", None, ModelConfig(), ["*"]) == tmp_path
    assert asked == [True]


@pytest.mark.parametrize("given", [None, "~nosuchuser/hub"])
def test_a_cache_in_a_home_that_is_not_there_is_refused_with_what_to_set(
    given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = given or "~nosuchuser/.cache/hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", "~nosuchuser/.cache/hub")
    config = ModelConfig(model_id="org/name", cache_dir=given)
    with pytest.raises(ModelUnavailable, match=f"`org/name` .*`{place}`.* set HF_HOME, or --hugg") as told:
        find_checkpoint(config, print)
    with pytest.raises(ModelUnavailable) as again:
        find_files(config)
    assert str(told.value) == str(again.value)
