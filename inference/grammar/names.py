"""`propertyNames` by words that a grammar can express: names that are listed, or match an expression."""

from __future__ import annotations

from collections.abc import Mapping

from inference.grammar.fault import join
from inference.grammar.keywords import ANNOTATIONS, KEYWORDS, Node, may_be
from inference.grammar.tree import Place, Schema, SchemaTree

STEPS = 16  # of references, one to the next


def list_names(tree: SchemaTree) -> bool:
    """Write names as properties and patterns, in place, where that can be; return whether any were."""
    found = [place for place in tree.places if isinstance(place.schema, dict) and _rewrite(place, tree)]
    return bool(found)


def _rewrite(place: Place, tree: SchemaTree) -> bool:
    schema = place.schema
    assert isinstance(schema, dict)
    if "propertyNames" not in schema or tree.draft < 2017:
        return False
    names = _followed(Place(join(place.pointer, "propertyNames"), schema["propertyNames"], place.depth), tree)
    if not isinstance(names, Mapping) or not may_be(names, "string") or "patternProperties" in schema:
        return False
    words = names.keys() & KEYWORDS - ANNOTATIONS - {"type"}
    others = schema.get("additionalProperties", True)
    listed = names.get("enum", [names["const"]] if "const" in names else None)
    if len(words) == 1 and isinstance(listed, list) and all(isinstance(name, str) for name in listed):
        own = {name: each for name, each in schema.get("properties", {}).items() if name in listed}
        more = {} if others is False else {name: others for name in listed if name not in own}
        schema["properties"] = own | more
    elif words == {"pattern"} and "properties" not in schema:
        schema["patternProperties"] = {} if others is False else {names["pattern"]: others}
    else:
        return False
    schema["additionalProperties"] = False
    del schema["propertyNames"]
    return True


def _followed(place: Place, tree: SchemaTree) -> Schema | Node:
    """Return the schema that a schema refers to in the end; itself if it says more than that."""
    for _ in range(STEPS):
        schema = place.schema
        if not isinstance(schema, dict) or schema.keys() & KEYWORDS - ANNOTATIONS != {"$ref"}:
            break
        place = Place(*tree.resolve(place), place.depth)
    return place.schema
