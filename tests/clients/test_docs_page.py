"""Swagger UI at /docs, as a person uses it: authorise, try an operation, read the answer.

In headless Chromium through its own driver. Skips where the browser is not installed
(Debian: `apt-get install chromium chromium-driver`).
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

import openapi
from tests.support import live_server

selenium = pytest.importorskip("selenium", reason="selenium is not installed: pip install -e '.[clients]'")

from selenium.webdriver import Chrome, ChromeOptions  # noqa: E402
from selenium.webdriver.chrome.service import Service as Driver  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.remote.webelement import WebElement  # noqa: E402
from selenium.webdriver.support.wait import WebDriverWait  # noqa: E402

KEY = "a key for the docs"
PATIENCE_SECONDS = 30
METHODS = {"get", "post"}


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("no chromium or chromedriver on this machine")
    options = ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,1600"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    chrome = Chrome(options=options, service=Driver(driver))
    yield chrome
    chrome.quit()


def _find(scope: Chrome | WebElement, css: str) -> WebElement:
    """Return the first visible element, after waiting for it."""

    def visible(_: object) -> WebElement | None:
        return next(
            (element for element in scope.find_elements(By.CSS_SELECTOR, css) if element.is_displayed()), None
        )

    found = WebDriverWait(scope, PATIENCE_SECONDS).until(visible, f"nothing visible matches {css}")
    assert isinstance(found, WebElement)
    return found


def _press(chrome: Chrome, element: WebElement) -> None:
    chrome.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    element.click()


def _authorise(chrome: Chrome, key: str) -> None:
    _press(chrome, _find(chrome, ".auth-wrapper .btn.authorize"))
    _find(chrome, ".modal-ux input").send_keys(key)
    _press(chrome, _find(chrome, ".modal-ux .btn.authorize"))
    _press(chrome, _find(chrome, ".modal-ux .btn-done"))


def _try(chrome: Chrome, operation: str) -> str:
    """Send an operation's example body and return the text of the answer's part of the page."""
    block = _find(chrome, f".opblock[id$='-{operation}']")
    _press(chrome, _find(block, ".opblock-summary-control"))
    _press(chrome, _find(block, ".try-out__btn"))
    _press(chrome, _find(block, ".btn.execute"))
    return _find(block, ".live-responses-table .response").text


def _hosts_asked(chrome: Chrome) -> set[str]:
    """Return the hosts of every request that the page made."""
    messages = [json.loads(entry["message"])["message"] for entry in chrome.get_log("performance")]  # type: ignore[no-untyped-call]
    urls = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return {urlsplit(url).netloc for url in urls if urlsplit(url).scheme in ("http", "https")}


def test_docs_shows_every_operation_authorises_and_tries_out_without_another_host(browser: Chrome) -> None:
    with live_server(api_key=KEY) as server:
        browser.get(f"{server.base_url}/docs")
        _find(browser, ".opblock")
        document = openapi.load()
        shown = sum(
            len(method["tags"])
            for methods in document["paths"].values()
            for name, method in methods.items()
            if name in METHODS
        )
        assert len(browser.find_elements(By.CSS_SELECTOR, ".opblock")) == shown

        assert "401" in _try(browser, "generate")
        _authorise(browser, KEY)
        _press(browser, _find(browser, ".opblock[id$='-generate'] .btn.execute"))
        WebDriverWait(browser, PATIENCE_SECONDS).until(
            lambda chrome: (
                "generated_text" in _find(chrome, ".opblock[id$='-generate'] .live-responses-table").text
            )
        )
        assert "data: {" in _try(browser, "generate_stream")

        assert _hosts_asked(browser) == {f"{server.host}:{server.port}"}
        severe = [e for e in browser.get_log("browser") if e["level"] == "SEVERE"]  # type: ignore[no-untyped-call]
        assert [e["message"] for e in severe if "401" not in e["message"]] == []


class Prefixed(BaseHTTPRequestHandler):
    """A proxy that has all paths of a server behind `/llm`."""

    port = 0  # of the server

    def do_GET(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length) if length else None
        if not self.path.startswith("/llm/"):
            self.send_error(404)
            return
        kept = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        with closing(HTTPConnection("127.0.0.1", self.port)) as server:
            server.request(self.command, self.path.removeprefix("/llm"), body, kept)
            answer = server.getresponse()
            content = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def test_behind_a_prefix_what_is_tried_goes_there(browser: Chrome) -> None:
    with live_server() as server:
        handler = type("Handler", (Prefixed,), {"port": server.port})
        proxy = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        try:
            browser.get(f"http://127.0.0.1:{proxy.server_port}/llm/docs/")
            _find(browser, ".opblock")
            assert "generated_text" in _try(browser, "generate")
        finally:
            proxy.shutdown()
            proxy.server_close()
