from __future__ import annotations

from xml.etree import ElementTree

import pytest

from benchmarks.plot import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Chart, draw

SVG = "{http://www.w3.org/2000/svg}"


def circles(charts: list[Chart]) -> list[tuple[float, float]]:
    root = ElementTree.fromstring(draw(charts))
    return [(float(circle.attrib["cx"]), float(circle.attrib["cy"])) for circle in root.iter(f"{SVG}circle")]


def test_points_lie_between_the_axes_by_their_logarithms() -> None:
    (first, middle, last) = circles([Chart("a", "b", {"x": [(1, 1), (8, 10), (64, 100)]})])
    corners = [(float(LEFT), float(HEIGHT - BOTTOM)), (float(WIDTH - RIGHT), float(TOP))]
    assert corners == [first, last]
    assert middle == pytest.approx(((LEFT + WIDTH - RIGHT) / 2, (HEIGHT - BOTTOM + TOP) / 2))


def test_names_are_escaped_and_all_lines_drawn() -> None:
    charts = [Chart("a < b", "x & y", {"one": [(1, 1), (2, 2)], "two": [(1, 3)]})] * 2
    assert len(circles(charts)) == 6
    texts = [element.text for element in ElementTree.fromstring(draw(charts)).iter(f"{SVG}text")]
    assert texts.count("a < b") == texts.count("x & y") == 2
