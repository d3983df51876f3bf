"""One Jinja template, compiled once: rendered in a sandbox, within limits of time and size.

The environment is the one that transformers renders chat templates in (trim_blocks,
lstrip_blocks, loop controls, `tojson`, `raise_exception`, `strftime_now`, the `generation` tag),
so that the text is what the model was trained on. Templates come from the model's repository:
they are data, so they run sandboxed, and every loop and macro looks at the clock.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, UndefinedError, meta, nodes
from jinja2.environment import Template
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from inference.errors import TemplateFailed

RENDER_SECONDS = 5.0
RENDERED_CHARACTERS = 16 * 1024 * 1024
TEMPLATE_FILE = "<template>"  # the name that jinja2 gives to templates from strings, in tracebacks

Clock = Callable[[], datetime]


class ChatJinja:
    """A compiled template; `render` can be called from any thread."""

    names: frozenset[str]  # of the variables that it may read

    def __init__(self, source: str, *, clock: Clock = datetime.now) -> None:
        """Compile; raise TemplateFailed with the line of a syntax error."""
        environment = ChatEnvironment(clock)
        try:
            tree = environment.parse(source)
            self.names = frozenset(meta.find_undeclared_variables(tree) - environment.globals.keys())
            watch_loops(tree)
            code = environment.compile(tree)
        except TemplateSyntaxError as error:
            raise TemplateFailed(f"{error.message} (chat template, line {error.lineno})") from error
        self._watchdog = environment.watchdog
        self._template = Template.from_code(environment, code, environment.make_globals(None))

    def render(self, context: Mapping[str, object], *, seconds: float = RENDER_SECONDS) -> str:
        """Return the text; raise TemplateFailed with the reason and the template's line."""
        self._watchdog.start(seconds)
        try:
            return self._render(context)
        except TemplateFailed:
            raise
        except UndefinedError as error:
            raise TemplateFailed(f"{error.message}{at_line(error.__traceback__)}") from error
        except (TemplateError, SecurityError) as error:
            raise TemplateFailed(f"{error.message}{at_line(error.__traceback__)}") from error
        except RecursionError as error:
            raise TemplateFailed("the chat template recurses without end") from error
        except Exception as error:  # a template is a program: it can raise anything
            where = at_line(error.__traceback__)
            raise TemplateFailed(f"{type(error).__name__}: {error}{where}") from error

    def _render(self, context: Mapping[str, object]) -> str:
        pieces, size = [], 0
        for piece in self._template.generate(context):
            pieces.append(piece)
            size += len(piece)
            if size > RENDERED_CHARACTERS:
                raise TemplateFailed(
                    f"the chat template's output is longer than {RENDERED_CHARACTERS} characters"
                )
            self._watchdog.check()
        return "".join(pieces)


class Watchdog:
    """A deadline for each thread that renders."""

    def __init__(self) -> None:
        self._local = threading.local()

    def start(self, seconds: float) -> None:
        """Set this thread's deadline."""
        self._local.seconds = seconds
        self._local.deadline = time.monotonic() + seconds

    def check(self) -> None:
        """Raise TemplateFailed once the deadline has passed."""
        if time.monotonic() > self._local.deadline:
            raise TemplateFailed(f"the chat template took longer than {self._local.seconds} seconds")


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """transformers' environment for chat templates, with bounds on what one operator can build."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self, clock: Clock) -> None:
        self.watchdog = Watchdog()
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, Deadline, loopcontrols]
        )
        self.filters["tojson"] = tojson
        self.globals["raise_exception"] = raise_exception
        self.globals["strftime_now"] = lambda form: clock().strftime(form)
        self.globals["namespace"] = PlainNamespace
        self.globals["dict"] = PlainDict()

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse the operators that turn a short template into a huge value."""
        if operator == "*" and any(isinstance(side, (str, list, tuple)) for side in (left, right)):
            sizes = [side if isinstance(side, int) else len(side) for side in (left, right)]
            if sizes[0] * sizes[1] > RENDERED_CHARACTERS:
                raise SecurityError("a repetition is too long")
        if operator == "**" and isinstance(right, (int, float)) and abs(right) > 1000:
            raise SecurityError("an exponent is too large")
        if operator == "%" and isinstance(left, str) and any(len(part) > 6 for part in digit_runs(left)):
            raise SecurityError("a field width is too large")
        return super().call_binop(context, operator, left, right)


class Generation(Extension):
    """The `generation` tag, which marks what the assistant said for training; here it just shows its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as a set

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the tag's body in its own scope, as the original does."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return [nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)]

    def _body(self, caller: Macro) -> str:
        return caller()


class Deadline(Extension):
    """Gives `watch_loops` something to call."""

    def check(self) -> str:
        """Raise TemplateFailed once the deadline has passed."""
        environment = self.environment
        assert isinstance(environment, ChatEnvironment)
        environment.watchdog.check()
        return ""


class PlainDict:
    """Jinja's `dict` without the type behind it."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        """Return a dict with the same value for every key."""
        return dict.fromkeys(keys, value)


class PlainNamespace(Namespace):
    """Jinja's namespace without underscore names, which lead to Python's internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # no `self`: it may be one of the names
        self, values = args[0], dict(*args[1:], **kwargs)
        for name in values:
            refuse_underscore(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        refuse_underscore(name)
        super().__setitem__(name, value)


def watch_loops(tree: nodes.Template) -> None:
    """Have every loop and macro of a template look at the clock each time it is entered."""
    for node in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
        method = nodes.ExtensionAttribute(f"{Deadline.__module__}.{Deadline.__qualname__}", "check")
        check = nodes.ExprStmt(nodes.Call(method, [], [], None, None))
        node.body.insert(0, check.set_lineno(node.lineno))  # type: ignore[attr-defined]


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON without the HTML escapes of jinja2's own filter."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def raise_exception(message: str) -> None:
    """Let a template refuse its input."""
    raise TemplateError(message)


def refuse_underscore(name: object) -> None:
    """Raise SecurityError for a name that begins with an underscore."""
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace can't have the attribute {name!r}")


def digit_runs(text: str) -> list[str]:
    """Return the runs of digits in a text."""
    return "".join(char if char.isdigit() else " " for char in text).split()


def at_line(trace: TracebackType | None) -> str:
    """Return where in the template an error came up, as " (chat template, line 7)"."""
    line = None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == TEMPLATE_FILE:
            line = trace.tb_lineno
        trace = trace.tb_next
    return "" if line is None else f" (chat template, line {line})"
