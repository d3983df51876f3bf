"""OpenAPI 3.0 schemas as self-contained JSON Schema, Draft 4: what every validator of the project runs on.

Draft 4 and not a later one, because OpenAPI 3.0 is derived from it (boolean `exclusiveMinimum`) and because
later drafts take `10.0` for an integer. Three things change on the way:

* `nullable: true` beside `type` becomes `type: [T, "null"]`, and null joins `enum`; beside anything else, it
  becomes `anyOf: [.., {type: "null"}]`.
* `$ref: '#/components/schemas/X'` becomes `#/definitions/X`; the definitions that can be reached are bundled.
* annotations (`description`, `example`, `default`, `format`, `x-*`, ...) are left out: they decide nothing.
  `format` too, since validators disagree on which ones they check; what one promises is written as bounds.
"""

from collections.abc import Mapping
from typing import Any

__all__ = ["reachable", "to_draft4"]

Schema = dict[str, Any]

PREFIX = "#/components/schemas/"
ONE = ("not",)
MANY = ("allOf", "anyOf", "oneOf")
PLAIN = (
    *("type", "enum", "required", "pattern", "multipleOf", "uniqueItems"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength"),
    *("minItems", "maxItems", "minProperties", "maxProperties"),
)


def to_draft4(schema: Mapping[str, Any], components: Mapping[str, Any]) -> Schema:
    """Convert one schema; `components` is the document's `components` object, where its references lead."""
    names = reachable(schema, components)
    while "$ref" in schema:  # at the root, Draft 4 would ignore the definitions beside it
        schema = components["schemas"][_name(schema["$ref"])]
    converted: Schema = _convert(schema)
    if names:
        converted["definitions"] = {name: _convert(components["schemas"][name]) for name in names}
    return converted


def reachable(schema: Any, components: Mapping[str, Any]) -> list[str]:
    """Name the component schemas that `schema` refers to, directly or through others, in the order found."""
    schemas: Mapping[str, Any] = components.get("schemas", {})
    found: dict[str, None] = {}
    waiting = [schema]
    while waiting:
        for name in _references(waiting.pop()):
            if name not in found:
                if name not in schemas:
                    raise ValueError(
                        f"{PREFIX}{name} does not exist: add it to components/schemas, or correct the $ref"
                    )
                found[name] = None
                waiting.append(schemas[name])
    return list(found)


def _convert(schema: Any) -> Any:
    if not isinstance(schema, Mapping):  # additionalProperties: true | false
        return schema
    if "$ref" in schema:
        bare: Schema = {"$ref": "#/definitions/" + _name(schema["$ref"])}
        return {"anyOf": [bare, {"type": "null"}]} if schema.get("nullable") else bare
    out: Schema = {key: schema[key] for key in PLAIN if key in schema}
    if "properties" in schema:
        out["properties"] = {name: _convert(member) for name, member in schema["properties"].items()}
    out.update(
        {key: _convert(schema[key]) for key in ("items", "additionalProperties", *ONE) if key in schema}
    )
    out.update({key: [_convert(member) for member in schema[key]] for key in MANY if key in schema})
    return _with_null(out) if schema.get("nullable") else out


def _with_null(converted: Schema) -> Schema:
    kind = converted.get("type")
    if not isinstance(kind, str):
        return {"anyOf": [converted, {"type": "null"}]} if converted else converted
    nullable: Schema = {**converted, "type": [kind, "null"]}
    if "enum" in nullable and None not in nullable["enum"]:
        nullable["enum"] = [*nullable["enum"], None]
    return nullable


def _references(schema: Any) -> list[str]:
    """List the names that one schema refers to; a member that is *named* `items` is not mistaken for one."""
    if not isinstance(schema, Mapping):
        return []
    if "$ref" in schema:
        return [_name(schema["$ref"])]
    children = [schema[key] for key in ("items", "additionalProperties", *ONE) if key in schema]
    children += [member for key in MANY for member in schema.get(key, ())]
    children += schema.get("properties", {}).values()
    return [name for child in children for name in _references(child)]


def _name(reference: str) -> str:
    if not reference.startswith(PREFIX):
        raise ValueError(f"{reference!r}: a schema refers only to {PREFIX}*")
    return reference.removeprefix(PREFIX)
