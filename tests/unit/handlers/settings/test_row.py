"""The readers of a setting's text, and what a row says of itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.settings.row import (
    Group,
    Setting,
    boolean,
    choice,
    comma_list,
    decimal,
    endpoint,
    integer,
    text,
)


@given(st.integers(), st.integers(), st.integers())
def test_integers_are_read_within_their_bounds_only(value: int, low: int, span: int) -> None:
    high = low + abs(span)
    if low <= value <= high:
        assert value == integer(low, high)(str(value))
    else:
        with pytest.raises(ValueError, match="must be"):
            integer(low, high)(str(value))


@given(st.text())
def test_readers_take_a_text_or_refuse_it_with_a_reason(text: str) -> None:
    for reader in (integer(1), decimal(0), boolean, comma_list):
        reason = "must be"
        try:
            reader(text)
        except ValueError as error:
            reason = str(error)
        assert reason.startswith("must be")


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999", "1.5", "0"])
def test_numbers_that_are_none_or_out_of_bounds_are_refused(value: str) -> None:
    with pytest.raises(ValueError, match="must be greater than 0 and at most 1"):
        decimal(0, 1, above=True)(value)


def test_texts_choices_and_lists() -> None:
    assert choice("auto", "cpu")(" CPU ") == "cpu"
    assert comma_list(" a, b,,") == ("a", "b")
    assert comma_list(" ") == ()
    with pytest.raises(ValueError, match="must be UTF-8"):
        comma_list("a,\udcff")
    with pytest.raises(ValueError, match="must not be empty"):
        text(" ")


@pytest.mark.parametrize("value", ["http://c:4317", "https://c.example", "http://[::1]:4317/", "c:4317"])
def test_a_collector_is_named_by_a_url_or_host_and_port(value: str) -> None:
    assert endpoint(f" {value} ") == value


@pytest.mark.parametrize("value", ["", "c", "ftp://c:1", "http://", "http://c/v1/traces", "c:port", "a b:1"])
def test_what_names_no_collector_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="must"):
        endpoint(value)


def test_a_row_names_its_flag_and_its_variable_by_its_attribute() -> None:
    tgis = Setting(attribute="max_x", default=1, parse=integer(0), help="x", group=Group.HTTP)
    ours = Setting(attribute="max_x", default=1, parse=integer(0), help="x", group=Group.HTTP, tgi=False)
    assert (tgis.names, tgis.variables) == (("--max-x",), ("MAX_X",))
    assert (ours.names, ours.variables) == (("--max-x",), ("PARLEY_MAX_X",))


@given(st.integers(0, 10**9))
def test_what_is_shown_is_read_back(value: int) -> None:
    row = Setting(attribute="x", default=0, parse=integer(0), help="x", group=Group.HTTP)
    assert row.parse(row.show(value)) == value
