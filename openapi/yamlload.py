"""YAML read as JSON would be: no dates, no octal, no `on`/`yes`, no key twice."""

import re
from typing import Any, ClassVar

import yaml

BASE: Any = getattr(
    yaml, "CSafeLoader", yaml.SafeLoader
)  # libyaml is ten times faster, where PyYAML was built with it


class Loader(BASE):  # type: ignore[misc]  # the base is chosen at run time
    """A safe loader with the types of JSON (YAML 1.2's "JSON schema")."""

    yaml_implicit_resolvers: ClassVar[dict[str | None, list[tuple[str, Any]]]] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse a repeated key: plain YAML keeps the last one and says nothing."""
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} stands twice", key.start_mark
                )
            seen.add(key.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


for tag, expression, first in (
    ("null", r"null", ["n"]),
    ("bool", r"true|false", ["t", "f"]),
    ("int", r"-?(?:0|[1-9][0-9]*)", list("-0123456789")),
    ("float", r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?", list("-0123456789")),
):
    Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"^(?:{expression})$"), first)


def parse(source: str) -> Any:
    """Parse YAML text into the values JSON has."""
    return yaml.load(source, Loader)
