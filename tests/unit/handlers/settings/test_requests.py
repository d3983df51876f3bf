"""The settings about requests."""

from __future__ import annotations

from handlers.settings.requests import RequestSettings
from handlers.settings.row import Group, rows_of


def test_the_rows_are_those_of_requests_and_what_they_bring() -> None:
    assert {row.group for row in rows_of(RequestSettings)} == {Group.REQUEST, Group.IMAGES}


def test_what_tgi_refuses_is_taken_from_openais_clients_by_a_setting_of_parleys_own() -> None:
    (row,) = (row for row in rows_of(RequestSettings) if row.attribute == "response_format_with_tools")
    assert (row.default, row.tgi) == ("openai", False)
