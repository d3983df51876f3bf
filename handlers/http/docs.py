"""The document itself, and Swagger UI to read and try it: all from memory, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send
from swagger_ui_bundle import swagger_ui_path

import openapi

EXPORT = "openapi-3.1.json"  # for tools that read no 3.0
ASSETS = {
    "swagger-ui.css": "text/css",
    "swagger-ui-bundle.js": "text/javascript",
    "favicon-32x32.png": "image/png",
}
PAGE = b"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Parley</title>
<link rel="stylesheet" href="swagger-ui.css">
<link rel="icon" type="image/png" href="favicon-32x32.png">
</head>
<body>
<div id="swagger-ui"></div>
<script src="swagger-ui-bundle.js"></script>
<script src="start.js"></script>
</body>
</html>
"""
# What is tried goes where the page came from: a proxy may have put all paths behind a prefix
START = b"""const root = new URL("..", window.location.href);
fetch(new URL("openapi.json", root)).then((answer) => answer.json()).then((document) => {
  document.servers = [{ url: root.pathname.replace(/\\/$/, "") || "/" }];
  SwaggerUIBundle({
    spec: document,
    dom_id: "#swagger-ui",
    deepLinking: true,
    validatorUrl: null,
    presets: [SwaggerUIBundle.presets.apis],
  });
});
"""
POLICY = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
}


def docs_app(document: Mapping[str, Any], source: str) -> ASGIApp:
    """Return the pages beside the contract; `source` is the document as written. Other paths are 404."""
    as_json = orjson.dumps(document)
    folder = Path(swagger_ui_path)
    routes = [
        _page("/openapi.json", as_json, "application/json"),
        _page("/api-doc/openapi.json", as_json, "application/json"),  # TGI's address
        _page("/openapi.yaml", source.encode(), "application/yaml"),
        _page("/openapi-3.1.json", openapi.text(EXPORT).encode(), "application/json"),
        _page("/docs/", PAGE, "text/html"),
        _page("/docs/start.js", START, "text/javascript"),
        *(_page(f"/docs/{name}", (folder / name).read_bytes(), kind) for name, kind in ASSETS.items()),
        Route("/docs", _to_docs),
    ]
    return Router(routes, redirect_slashes=False, default=_not_found)


def _page(path: str, content: bytes, media_type: str) -> Route:
    async def page(request: Request) -> Response:
        return Response(content, headers=POLICY, media_type=media_type)

    return Route(path, page)


async def _to_docs(request: Request) -> Response:
    return RedirectResponse("docs/")  # relative: right behind a proxy's prefix, too


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    raise HTTPException(404)
