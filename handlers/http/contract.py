"""The contract as an ASGI application: connexion routes and authenticates, we validate and dispatch.

Only connexion's public middleware interface is used: its stack with our own list of middlewares, of which
three are its own (routing, security, lifespan). Its validation is replaced because it takes a millisecond
of CPU per request, refuses chunked bodies, and lets NaN and integers beyond their bounds pass.

    errors > routing > security > validation > lifespan > dispatch > what the contract doesn't have (docs,
    404)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

from connexion import ConnexionMiddleware
from connexion.middleware.abstract import ROUTING_CONTEXT, RoutedAPI, RoutedMiddleware
from connexion.middleware.lifespan import LifespanMiddleware
from connexion.middleware.routing import RoutingMiddleware
from connexion.middleware.security import SecurityMiddleware
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match, Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from handlers.http.aside import OnThread, is_large
from handlers.http.auth import opened, owner_of, security_map
from handlers.http.body import parse_json, read_body, require_json, too_large
from handlers.http.call import Call, Operation
from handlers.http.disconnect import UntilDisconnect
from handlers.http.errors import ClientDisconnected, Refused
from handlers.http.exchange import Exchange, exchange_of
from handlers.http.middleware import ErrorBoundary
from handlers.http.operations import operation_table
from handlers.http.sender import speaks_openai
from handlers.http.sse import EventStream
from handlers.http.support import NotSupported, header_value
from handlers.http.validation import RequestCheck, available, request_check
from handlers.keys import Keyring
from handlers.service import Service
from handlers.wire.images import image_characters
from handlers.wire.names import names_of
from inference.errors import NotReady, Overloaded
from inference.files.adapters import adapter_names

Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]
Checks = Mapping[str, RequestCheck]  # by operationId; operations without a body have none
ADAPTERS = frozenset({"load_lora_adapter", "unload_lora_adapter"})
TEXT_ALONE = ADAPTERS | {"tokenize"}  # operations in whose bodies nothing is an image
NOT_COUNTED = ADAPTERS | {"tokenize"}  # operations with a body that count no `tgi_request_count`


def contract_app(
    document: Mapping[str, Any],
    operations: Mapping[str, Operation[Any, Response]],
    service: Service,
    *,
    beside: ASGIApp,
    lifespan: Lifespan,
) -> ASGIApp:
    """Return the application that serves `document`; whatever isn't in it goes to `beside`.

    Raises ValueError if operations are missing or superfluous, and connexion's InvalidSpecification for a
    bad document.
    """
    table = operation_table(document)
    _require_same(table.keys(), operations.keys())
    keyring = Keyring(service.settings.api_key, service.settings.api_keys_file)
    service.engine.add_meter(service.quotas.charge)
    stack = ConnexionMiddleware(
        Dispatch(beside),
        import_name=__name__,
        lifespan=lifespan,
        middlewares=[ErrorBoundary, Routing, SecurityMiddleware, Validation, LifespanMiddleware],
        resolver=operations.__getitem__,
        security_map=security_map(keyring, document),
    )
    asked = document if keyring.locked else opened(document)
    stack.add_api(asked, service=service, checks=_checks(document, service))
    _build(stack)
    return stack


class Routing(RoutingMiddleware):
    """connexion's routing, without redirects for a trailing slash, and with every allowed method in a 405.

    Paths without parameters are looked up: matching them one after another takes an eighth of a request.
    """

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(app)
        self._plain: dict[tuple[str, str], dict[str, str]] = {}  # by method and path: connexion's context

    def add_api(self, *args: Any, **kwargs: Any) -> None:
        """Add the document's routes."""
        super().add_api(*args, **kwargs)
        for router in (self.router, *(mount.app for mount in self.router.routes)):
            router.redirect_slashes = False
            for route in router.routes:  # a name in a path may have a line break, which `.` is not
                route.path_regex = re.compile(route.path_regex.pattern, re.DOTALL)
        for mount in self.router.routes:
            for route in mount.app.routes:
                self._note_plain(mount, route)

    def _note_plain(self, mount: Mount, route: Route) -> None:
        if route.param_convertors:
            return
        operation: Any = route.endpoint
        context = {"api_base_path": mount.path, "operation_id": operation.operation_id}
        for method in route.methods or ():
            scope = {"type": "http", "method": method, "path": route.path, "root_path": ""}
            matching = (each for each in mount.routes if each.matches(scope)[0] is Match.FULL)
            if next(matching) is route:  # and not one with parameters before it
                self._plain[method, mount.path + route.path] = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Route one request."""
        if scope["type"] == "http" and not scope.get("root_path"):
            context = self._plain.get((scope["method"], scope["path"]))
            if context is not None:
                scope["extensions"][ROUTING_CONTEXT] = context
                await self.app(scope, receive, send)
                return
        try:
            await super().__call__(scope, receive, send)
        except HTTPException as error:
            if error.status_code != 405:
                raise
            allowed = self._allowed(scope, error.headers or {})
            raise HTTPException(405, headers={"allow": ", ".join(sorted(allowed))}) from None

    def _allowed(self, scope: Scope, said: Mapping[str, str]) -> set[str]:
        """Return a path's methods: of pages beside the contract those that their own routes said."""
        routes = [route for mount in self.router.routes for route in mount.app.routes]
        partial = [route for route in routes if route.matches(scope)[0] is Match.PARTIAL]
        methods = {method for route in partial for method in route.methods}
        return methods or {*said.get("Allow", "").split(", ")}


class ValidationStep:
    """Counts a request of a key, then reads, parses and checks its body: a large one's on a thread."""

    def __init__(self, name: str, check: RequestCheck, service: Service, next_app: ASGIApp) -> None:
        self._check = check
        self._names = names_of(name)
        self._service = service
        self._images = name not in TEXT_ALONE  # the body may have some, and be larger for them
        self._counts = name not in NOT_COUNTED
        self._limit = service.settings.payload_limit
        self._seconds = service.settings.body_timeout
        self._quotas = service.quotas
        self._lane = service.lane
        self._next = next_app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = exchange_of(scope)
        exchange.owner = owner_of(scope)
        try:
            self._quotas.take(exchange.key)
        except Refused:
            self._count_refused("rate_limited")
            raise
        try:
            await self._taken(exchange, scope, receive, send)
        except (Overloaded, NotReady):  # it is told to come again
            self._quotas.give_back(exchange.key)
            raise

    async def _taken(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        require_json(scope)
        if not self._images or (self._service.engine.loaded and not self._service.sees):
            raw = await read_body(scope, receive, self._limit, self._seconds)
            await self._go_on(exchange, raw, scope, receive, send)
            return
        limit = max(self._limit, self._service.settings.image_payload_limit)
        with self._service.image_memory.hold() as hold:
            exchange.hold = hold
            grows = partial(hold.beyond, self._limit)
            try:
                raw = await read_body(scope, receive, limit, self._seconds, grows)
            except Overloaded:
                self._count_refused("overloaded")
                raise
            await self._go_on(exchange, raw, scope, receive, send)

    async def _go_on(
        self, exchange: Exchange, raw: bytes, scope: Scope, receive: Receive, send: Send
    ) -> None:
        exchange.speaks_openai = speaks_openai(scope)
        exchange.names = self._names
        read = partial(self._read, raw, speaks_openai=exchange.speaks_openai)
        try:
            if is_large(raw):
                exchange.aside = OnThread(self._lane, len(raw))
                async with UntilDisconnect(receive):
                    exchange.body, exchange.ignored = await exchange.aside(read)
            else:
                exchange.body, exchange.ignored = read()
        except NotSupported:  # the body is understood: a refusal like those of the operation itself
            self._count_refused("validation")
            raise
        except Overloaded:
            self._count_refused("overloaded")
            raise
        await self._next(scope, receive, send)

    def _count_refused(self, err: str) -> None:
        """Count a request that no operation hears of."""
        if self._counts:
            self._service.metrics.count_request()
            self._service.metrics.failure(err)

    def _read(self, raw: bytes, *, speaks_openai: bool) -> tuple[Any, str]:
        """Return a body, parsed and checked, and the names of what has no effect."""
        body = parse_json(raw)
        if len(raw) > self._limit and len(raw) - image_characters(body) > self._limit:
            raise too_large(self._limit)
        ignored = self._check(body, speaks_openai=speaks_openai, raw=raw)
        if "model" in ignored and self._service.names_adapter(body["model"]):
            ignored = tuple(name for name in ignored if name != "model")
        return body, header_value(ignored) if ignored else ""


class ValidationAPI(RoutedAPI[ASGIApp]):
    """The validation steps of a document."""

    def __init__(self, *args: Any, service: Service, checks: Checks, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._service = service
        self._checks = checks
        self.add_paths()

    def make_operation(self, operation: Any) -> ASGIApp:
        """Return the step of one operation."""
        name = operation.operation_id
        if name not in self._checks:
            return self.next_app
        return ValidationStep(name, self._checks[name], self._service, self.next_app)


class Validation(RoutedMiddleware[ValidationAPI]):
    """Checks bodies before they are dispatched."""

    api_cls = ValidationAPI


class DispatchStep:
    """Calls one operation and sends its reply; a client that leaves cancels both."""

    def __init__(self, function: Operation[Any, Response], service: Service, *, watched: bool) -> None:
        self._function = function
        self._service = service
        self._watched = watched  # only what takes a body works long enough to be worth cancelling

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = exchange_of(scope)
        call: Call[Any] = Call(
            body=exchange.body,
            path=scope.get("path_params", {}),
            received=exchange.received,
            owner=exchange.owner,
            aside=exchange.aside,
            speaks_openai=exchange.speaks_openai,
            hold=exchange.hold,
        )
        reply = await (self._watch(call, receive) if self._watched else self._function(self._service, call))
        if isinstance(reply, EventStream):
            reply.keep_alive_seconds = self._service.settings.keep_alive_seconds
            reply.buffer_bytes = self._service.settings.stream_buffer
        await reply(scope, receive, send)

    async def _watch(self, call: Call[Any], receive: Receive) -> Response:
        reply: Response | None = None
        try:
            async with UntilDisconnect(receive):
                reply = await self._function(self._service, call)
        except ClientDisconnected:
            if isinstance(reply, EventStream):
                await reply.aclose()
            raise
        assert reply is not None
        return reply


class DispatchAPI(RoutedAPI[DispatchStep]):
    """The dispatch steps of a document."""

    def __init__(self, *args: Any, service: Service, checks: Checks, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._service = service
        self._checks = checks
        self.add_paths()

    def make_operation(self, operation: Any) -> DispatchStep:
        """Return the step of one operation."""
        watched = operation.operation_id in self._checks
        return DispatchStep(operation.function, self._service, watched=watched)


class Dispatch(RoutedMiddleware[DispatchAPI]):
    """The end of the stack: operations by their operationId."""

    api_cls = DispatchAPI


def _checks(document: Mapping[str, Any], service: Service) -> Checks:
    validator = available(service.settings.validator)
    components = document["components"]
    model = service.settings.engine_config().model
    # Names that need no mention: one has an effect, or says what is so in any case
    synonyms = {"tgi": (model.name, *adapter_names(model.adapters))}
    return {
        name: request_check(row.request_schema, components, validator, synonyms)
        for name, row in operation_table(document).items()
        if row.request_schema is not None
    }


def _require_same(documented: Any, written: Any) -> None:
    missing, superfluous = sorted(documented - written), sorted(written - documented)
    if missing or superfluous:
        raise ValueError(
            f"the document's operations and the handlers differ: without a handler {missing}, "
            f"not in the document {superfluous}"
        )


def _build(stack: ConnexionMiddleware) -> None:
    """Make connexion build its stack now, so that what is wrong is raised here.

    It builds with the first call, of whatever kind; the error boundary lets an unknown kind of scope end
    there.
    """

    async def receive() -> Message:
        raise AssertionError("nothing is received while the stack is built")

    async def send(message: Message) -> None:
        raise AssertionError("nothing is sent while the stack is built")

    call = stack({"type": ErrorBoundary.BUILD}, receive, send)
    try:
        call.send(None)
    except StopIteration:
        return
    raise AssertionError("building the stack waits for something")
