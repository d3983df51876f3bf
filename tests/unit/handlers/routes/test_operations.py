from __future__ import annotations

import inspect

import openapi
from handlers.routes.operations import OPERATIONS

METHODS = ("get", "put", "post", "delete", "patch")


def test_the_table_is_the_documents_list_of_operations() -> None:
    paths = openapi.load()["paths"].values()
    documented = {path[method]["operationId"] for path in paths for method in METHODS if method in path}
    assert documented == OPERATIONS.keys()


def test_an_operation_is_the_function_of_its_name() -> None:
    for name, function in OPERATIONS.items():
        assert inspect.iscoroutinefunction(function), name
        assert name.removesuffix("_unversioned") == function.__name__
