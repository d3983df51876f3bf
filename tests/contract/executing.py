"""How an operation of the contract is asked: its address, and a body that asks it to continue a text."""

from __future__ import annotations

from typing import Any

import httpx

from codegen.document import Operation

ANSWERED = {"model": "tgi"}  # what the served model is called by, whatever its id


def address(operation: Operation) -> str:
    """Return an operation's path, filled with the examples of its parameters."""
    path = operation.path
    for parameter in operation.node.get("parameters", ()):
        name = parameter["name"]
        path = path.replace(f"{{{name}}}", ANSWERED.get(name, parameter["example"]))
    return path


def send(client: httpx.Client, operation: Operation, body: Any, **options: Any) -> httpx.Response:
    """Ask an operation; a body that is a text is sent as it stands, and declared as JSON."""
    if body is None:
        return client.request(operation.method, address(operation), **options)
    if isinstance(body, str):
        options |= {
            "content": body,
            "headers": {"content-type": "application/json", **options.get("headers", {})},
        }
        return client.request(operation.method, address(operation), **options)
    return client.request(operation.method, address(operation), json=body, **options)


def refusing(operation: Operation) -> int:
    """Return the status of a body that an operation refuses."""
    return 422 if "422" in operation.node["responses"] else 400


def asking(operation_id: str, text: str) -> dict[str, Any]:
    """Return a body that asks an operation to continue, or to cut up, a text."""
    messages = [{"role": "user", "content": text}]
    match operation_id:
        case "chat_completions" | "get_chat_tokenize" | "create_message" | "count_message_tokens":
            return {"messages": messages}
        case "create_response" | "count_input_tokens":
            return {"input": text}
        case "completions":
            return {"prompt": text}
        case "vertex_compatibility":
            return {"instances": [{"messages": messages}]}
        case "kserve_infer" | "kserve_infer_unversioned":
            return {"inputs": [{"data": [text]}]}
        case _:
            return {"inputs": text}
