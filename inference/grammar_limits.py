"""How much work one grammar may cause; what is past a limit is refused before it is queued."""

from __future__ import annotations

from dataclasses import dataclass

SOURCE_BYTES = 131_072  # the default of `max_grammar_size`, and the most that it may be
NICENESS = 10  # of who compiles, and computes masks: texts come first where processors are few


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarLimits:
    """The limits of one grammar; measured by `benchmarks/structured.py` on two cores.

    The first group bounds what is handed to llguidance. It is written in Rust and recurses: some
    3,000 definitions that refer to each other in a chain overflow its stack, which would end the
    process, and 200 `patternProperties` compare each with each for a second. The second group
    bounds llguidance itself: a compilation to less than a second, a mask to some 50 ms.
    """

    seconds: float = 5.0  # that a request waits for its grammar, once a thread works on it
    source_bytes: int = SOURCE_BYTES  # of a schema or a regular expression, in UTF-8
    lark_bytes: int = 1_048_576  # of a grammar that the server wrote itself, around clients' schemas
    nesting: int = 64  # arrays and objects within each other, in a schema's JSON text
    values: int = 20_000  # in a schema's JSON text
    chain: int = 192  # schemas within schemas, references followed
    regex_chars: int = 8_192  # each; a compilation's time grows with its square
    pattern_properties: int = 32  # of one object; time grows with their cube
    schemas: int = 4_000  # that take part; more never fit `grammar_symbols`
    pointer_chars: int = 4_000_000  # of the JSON pointers of all schemas: each repeats the names around it
    remainders: int = 20_000  # that the `multipleOf` of a schema make; 10,000 take some 30 ms
    count: int = 1_000_000  # lengths and numbers of items; no context holds more

    grammar_symbols: int = 16_000  # in all productions
    row_items: int = 2_000  # what the grammar may mean at one place of the text
    step_items: int = 20_000
    lexer_states: int = 20_000  # 0.4 to 1.2 kB each; shared by all texts of one grammar
    compile_fuel: int = 1_000_000
    step_fuel: int = 1_500_000  # some 60,000 are spent in a millisecond
