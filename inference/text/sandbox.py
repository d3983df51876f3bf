"""The environment that chat templates run in: jinja2's sandbox, where no value grows without bounds.

A template comes with a model and is a program. Loops, macros, calls and filters look at the clock, so that
it ends soon after its time; what can't look is one operation of Python, and those are bounded by the size of
what they are given: texts, numbers and lists are refused where they would become huge (`growth.py`,
`forms.py`), as are methods (`methods.py`) and filters (`filters.py`) that would take long. So a template
holds a thread no longer than its time and one operation on a few such values; how many of them it holds,
its time bounds alone.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import wraps
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Namespace
from jinja2.visitor import NodeTransformer

from inference.errors import Member, TemplateFailed
from inference.text.filters import FILTERS
from inference.text.forms import percent_bounded, tojson
from inference.text.growth import bounded, extent, fits, grown, power, product
from inference.text.methods import METHODS

LEFT_OUT = ("urlize", "striptags", "pprint", "wordwrap", "xmlattr")  # slow on long texts, of no use in chats
FORM_CHARACTERS = 256  # of a form for `strftime_now`
GUARDED = (str, bytes, int, dict, type, type(None))  # what has methods among METHODS; a static one has None
SCOPES = ("_loop_vars", "_block_vars")  # which jinja2 passes with each call within a loop or a block

WRITTEN = 4  # times as much as a text may have, counting what macros write again; all of it is in memory

Clock = Callable[[], datetime]


class Watchdog:
    """A deadline for each thread that renders."""

    def __init__(self) -> None:
        self._local = threading.local()

    def start(self, seconds: float) -> None:
        """Set this thread's deadline."""
        self._local.seconds = seconds
        self._local.written = 0
        self._local.deadline = time.monotonic() + seconds

    def check(self) -> None:
        """Raise TemplateFailed once the deadline has passed."""
        if time.monotonic() > self._local.deadline:
            took = f"took longer than {self._local.seconds:g} s (`template_timeout`)"
            raise TemplateFailed(
                f"the chat template {took}: send shorter ", Member("messages", only_named=True), " or `tools`"
            )

    def count(self, characters: int) -> None:
        """Count what is written, to wherever; raise SecurityError for too much in one rendering."""
        self._local.written += characters
        fits(self._local.written // WRITTEN)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """transformers' environment for chat templates, with bounds on what one operation can build."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, clock: Clock) -> None:
        self.watchdog = Watchdog()
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[Generation, Bounds, loopcontrols],
            finalize=self._written,
        )
        self.filters["tojson"] = tojson
        self.globals["raise_exception"] = raise_exception
        self.globals["strftime_now"] = lambda form: clock().strftime(short_form(form))
        self.globals["namespace"] = PlainNamespace
        self.globals["dict"] = PlainDict()
        self.globals["cycler"] = lambda *items: Cycler(*bounded(items))
        del self.globals["lipsum"]
        for name in LEFT_OUT:
            del self.filters[name]
        for name, filter in self.filters.items():
            self.filters[name] = self._watched(filter, FILTERS.get(name))

    def _written(self, value: Any) -> Any:
        """Return a value that is written, to the prompt or for a macro or block to keep, within bounds."""
        self.watchdog.count(extent(value)[1])
        return value

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """Return what a macro, a block or the template has written; raise SecurityError if it is huge."""
        texts = list(parts)
        fits(sum(map(len, texts)))
        return "".join(texts)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function or a method, after a look at the clock and at what it would build."""
        __self.watchdog.check()
        method = getattr(__obj, "__wrapped__", __obj)  # jinja2 wraps `format`
        owner = getattr(method, "__self__", None)
        if isinstance(owner, GUARDED):
            guard = METHODS.get(getattr(method, "__name__", ""))
            if guard is not None:
                named = {name: value for name, value in kwargs.items() if name not in SCOPES}
                args = guard(owner, *args, **named)
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse the operators that turn a short template into a huge value."""
        if operator == "+":
            grown(left, right)
        elif operator == "*":
            product(left, right)
        elif operator == "**":
            power(left, right)
        elif isinstance(left, (str, bytes)):  # "%"
            percent_bounded(left, right)
        return super().call_binop(context, operator, left, right)

    def _watched(self, filter: Callable[..., Any], guard: Callable[..., Any] | None) -> Callable[..., Any]:
        check = self.watchdog.check

        @wraps(filter)  # the attributes by which jinja2 knows what a filter wants to be passed, too
        def watched(*args: Any, **kwargs: Any) -> Any:
            check()
            if guard is not None:
                args = guard(*args, **kwargs)
            return filter(*args, **kwargs)

        return watched


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


class Bounds(Extension):
    """Gives what `watch` puts into a template something to call."""

    def check(self) -> str:
        """Raise TemplateFailed once the deadline has passed."""
        environment = self.environment
        assert isinstance(environment, ChatEnvironment)
        environment.watchdog.check()
        return ""

    def bounded(self, value: Any) -> Any:
        """Return a list, tuple or dict that isn't huge; raise SecurityError for others."""
        return bounded(value)

    def concat(self, *parts: Any) -> str:
        """Return what `~` makes of its parts."""
        texts = [str(bounded(part)) for part in parts]
        grown(*texts)
        return "".join(texts)


class Watch(NodeTransformer):
    """Has whatever a template builds looked at."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        """Have `~` bounded."""
        self.generic_visit(node)
        return calling("concat", node.nodes, node)

    def visit_Name(self, node: nodes.Name) -> nodes.Node:
        """Have what a macro was passed beyond its parameters bounded: it's a new tuple or dict."""
        passed = node.name in ("varargs", "kwargs") and node.ctx == "load"
        return calling("bounded", [node], node) if passed else node

    def visit_List(self, node: nodes.List) -> nodes.Node:
        """Have a list bounded; those in each other can print as more than there is memory."""
        self.generic_visit(node)
        constant = all(isinstance(item, nodes.Const) for item in node.items)
        return node if constant else calling("bounded", [node], node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        """Have a tuple bounded, unless it names what is assigned to."""
        self.generic_visit(node)
        constant = all(isinstance(item, nodes.Const) for item in node.items)
        return node if constant or node.ctx != "load" else calling("bounded", [node], node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        """Have a dict bounded."""
        self.generic_visit(node)
        constant = all(isinstance(item.value, nodes.Const) for item in node.items)
        return node if constant else calling("bounded", [node], node)


def watch(tree: nodes.Template) -> None:
    """Have loops and macros of a template look at the clock, and what it builds be bounded."""
    Watch().visit(tree)
    for node in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
        check = nodes.ExprStmt(calling("check", [], node))
        node.body.insert(0, check.set_lineno(node.lineno))  # type: ignore[attr-defined]


def calling(name: str, arguments: list[nodes.Expr], node: nodes.Node) -> nodes.Call:
    """Return the call of a method of `Bounds`, in the place of a node."""
    method = nodes.ExtensionAttribute(f"{Bounds.__module__}.{Bounds.__qualname__}", name)
    call = nodes.Call(method, arguments, [], None, None)
    call.set_lineno(node.lineno)
    assert node.environment is not None
    call.set_environment(node.environment)
    return call


class PlainDict:
    """Jinja's `dict` without the type behind it."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        made: dict[Any, Any] = bounded(dict(*args, **kwargs))
        return made

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        """Return a dict with the same value for every key."""
        made: dict[Any, Any] = bounded(dict.fromkeys(keys, value))
        return made


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

    def __repr__(self) -> str:  # not what is in it, which may be others, without end
        return "<Namespace>"


def raise_exception(message: str) -> None:
    """Let a template refuse its input."""
    raise TemplateError(message)


def short_form(form: str) -> str:
    """Return a form for dates; raise SecurityError for one that could print pages."""
    if len(form) > FORM_CHARACTERS or re.search(r"\d{3}", form):
        raise SecurityError("the form of a date is too long")
    return form


def refuse_underscore(name: object) -> None:
    """Raise SecurityError for a name that begins with an underscore."""
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace can't have the attribute {name!r}")
