"""What tools make of a server's OpenAPI document: `python generated.py TOOL URL PATH EXCHANGES`.

PATH is where the server has its document. EXCHANGES is a file of JSON: requests that the server answers,
each with `operation`, `path`, `body`, and the names of the bodies' schemas as `request` and `answer`. Prints
JSON. Needs the packages of tests/clients/generators.txt.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # where they find ruff


def main(tool: str, url: str, path: str, exchanges: str) -> int:
    """Run one tool; print what came of it."""
    with urllib.request.urlopen(url + path) as answer:
        document = json.load(answer)
    cases = json.loads(Path(exchanges).read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "openapi.json"
        source.write_text(json.dumps(document), encoding="utf-8")
        print(json.dumps(TOOLS[tool](source, Path(folder), url, cases)))
    return 0


def models(source: Path, folder: Path, url: str, cases: list[Any]) -> Any:
    """Validate requests and answers by pydantic models of datamodel-code-generator."""
    options = ["--input-file-type", "openapi", "--output-model-type", "pydantic_v2.BaseModel"]
    options += ["--formatters", "builtin", "--output", str(folder / "generated_models.py")]
    _run("datamodel_code_generator", "--input", str(source), *options)
    sys.path.insert(0, str(folder))
    import generated_models
    from pydantic import ValidationError

    held, overlooked = 0, []
    for case in cases:
        bodies = {"request": case["body"], "answer": _post(url + case["path"], case["body"])[1]}
        for side, body in bodies.items():
            try:
                getattr(generated_models, case[side]).model_validate(body)
                held += 1
            except ValidationError as error:
                overlooked.append(any(each["input"] is None for each in error.errors()))
    refused = _refuses(generated_models.GenerateRequest.model_validate, {"inputs": 1})
    return {"held": held, "overlooked": overlooked, "refuses": refused}


def client(source: Path, folder: Path, url: str, cases: list[Any]) -> Any:
    """Call the server by a client of openapi-python-client."""
    target = folder / "client"
    warned = [
        "--fail-on-warning",
        "--meta",
        "none",
        "--overwrite",
        "--output-path",
        str(target / "parley_client"),
    ]
    _run("openapi_python_client", "generate", "--path", str(source), *warned)
    sys.path.insert(0, str(target))
    from parley_client import Client
    from parley_client.api.generation import generate
    from parley_client.api.open_ai import chat_completions
    from parley_client.api.server import get_model_info
    from parley_client.models import ChatRequest, GenerateRequest

    with Client(base_url=url) as connected:
        called = {
            "generate": (generate, GenerateRequest),
            "chat_completions": (chat_completions, ChatRequest),
        }
        held = 0
        for case in cases:
            if case["operation"] not in called:
                continue
            module, model = called[case["operation"]]
            answer = module.sync_detailed(client=connected, body=model.from_dict(case["body"]))
            assert answer.status_code == 200
            assert answer.parsed.to_dict() == json.loads(answer.content)
            held += 1
        refused = generate.sync_detailed(
            client=connected, body=GenerateRequest.from_dict({"inputs": "", "parameters": {}})
        )
        info = get_model_info.sync(client=connected)
    return {"held": held, "refuses": refused.parsed.to_dict(), "info": info.to_dict()}


def validator(source: Path, folder: Path, url: str, cases: list[Any]) -> Any:
    """Hold requests and answers, with status and headers, against the document by openapi-core."""
    from openapi_core import OpenAPI
    from openapi_core.testing import MockRequest, MockResponse

    contract = OpenAPI.from_file_path(str(source))

    def asked(path: str, body: Any) -> Any:
        data, key = json.dumps(body).encode(), {"Authorization": "Bearer none"}
        return MockRequest(url, "post", path, data=data, content_type="application/json", headers=key)

    held = 0
    for case in cases:
        contract.validate_request(asked(case["path"], case["body"]))
        status, value, headers = _post(url + case["path"], case["body"])
        answer = MockResponse(
            json.dumps(value).encode(), status_code=status, content_type="application/json", headers=headers
        )
        contract.validate_response(asked(case["path"], case["body"]), answer)
        held += 1
    return {"held": held, "refuses": _refuses(contract.validate_request, asked("/generate", {"inputs": 1}))}


def _run(module: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{module}: {done.stdout}\n{done.stderr}")


def _post(address: str, body: Any) -> tuple[int, Any, dict[str, str]]:
    request = urllib.request.Request(
        address, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request) as answer:
        return answer.status, json.load(answer), dict(answer.headers)


def _refuses(check: Any, value: Any) -> str:
    try:
        check(value)
    except Exception as error:  # each tool has its own
        return type(error).__name__
    return ""


TOOLS = {"datamodel-code-generator": models, "openapi-python-client": client, "openapi-core": validator}

if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
