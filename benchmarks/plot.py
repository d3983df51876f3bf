"""A line chart as SVG, with both axes logarithmic: small enough to read, and readable on any background."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from xml.sax.saxutils import escape

Points = list[tuple[float, float]]
COLOURS = ("#3b6fb6", "#d9822b", "#3a9a5b", "#b5473f", "#7d5ba6", "#8a8a2e", "#4a9fa8")
WIDTH, HEIGHT = 460, 340
LEFT, RIGHT, TOP, BOTTOM = 62, 96, 34, 46
GREY = "#888888"


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart: a line of points for each name."""

    title: str
    across: str  # what the horizontal axis has
    lines: Mapping[str, Points]


def draw(charts: list[Chart]) -> str:
    """Return an SVG document with the charts side by side."""
    body = "\n".join(
        f'<g transform="translate({index * WIDTH} 0)">\n' + "\n".join(_chart(chart)) + "\n</g>"
        for index, chart in enumerate(charts)
    )
    width = WIDTH * len(charts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HEIGHT}" '
        f'viewBox="0 0 {width} {HEIGHT}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="{width}" height="{HEIGHT}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def _chart(chart: Chart) -> Iterator[str]:
    across = _Axis([x for points in chart.lines.values() for x, _ in points], LEFT, WIDTH - RIGHT)
    up = _Axis([y for points in chart.lines.values() for _, y in points], HEIGHT - BOTTOM, TOP)
    yield f'<text x="{LEFT}" y="{TOP - 14}" font-weight="bold">{escape(chart.title)}</text>'
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{escape(chart.across)}</text>'
    for tick in up.ticks():
        y = up.place(tick)
        yield f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{GREY}" stroke-opacity=".25"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>'
    for tick in sorted({x for points in chart.lines.values() for x, _ in points}):
        x = across.place(tick)
        yield f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{tick:g}</text>'
    yield f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" fill="none" stroke="{GREY}"/>'
    for index, (name, points) in enumerate(chart.lines.items()):
        yield from _line(name, [(across.place(x), up.place(y)) for x, y in points], index)


def _line(name: str, places: Points, index: int) -> Iterator[str]:
    colour = COLOURS[index % len(COLOURS)]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    yield f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
    for x, y in places:
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>'
    label = TOP + 6 + 17 * index
    yield f'<path d="M{WIDTH - RIGHT + 12} {label}h14" stroke="{colour}" stroke-width="2"/>'
    yield f'<text x="{WIDTH - RIGHT + 31}" y="{label + 4}">{escape(name)}</text>'


class _Axis:
    """From values to places, by their logarithms."""

    def __init__(self, values: list[float], first: float, last: float) -> None:
        self._least, self._most = min(values), max(values)
        self._first, self._last = first, last

    def place(self, value: float) -> float:
        """Return where a value stands."""
        span = math.log(self._most / self._least) or 1.0
        return self._first + (self._last - self._first) * math.log(value / self._least) / span

    def ticks(self) -> list[float]:
        """Return round numbers within the values."""
        exponents = range(math.floor(math.log10(self._least)), math.ceil(math.log10(self._most)) + 1)
        steps = [digit * 10.0**exponent for exponent in exponents for digit in (1, 2, 5)]
        return [step for step in steps if self._least <= step <= self._most]
