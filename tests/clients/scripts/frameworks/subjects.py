"""What the frameworks ask about: questions within the embedded model's reach, a schema and two tools.

Annotations are evaluated here, since LlamaIndex doesn't read those of the future.
"""

import json
from collections.abc import Mapping
from typing import Any, Literal

import jsonschema
from pydantic import BaseModel, Field

MODEL = "parley"
GREETING = "Hello, how are you?"
ABOUT_PERSON = "Mia is 34 years old. Give her name and age as JSON."
ABOUT_WEATHER = "What is the weather in Oslo?"


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=24)
    age: int = Field(ge=0, le=120)


def get_weather(city: str, unit: Literal["celsius", "fahrenheit"]) -> str:
    """Tell the weather in a city."""
    return json.dumps({"city": city, "temperature": 3, "unit": unit})


def get_time(city: str) -> str:
    """Tell the time in a city."""
    return json.dumps({"city": city, "time": "12:00"})


FUNCTIONS = {"get_weather": get_weather, "get_time": get_time}
CITY = {"type": "string", "maxLength": 24, "description": "The city"}
PARAMETERS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {"city": CITY, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
        "required": ["city", "unit"],
    },
    "get_time": {"type": "object", "properties": {"city": CITY}, "required": ["city"]},
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": function.__doc__, "parameters": PARAMETERS[name]},
    }
    for name, function in FUNCTIONS.items()
]


def user(content: str) -> list[dict[str, Any]]:
    """Return the messages of a conversation that one question begins."""
    return [{"role": "user", "content": content}]


def check_call(name: str, arguments: str | Mapping[str, Any]) -> None:
    """Raise unless a tool's arguments are valid by its schema."""
    given = json.loads(arguments) if isinstance(arguments, str) else dict(arguments)
    jsonschema.validate(given, PARAMETERS[name])


def check_person(text: str) -> None:
    """Raise unless a text is a person's JSON."""
    Person.model_validate_json(text)
