"""Nothing of more than twelve lines is written twice: who mends one place would miss the other.

Lines are compared as tokens, without comments, docstrings, blank lines, imports and white space.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations

from tests.house.sources import ROOT

MOST_LINES = 12
FOLDERS = ("node", "operator", "pipeline", "e2e", "scripts", "tests")
GENERATED = "node/dledger/rpc/pb/"

ALLOWED: dict[tuple[str, str], str] = {}
"""Two files, and why they say the same. The list only gets shorter: no row may be stale."""

_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def code_lines(text: str) -> list[tuple[int, str]]:
    """Return number and tokens of each line that does something."""
    left_out = set(_not_code(ast.parse(text)))
    lines: dict[int, list[str]] = defaultdict(list)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _LAYOUT and token.start[0] not in left_out:
            lines[token.start[0]].append(token.string)
    return [(number, " ".join(tokens)) for number, tokens in sorted(lines.items())]


def _not_code(tree: ast.Module) -> Iterator[int]:
    """Yield the lines of imports, docstrings and what else is a string by itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        ):
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def repeats(files: Sequence[tuple[str, str]]) -> list[str]:
    """Return each pair of places with more than `MOST_LINES` equal lines, as a sentence.

    Args:
        files: Name and text of each.
    """
    window = MOST_LINES + 1
    code = {name: code_lines(text) for name, text in files}
    places: dict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    for name, lines in code.items():
        texts = [text for _, text in lines]
        for start in range(len(texts) - window + 1):
            places[tuple(texts[start : start + window])].append((name, start))
    equal = {pair for found in places.values() for pair in combinations(found, 2)}
    begins = sorted(
        (one, two)
        for one, two in equal
        if ((one[0], one[1] - 1), (two[0], two[1] - 1)) not in equal
    )
    return [_sentence(one, two, code, equal) for one, two in begins]


def _sentence(
    one: tuple[str, int],
    two: tuple[str, int],
    code: dict[str, list[tuple[int, str]]],
    equal: set[tuple[tuple[str, int], tuple[str, int]]],
) -> str:
    more = 0
    while ((one[0], one[1] + more + 1), (two[0], two[1] + more + 1)) in equal:
        more += 1
    where = " and ".join(f"{name}:{code[name][start][0]}" for name, start in (one, two))
    return f"{where} have {MOST_LINES + 1 + more} lines alike"


def _sources() -> list[tuple[str, str]]:
    return [
        (str(path.relative_to(ROOT)), path.read_text("utf-8"))
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not str(path.relative_to(ROOT)).startswith(GENERATED)
    ]


def _pair(sentence: str) -> tuple[str, str]:
    one, _, two = sentence.partition(" have ")[0].partition(" and ")
    return one.partition(":")[0], two.partition(":")[0]


def test_nothing_of_more_than_twelve_lines_is_written_twice() -> None:
    """But for what is listed; and what is listed is still so."""
    found = repeats(_sources())

    assert [sentence for sentence in found if _pair(sentence) not in ALLOWED] == []
    assert ALLOWED.keys() - {_pair(sentence) for sentence in found} == set()
    assert all(ALLOWED.values())


def test_a_repeat_is_seen_with_both_its_places() -> None:
    """However it is laid out and commented; one of twelve lines is none."""
    body = [f"    value_{number} = call({number})" for number in range(MOST_LINES + 1)]
    once = "\n".join(["import a", "def one():", '    """Say."""', *body])
    again = "\n".join(
        [
            "def two(x):",
            "    # why",
            *[f"{line}  # {n}\n" for n, line in enumerate(body)],
            "    x()",
        ]
    )
    short = "\n".join(["def three():", *body[:-1]])

    assert repeats([("a.py", once), ("b.py", again), ("c.py", short)]) == [
        "a.py:4 and b.py:3 have 13 lines alike"
    ]
    assert repeats([("a.py", once + "\n" + again)]) == ["a.py:4 and a.py:19 have 13 lines alike"]
