"""Bodies held against the contract's schemas: each schema compiled once, the verdict in a microsecond."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from jsonschema import Draft4Validator

from handlers.http.bounds import NONE, Bounds, bounds_of
from handlers.http.digits import with_digits
from handlers.http.errors import Refused
from handlers.http.explain import misfit_of
from handlers.http.support import NO_SYNONYMS, SupportRules, Synonyms
from openapi.schema import to_draft4

Json = Any
Schema = Mapping[str, Any]
Verdict = Callable[[Json], bool]

COMPILED = "compiled"  # jsonschema_rs
REFERENCE = "reference"  # jsonschema: slower by two orders of magnitude, held equal by a test

logger = logging.getLogger("parley.validation")


def available(validator: str) -> str:
    """Return the validator to use: the one asked for, or the reference if jsonschema_rs is missing."""
    if validator == COMPILED and importlib.util.find_spec("jsonschema_rs") is None:
        logger.warning("jsonschema_rs is not installed: requests are checked by jsonschema, slowly")
        return REFERENCE
    return validator


def compile_schema(schema: Schema, validator: str) -> Verdict:
    """Return the function that tells whether a parsed body fits `schema`, a self-contained Draft 4 schema."""
    if validator == REFERENCE:
        return partial(_fits, Draft4Validator(schema))
    import jsonschema_rs

    return jsonschema_rs.Draft4Validator(dict(schema)).is_valid


def _fits(validator: Draft4Validator, body: Json) -> bool:
    try:
        return validator.is_valid(body)
    except RecursionError:  # it shows the value that doesn't fit, which can be nested too deeply for that
        return False


@dataclass(frozen=True, slots=True)
class RequestCheck:
    """What one operation asks of its body."""

    schema: Schema
    is_valid: Verdict
    rules: SupportRules
    bounds: Bounds = NONE

    def __call__(self, body: Json, *, speaks_openai: bool = False, raw: bytes = b"") -> tuple[str, ...]:
        """Return the names of members without effect; `raw` is what the body was read from.

        `speaks_openai` says that a client of OpenAI's API has sent them, which may send some together.
        Raises 422 for too many of something, a wrong shape, or what isn't supported; in this order, as the
        first costs next to nothing.
        """
        self.bounds.check(body)
        if not self.is_valid(body):
            misfit = misfit_of(self.schema, with_digits(body, raw))
            raise Refused(
                f"Failed to deserialize the JSON body into the target type: {misfit}", param=misfit.member
            )
        return self.rules.check(body, speaks_openai=speaks_openai)


def request_check(
    schema: Schema, components: Schema, validator: str, synonyms: Synonyms = NO_SYNONYMS
) -> RequestCheck:
    """Compile the check of one request schema of the document."""

    def verdict(part: Schema) -> Verdict:
        return compile_schema(to_draft4(part, components), validator)

    rules = SupportRules(schema, components, verdict, synonyms)
    bounds = bounds_of(schema, components)
    return RequestCheck(to_draft4(schema, components), verdict(schema), rules, bounds)
