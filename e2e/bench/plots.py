"""Small SVG charts: lines over steps, and strips of single values. Pure text.

Drawn here because two kinds of chart are all the report needs. Colours are told apart without
colour vision, and every chart brings its own white ground.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from math import ceil, floor, log10
from typing import Final

COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_WIDTH: Final = 720
_LEFT: Final = 70
_RIGHT: Final = 190
_TOP: Final = 44
_PLOT: Final = 240
_FOOT: Final = 52
_LINE: Final = 18
_NAMES: Final = 310
"""Room for the names of strips."""


def line_chart(
    title: str,
    labels: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    *,
    x_name: str,
    y_name: str,
) -> str:
    """Draw one line for each series over equally spaced steps.

    Args:
        title: Above the chart.
        labels: Of the steps, left to right.
        series: A value for each step, None where there is none; from 0 up.
        x_name: Below the steps.
        y_name: Beside the title; the unit.
    """
    values = [value for line in series.values() for value in line if value is not None]
    top = nice_top(max(values, default=1))
    width = _WIDTH - _LEFT - _RIGHT
    step = width / max(1, len(labels) - 1)
    at = [_LEFT + number * step for number in range(len(labels))]
    parts = [
        _text(x, _TOP + _PLOT + 18, label, "middle") for x, label in zip(at, labels, strict=True)
    ]
    parts.append(_text(_LEFT + width / 2, _TOP + _PLOT + 38, x_name, "middle"))
    parts += _grid(top)
    for number, (name, line) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = [
            (x, _TOP + _PLOT * (1 - value / top))
            for x, value in zip(at, line, strict=True)
            if value is not None
        ]
        parts += [
            f'<line x1="{a:.1f}" y1="{b:.1f}" x2="{c:.1f}" y2="{d:.1f}" '
            f'stroke="{colour}" stroke-width="2"/>'
            for (a, b), (c, d) in pairwise(points)
        ]
        parts += [_dot(x, y, colour) for x, y in points]
        parts += _key(number, name, colour)
    return _svg(f"{title} ({y_name})", _TOP + _PLOT + _FOOT, parts)


def strip_chart(title: str, strips: Mapping[str, Sequence[float]], *, x_name: str) -> str:
    """Draw a row of dots for each strip, one a value, over a logarithmic scale.

    Args:
        title: Above the chart.
        strips: Positive values by name, top to bottom.
        x_name: Below the scale; the unit.
    """
    values = [value for strip in strips.values() for value in strip]
    low, high = floor(log10(min(values, default=1))), ceil(log10(max(values, default=10)))
    high = max(high, low + 1)
    height = _LINE * len(strips)
    left, width = _NAMES, _WIDTH - _NAMES - 30

    def x_of(value: float) -> float:
        return left + width * (log10(value) - low) / (high - low)

    parts = []
    for power in range(low, high + 1):
        x = x_of(10.0**power)
        parts.append(f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{_TOP + height}" {_FAINT}/>')
        parts.append(_text(x, _TOP + height + 18, f"{10.0**power:,g}", "middle"))
    parts.append(_text(left + width / 2, _TOP + height + 38, x_name, "middle"))
    for number, (name, strip) in enumerate(strips.items()):
        y = _TOP + _LINE * (number + 0.5)
        parts.append(_text(left - 10, y + 4, name, "end"))
        parts += [_dot(x_of(value), y, COLOURS[0], opacity=0.5) for value in strip]
    return _svg(title, _TOP + height + _FOOT, parts)


def nice_top(value: float) -> float:
    """Return 1, 2 or 5 times a power of ten, at least *value*, which is above 0."""
    power = 10.0 ** floor(log10(value)) if value > 0 else 1.0
    return next(times * power for times in (1, 2, 5, 10) if times * power >= value)


_FAINT: Final = 'stroke="#d8d8d8" stroke-width="1"'


def _grid(top: float) -> list[str]:
    parts = []
    for fifth in range(6):
        y = _TOP + _PLOT * (1 - fifth / 5)
        parts.append(
            f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" {_FAINT}/>'
        )
        parts.append(_text(_LEFT - 8, y + 4, f"{top * fifth / 5:,g}", "end"))
    return parts


def _key(number: int, name: str, colour: str) -> list[str]:
    x, y = _WIDTH - _RIGHT + 20, _TOP + 8 + number * _LINE
    return [_dot(x, y, colour), _text(x + 10, y + 4, name, "start")]


def _dot(x: float, y: float, colour: str, *, opacity: float = 1) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}" fill-opacity="{opacity:g}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" '
        'font-family="sans-serif" font-size="12">'
    )
    ground = '<rect width="100%" height="100%" fill="#ffffff"/>'
    caption = f'<text x="16" y="24" font-size="15" font-weight="bold">{escape(title)}</text>'
    return "\n".join([head, ground, caption, *parts, "</svg>\n"])
