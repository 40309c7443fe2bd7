"""Random SQL statements about the tables `messages` and `entries` that Spark and DuckDB both read.

They read a table once or several times: in turns, joined with itself, by CTE and by subquery. The
rows of an answer are the same whatever the engine, but for their order.
"""

# ruff: noqa: S608 - the statements are what is tested

from __future__ import annotations

import random
from typing import Final

_TOPICS: Final = ("orders", "prices", "none")


def statement(seed: int) -> str:
    """Return the statement with this number."""
    rng = random.Random(seed)
    return rng.choice(_SHAPES)(rng)


def _of_messages(rng: random.Random, alias: str = "") -> str:
    """Return a condition on messages; the first kinds are those that Spark pushes down."""
    at = f"{alias}." if alias else ""
    sign = rng.choice(("<", "<=", "=", ">=", ">"))
    kinds = [
        f"{at}topic = '{rng.choice(_TOPICS)}'",
        f"{at}queue_id = {rng.randrange(3)}",
        f"{at}queue_offset {sign} {rng.randrange(45)}",
        f"{at}index {sign} {rng.randrange(60)}",
        f"{at}stored_at_ms {sign} {1_000_000 + 1000 * rng.randrange(45)}",
        f"{at}index BETWEEN {rng.randrange(30)} AND {rng.randrange(20, 60)}",
        f"{at}topic IN ('{rng.choice(_TOPICS)}', '{rng.choice(_TOPICS)}')",
        f"{at}tag = 'red'",
        f"{at}message_id LIKE 'id-{rng.randrange(4)}%'",
        f"array_contains({at}keys, 'key-{rng.randrange(6)}')",
    ]
    few = rng.sample(kinds[:7] if rng.random() < 0.6 else kinds, rng.randint(1, 3))
    joined = rng.choice((" AND ", " AND ", " AND ", " OR ")).join(few)
    return f"NOT ({joined})" if rng.random() < 0.1 else f"({joined})"


def _of_entries(rng: random.Random, alias: str = "") -> str:
    at = f"{alias}." if alias else ""
    sign = rng.choice(("<", "<=", "=", ">=", ">"))
    return rng.choice(
        (
            f"{at}index {sign} {rng.randrange(60)}",
            f"{at}timestamp_ms {sign} {1_000_000 + 1000 * rng.randrange(45)}",
            f"({at}index >= {rng.randrange(30)} AND {at}type = 2)",
        )
    )


def _counted(rng: random.Random, source: str = "messages") -> str:
    condition = _of_entries(rng) if source == "entries" else _of_messages(rng)
    return f"SELECT count(*) AS n, min(index) AS a, max(index) AS b FROM {source} WHERE {condition}"


def _once(rng: random.Random) -> str:
    return rng.choice(
        (
            _counted(rng),
            _counted(rng, "entries"),
            f"SELECT topic, queue_id, queue_offset AS at FROM messages WHERE {_of_messages(rng)}",
            (
                "SELECT topic, count(*) AS n, sum(queue_offset) AS s FROM messages "
                f"WHERE {_of_messages(rng)} GROUP BY topic"
            ),
            f"SELECT DISTINCT topic, tag FROM messages WHERE {_of_messages(rng)}",
        )
    )


def _in_turns(rng: random.Random) -> str:
    parts = [_counted(rng, rng.choice(("messages", "messages", "entries"))) for _ in range(3)]
    return " UNION ALL ".join(parts[: rng.randint(2, 3)])


def _compared(rng: random.Random) -> str:
    columns = "topic, queue_id, queue_offset AS at"
    sets = [f"SELECT {columns} FROM messages WHERE {_of_messages(rng)}" for _ in range(2)]
    return rng.choice((" EXCEPT ", " INTERSECT ", " UNION ")).join(sets)


def _with_itself(rng: random.Random) -> str:
    return (
        "SELECT a.topic AS t, b.topic AS u, count(*) AS n FROM messages a JOIN messages b "
        f"ON a.queue_id = b.queue_id AND a.queue_offset = b.queue_offset "
        f"WHERE {_of_messages(rng, 'a')} AND {_of_messages(rng, 'b')} GROUP BY a.topic, b.topic"
    )


def _with_entries(rng: random.Random) -> str:
    return (
        "SELECT m.topic AS t, count(*) AS n, max(e.index) AS i FROM messages m "
        f"{rng.choice(('JOIN', 'LEFT JOIN'))} entries e ON m.index = e.index AND "
        f"{_of_entries(rng, 'e')} WHERE {_of_messages(rng, 'm')} GROUP BY m.topic"
    )


def _by_cte(rng: random.Random) -> str:
    cte = f"WITH c AS (SELECT * FROM messages WHERE {_of_messages(rng)}) "
    few = f"SELECT count(*) AS n, max(queue_offset) AS a FROM c WHERE {_of_messages(rng)}"
    if rng.random() < 0.3:
        return cte + few
    if rng.random() < 0.5:
        return f"{cte}{few} UNION ALL SELECT count(*), min(index) FROM c WHERE {_of_messages(rng)}"
    return (
        f"{cte}SELECT count(*) AS n FROM c a JOIN c b ON a.queue_offset = b.queue_offset "
        f"WHERE {_of_messages(rng, 'a')}"
    )


def _by_subquery(rng: random.Random) -> str:
    return rng.choice(
        (
            (
                f"SELECT (SELECT count(*) FROM messages WHERE {_of_messages(rng)}) AS a, "
                f"(SELECT count(*) FROM messages WHERE {_of_messages(rng)}) AS b, "
                f"(SELECT max(index) FROM entries WHERE {_of_entries(rng)}) AS c"
            ),
            (
                f"SELECT topic, queue_offset AS at FROM messages WHERE {_of_messages(rng)} "
                f"AND queue_offset IN (SELECT queue_offset FROM messages WHERE {_of_messages(rng)})"
            ),
            (
                f"SELECT topic, count(*) AS n FROM messages m WHERE {_of_messages(rng, 'm')} AND "
                "EXISTS (SELECT 1 FROM messages o WHERE o.queue_offset = m.queue_offset AND "
                f"o.topic <> m.topic AND {_of_messages(rng, 'o')}) GROUP BY topic"
            ),
            (
                "SELECT topic, queue_id, queue_offset AS at FROM messages WHERE index > "
                f"(SELECT min(index) FROM entries WHERE {_of_entries(rng)}) AND {_of_messages(rng)}"
            ),
            (
                f"SELECT x.topic AS t, count(*) AS n FROM (SELECT * FROM messages WHERE "
                f"{_of_messages(rng)}) x WHERE {_of_messages(rng, 'x')} GROUP BY x.topic"
            ),
        )
    )


def _ranked(rng: random.Random) -> str:
    return (
        "SELECT topic, queue_id, queue_offset AS at, row_number() OVER (PARTITION BY topic, "
        f"queue_id ORDER BY queue_offset) AS r FROM messages WHERE {_of_messages(rng)}"
    )


_SHAPES: Final = (
    *(_once, _once, _in_turns, _in_turns, _compared, _with_itself, _with_entries),
    *(_by_cte, _by_cte, _by_subquery, _by_subquery, _ranked),
)
