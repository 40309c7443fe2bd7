"""SQL92 expressions over the properties of messages, as RocketMQ's consumers filter with them.

`expression` reads one and returns what tells whether a message matches. It is used on the leader
alone, when it looks for what a poll gets; what it finds goes into the log (RECEIVE_AT). So no
replica's state depends on this grammar, and a later version may read it otherwise.

::

    price BETWEEN 10 AND 20.5 AND colour IN ('red', 'it''s') AND NOT (TAGS = 'a' OR note IS NULL)

A property is text. Compared with a number it is read as one of the same kind: with ``10`` as a
whole one of 64 bits, with ``10.0`` as a fraction; with ``TRUE`` as a truth value. Text that cannot
be read so makes the whole message no match, whatever else is asked, as in RocketMQ. A property that
the message does not have is unknown, and so is what is made of it: ``NOT (a = 1)`` does not match a
message without ``a``. Only what is true matches.

An expression comes from a client: its length and its nesting are bounded, and nothing here recurs
deeper than that. The parser itself has no recursion (LALR, with what is made of each rule at once).
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias, cast

from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken, VisitError

from dledger.broker.commands import MAX_EXPRESSION_BYTES
from dledger.errors import InvalidArgument

MAX_CONDITIONS: Final = 256
"""Comparisons in one expression, by which the time to read it, and to evaluate it, is bounded."""
MAX_NESTING: Final = 32
"""Brackets and NOTs around one another."""
MAX_ALIVE: Final = 64
"""Expressions that are remembered; another one is read again."""
TAGS: Final = "TAGS"
"""The property that is the message's tag."""

_GRAMMAR: Final = r"""
?start: any_of
?any_of: all_of (_OR all_of)*
?all_of: one (_AND one)*
?one: _NOT one -> negate
    | condition
?condition: "(" any_of ")" -> bracket
    | TRUE -> always
    | FALSE -> never
    | operand COMPARISON operand -> compare
    | bound _BETWEEN bound _AND bound -> between
    | bound _NOT _BETWEEN bound _AND bound -> outside
    | bound _IN texts -> among
    | bound _NOT _IN texts -> not_among
    | bound _IS _NULL -> missing
    | bound _IS _NOT _NULL -> present
    | bound TEST STRING -> test_text
    | bound _NOT TEST STRING -> not_test_text
texts: "(" STRING ("," STRING)* ")"
?operand: bound
    | STRING -> text
    | TRUE -> true
    | FALSE -> false
?bound: NAME -> name
    | NUMBER -> number
    | SIGN NUMBER -> number_with_sign

_OR.2: /or(?![\w$])/i
_AND.2: /and(?![\w$])/i
_NOT.2: /not(?![\w$])/i
_IS.2: /is(?![\w$])/i
_NULL.2: /null(?![\w$])/i
_BETWEEN.2: /between(?![\w$])/i
_IN.2: /in(?![\w$])/i
TEST.2: /(contains|startswith|endswith)(?![\w$])/i
TRUE.2: /true(?![\w$])/i
FALSE.2: /false(?![\w$])/i
COMPARISON: "=" | "<>" | ">=" | "<=" | ">" | "<"
SIGN: "-" | "+"
NAME: /[a-z_$][a-z0-9_$]*/i
STRING: /'(''|[^'])*'/
NUMBER: /([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=e))(e[+-]?[0-9]+)?(?![\w$.])|[0-9]+l?(?![\w$.])/i
COMMENT: /--[^\n\r]*/ | /\/\*[^*]*\*+([^\/*][^*]*\*+)*\//
%ignore /[ \t\n\r\f]+/
%ignore COMMENT
"""
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_FRACTION: Final = re.compile(
    r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]{1,5})?", re.ASCII | re.IGNORECASE
)
_LONGEST_NUMBER: Final = 64
_SHOWN: Final = 80

Value: TypeAlias = str | int | float | bool
Properties: TypeAlias = Mapping[str, str]
Matches: TypeAlias = Callable[[Properties], bool]
_Truth: TypeAlias = Callable[[Properties], bool | None]
_Get: TypeAlias = Callable[[Properties], Value | None]


class _Unreadable(ValueError):
    """A property is no number, or another one than it is compared with."""


class _Condition(NamedTuple):
    """A part of an expression that is true, false, or unknown."""

    holds: _Truth
    conditions: int = 1
    nesting: int = 0


class _Operand(NamedTuple):
    """What is compared: *constant* if it is one, else the property *name*."""

    constant: Value | None
    name: str = ""

    @property
    def get(self) -> _Get:
        constant, name = self.constant, self.name
        return (lambda found: found.get(name)) if name else (lambda _: constant)


class Expression(NamedTuple):
    """One expression, read.

    Attributes:
        text: As its users write it.
        matches: Whether a message with such properties matches; never raises.
    """

    text: str
    matches: Matches


@lru_cache(maxsize=MAX_ALIVE)
def expression(text: str) -> Expression:
    """Read an expression.

    Raises:
        InvalidArgument: It is none, or is too long, or too deep.
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_EXPRESSION_BYTES:
        raise InvalidArgument(
            f"an SQL92 filter has at most {MAX_EXPRESSION_BYTES} bytes, not {size}"
        )
    if not text.strip():
        raise InvalidArgument("an SQL92 filter must not be empty")
    _check_nesting(text)
    try:
        found = cast("_Condition", _parser().parse(text))
    except VisitError as error:
        if isinstance(error.orig_exc, InvalidArgument):
            raise error.orig_exc from None
        raise
    except UnexpectedInput as error:
        raise InvalidArgument(f"SQL92 filter {_shorten(text)}: {_what(error)}") from None
    return Expression(text, _whole(found.holds))


def _check_nesting(text: str) -> None:
    """Raise InvalidArgument where brackets are deeper than may be, before anything is built.

    Brackets in texts count as well, up to the whole length: who nests that deep is refused later.
    """
    depth = deepest = 0
    for each in _OUTSIDE_TEXTS.sub("", text):
        depth += (each == "(") - (each == ")")
        deepest = max(deepest, depth)
    if deepest > MAX_NESTING + 1:  # one is the list of an IN
        raise _too_deep()


_OUTSIDE_TEXTS: Final = re.compile(r"'[^']*'|[^()']+")


def _too_deep() -> InvalidArgument:
    return InvalidArgument(
        f"an SQL92 filter has at most {MAX_NESTING} brackets and NOTs in another"
    )


def _whole(holds: _Truth) -> Matches:
    def matches(properties: Properties) -> bool:
        try:
            return holds(properties) is True
        except _Unreadable:
            return False

    return matches


def _shorten(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")


def _what(error: UnexpectedInput) -> str:
    """Say what is wrong, and where."""
    place = (error.pos_in_stream or 0) + 1
    if isinstance(error, UnexpectedCharacters):
        return f"character {place} begins nothing that is known"
    if isinstance(error, UnexpectedToken) and error.token.type != "$END":
        return f"{str(error.token)[:_SHOWN]!r} at character {place} is out of place"
    return "it ends too early"


class _Builder(Transformer[Token, _Condition]):
    """Makes of each rule what evaluates it, as soon as it was read."""

    @staticmethod
    def any_of(parts: list[_Condition]) -> _Condition:
        return _join(parts, decided_by=True)

    @staticmethod
    def all_of(parts: list[_Condition]) -> _Condition:
        return _join(parts, decided_by=False)

    @staticmethod
    def negate(parts: list[_Condition]) -> _Condition:
        (part,) = parts
        return _deeper(part)._replace(holds=_opposite(part.holds))

    @staticmethod
    def bracket(parts: list[_Condition]) -> _Condition:
        (part,) = parts
        return _deeper(part)

    @staticmethod
    def always(_: list[Token]) -> _Condition:
        return _Condition(lambda _: True)

    @staticmethod
    def never(_: list[Token]) -> _Condition:
        return _Condition(lambda _: False)

    @staticmethod
    def compare(parts: list[_Operand | Token]) -> _Condition:
        left, sign, right = cast("tuple[_Operand, Token, _Operand]", tuple(parts))
        return _Condition(_comparison(left, str(sign), right))

    @staticmethod
    def between(parts: list[_Operand]) -> _Condition:
        value, low, high = parts
        _check_ascends(low, high)
        parts_of = (_comparison(value, ">=", low), _comparison(value, "<=", high))
        return _Condition(_all(parts_of), conditions=2)

    @staticmethod
    def outside(parts: list[_Operand]) -> _Condition:
        value, low, high = parts
        parts_of = (_comparison(value, "<", low), _comparison(value, ">", high))
        return _Condition(_any(parts_of), conditions=2)

    @staticmethod
    def texts(parts: list[Token]) -> frozenset[str]:
        return frozenset(map(_unquote, parts))

    @staticmethod
    def among(parts: list[_Operand | frozenset[str]]) -> _Condition:
        value, texts = cast("tuple[_Operand, frozenset[str]]", tuple(parts))
        return _Condition(_test(_property_of(value, "IN"), texts.__contains__))

    @classmethod
    def not_among(cls, parts: list[_Operand | frozenset[str]]) -> _Condition:
        return _Condition(_opposite(cls.among(parts).holds))

    @staticmethod
    def missing(parts: list[_Operand]) -> _Condition:
        name = _property_of(parts[0], "IS NULL")
        return _Condition(lambda properties: properties.get(name) is None)

    @staticmethod
    def present(parts: list[_Operand]) -> _Condition:
        name = _property_of(parts[0], "IS NOT NULL")
        return _Condition(lambda properties: properties.get(name) is not None)

    @staticmethod
    def test_text(parts: list[_Operand | Token]) -> _Condition:
        value, test, text = cast("tuple[_Operand, Token, Token]", tuple(parts))
        return _Condition(
            _test_text(_property_of(value, test.upper()), test.upper(), _unquote(text))
        )

    @classmethod
    def not_test_text(cls, parts: list[_Operand | Token]) -> _Condition:
        return _Condition(_opposite(cls.test_text(parts).holds))

    @staticmethod
    def text(parts: list[Token]) -> _Operand:
        return _Operand(_unquote(parts[0]))

    @staticmethod
    def true(_: list[Token]) -> _Operand:
        return _Operand(True)

    @staticmethod
    def false(_: list[Token]) -> _Operand:
        return _Operand(False)

    @staticmethod
    def name(parts: list[Token]) -> _Operand:
        return _Operand(None, str(parts[0]))

    @staticmethod
    def number(parts: list[Token]) -> _Operand:
        return _Operand(_literal("", str(parts[0])))

    @staticmethod
    def number_with_sign(parts: list[Token]) -> _Operand:
        sign, digits = map(str, parts)
        return _Operand(_literal(sign, digits))


@lru_cache(maxsize=1)
def _parser() -> Lark:
    """Return the parser, which takes some 30 ms to make, when it is first needed."""
    return Lark(_GRAMMAR, parser="lalr", lexer="basic", transformer=_Builder(), cache=False)


def _join(parts: Sequence[_Condition], *, decided_by: bool) -> _Condition:
    conditions = sum(part.conditions for part in parts)
    if conditions > MAX_CONDITIONS:
        raise InvalidArgument(f"an SQL92 filter has at most {MAX_CONDITIONS} comparisons")
    holds = tuple(part.holds for part in parts)
    nesting = max(part.nesting for part in parts)
    return _Condition(_any(holds) if decided_by else _all(holds), conditions, nesting)


def _deeper(part: _Condition) -> _Condition:
    if part.nesting >= MAX_NESTING:
        raise _too_deep()
    return part._replace(nesting=part.nesting + 1)


def _any(parts: tuple[_Truth, ...]) -> _Truth:
    def holds(properties: Properties) -> bool | None:
        found: bool | None = False
        for part in parts:
            each = part(properties)
            if each:
                return True
            if each is None:
                found = None
        return found

    return holds


def _all(parts: tuple[_Truth, ...]) -> _Truth:
    def holds(properties: Properties) -> bool | None:
        found: bool | None = True
        for part in parts:
            each = part(properties)
            if each is False:
                return False
            if each is None:
                found = None
        return found

    return holds


def _opposite(part: _Truth) -> _Truth:
    def holds(properties: Properties) -> bool | None:
        found = part(properties)
        return None if found is None else not found

    return holds


def _test(name: str, test: Callable[[str], bool]) -> _Truth:
    def holds(properties: Properties) -> bool | None:
        value = properties.get(name)
        return None if value is None else test(value)

    return holds


def _property_of(value: _Operand, what: str) -> str:
    if value.name:
        return value.name
    raise InvalidArgument(f"{what} of an SQL92 filter is asked of a property, not {value.constant}")


def _test_text(name: str, test: str, text: str) -> _Truth:
    if not text:
        raise InvalidArgument(f"{test} of an SQL92 filter needs a text that is not empty")
    tests: dict[str, Callable[[str], bool]] = {
        "CONTAINS": lambda value: text in value,
        "STARTSWITH": lambda value: value.startswith(text),
        "ENDSWITH": lambda value: value.endswith(text),
    }
    return _test(name, tests[test])


_SIGNS: Final[Mapping[str, Callable[[Value, Value], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    ">": cast("Callable[[Value, Value], bool]", operator.gt),
    ">=": cast("Callable[[Value, Value], bool]", operator.ge),
    "<": cast("Callable[[Value, Value], bool]", operator.lt),
    "<=": cast("Callable[[Value, Value], bool]", operator.le),
}


def _comparison(left: _Operand, sign: str, right: _Operand) -> _Truth:
    compare, orders = _SIGNS[sign], sign not in {"=", "<>"}
    if orders:
        for each in (left, right):
            if isinstance(each.constant, (str, bool)):
                raise InvalidArgument(
                    f"an SQL92 filter compares numbers by {sign}, not {each.constant!r}"
                )
    if left.name and not right.name and right.constant is not None:
        return _with_constant(left.name, compare, right.constant)
    get_left, get_right = left.get, right.get

    def holds(properties: Properties) -> bool | None:
        one, other = get_left(properties), get_right(properties)
        if one is None or other is None:
            return None
        if type(one) is not type(other):
            one, other = _alike(one, other)
        elif orders and isinstance(one, str) and isinstance(other, str):
            one, other = _fraction(one), _fraction(other)
        return compare(one, other)

    return holds


def _with_constant(name: str, compare: Callable[[Value, Value], bool], constant: Value) -> _Truth:
    """Return what most comparisons are: of a property with a constant."""
    read = _READS[type(constant)]

    def holds(properties: Properties) -> bool | None:
        value = properties.get(name)
        return None if value is None else compare(read(value), constant)

    return holds


def _alike(one: Value, other: Value) -> tuple[Value, Value]:
    """Return two values of different kinds as two of one kind."""
    if isinstance(one, str):
        return _READS[type(other)](one), other
    if isinstance(other, str):
        return one, _READS[type(one)](other)
    if isinstance(one, bool) or isinstance(other, bool):
        raise _Unreadable
    return one, other


def _text(value: str) -> str:
    return value


def _whole_number(value: str) -> int:
    if _WHOLE.fullmatch(value) and -(1 << 63) <= (found := int(value)) < 1 << 63:
        return found
    raise _Unreadable


def _fraction(value: str) -> float:
    if len(value) <= _LONGEST_NUMBER and _FRACTION.fullmatch(value):
        return float(value)
    raise _Unreadable


def _truth(value: str) -> bool:
    return value.lower() == "true"


_READS: Final[Mapping[type, Callable[[str], Value]]] = {
    str: _text,
    bool: _truth,
    int: _whole_number,
    float: _fraction,
}


def _check_ascends(low: _Operand, high: _Operand) -> None:
    one, other = low.constant, high.constant
    if isinstance(one, (int, float)) and isinstance(other, (int, float)) and one > other:
        raise InvalidArgument(
            f"BETWEEN of an SQL92 filter goes from the lower to the higher number, not from {one} "
            f"to {other}"
        )


def _unquote(token: Token) -> str:
    return token[1:-1].replace("''", "'")


def _literal(sign: str, digits: str) -> int | float:
    """Return the number that an expression has."""
    text = digits.rstrip("lL")
    if len(text) > _LONGEST_NUMBER:
        raise InvalidArgument(f"a number of an SQL92 filter has at most {_LONGEST_NUMBER} digits")
    if not text.isdigit():
        number = float(sign + text)
        if math.isinf(number):
            raise InvalidArgument(f"{digits} of an SQL92 filter is no number of 64 bits")
        return number
    if text != "0" and text.startswith("0"):
        raise InvalidArgument(f"{digits} of an SQL92 filter: whole numbers do not begin with 0")
    whole = int(sign + text)
    if not -(1 << 63) <= whole < 1 << 63:
        raise InvalidArgument(f"{digits} of an SQL92 filter is no number of 64 bits")
    return whole
