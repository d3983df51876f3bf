"""One Jinja template, compiled once: rendered in a sandbox, within limits of time and size.

The environment is the one that transformers renders chat templates in (trim_blocks,
lstrip_blocks, loop controls, `tojson`, `raise_exception`, `strftime_now`, the `generation` tag),
so that the text is what the model was trained on. Templates come from the model's repository:
they are data, so they run in `sandbox.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import TracebackType

from jinja2 import TemplateError, TemplateSyntaxError, UndefinedError, meta, nodes
from jinja2.environment import Template
from jinja2.exceptions import SecurityError

from inference.errors import Member, TemplateFailed
from inference.text.growth import CHARACTERS
from inference.text.sandbox import ChatEnvironment, Clock, watch

RENDER_SECONDS = 5.0
SOURCE_CHARACTERS = 1024 * 1024  # the longest templates have some 30,000
TEMPLATE_FILE = "<template>"  # the name that jinja2 gives to templates from strings, in tracebacks


class ChatJinja:
    """A compiled template; `render` can be called from any thread."""

    names: frozenset[str]  # of the variables that it may read
    constants: frozenset[str]  # the texts in its expressions
    texts: tuple[str, ...]  # these, and what is written between them

    def __init__(self, source: str, *, clock: Clock = datetime.now) -> None:
        """Compile; raise TemplateFailed with the line of a syntax error."""
        if len(source) > SOURCE_CHARACTERS:
            raise TemplateFailed(
                f"the chat template has {len(source)} characters, and {SOURCE_CHARACTERS} are the most"
            )
        environment = ChatEnvironment(clock)
        environment.watchdog.start(RENDER_SECONDS)  # constants are computed now
        try:
            tree = environment.parse(source)
            self.names = frozenset(meta.find_undeclared_variables(tree) - environment.globals.keys())
            self.constants = frozenset(
                each.value for each in tree.find_all(nodes.Const) if isinstance(each.value, str)
            )
            written = (each.data for each in tree.find_all(nodes.TemplateData))
            self.texts = (*self.constants, *written)
            watch(tree)
            code = environment.compile(tree)
        except TemplateSyntaxError as error:
            raise TemplateFailed(f"{error.message} (chat template, line {error.lineno})") from error
        except (RecursionError, SyntaxError, MemoryError) as error:  # of Python's compiler
            raise TemplateFailed("the chat template is nested too deeply") from error
        self._watchdog = environment.watchdog
        self._template = Template.from_code(environment, code, environment.make_globals(None))

    def render(
        self, context: Mapping[str, object], *, seconds: float = RENDER_SECONDS, characters: int = CHARACTERS
    ) -> str:
        """Return the text, within a time and a length; raise TemplateFailed, with the template's line."""
        self._watchdog.start(seconds)
        try:
            return self._render(context, characters)
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

    def _render(self, context: Mapping[str, object], characters: int) -> str:
        pieces, size = [], 0
        for piece in self._template.generate(context):
            pieces.append(piece)
            size += len(piece)
            if size > characters:
                raise TemplateFailed(
                    f"what the chat template makes of the conversation must have <= {characters} characters "
                    f"(`max_template_output`). Given: {size} or more: send shorter ",
                    Member("messages", only_named=True),
                    " or `tools`",
                )
            self._watchdog.check()
        return "".join(pieces)


def at_line(trace: TracebackType | None) -> str:
    """Return where in the template an error came up, as " (chat template, line 7)"."""
    line = None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == TEMPLATE_FILE:
            line = trace.tb_lineno
        trace = trace.tb_next
    return "" if line is None else f" (chat template, line {line})"
