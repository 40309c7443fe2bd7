"""The log checker finds each kind of fault that is planted, and none where there is none."""

from __future__ import annotations

from dataclasses import replace

from e2e.chaos.log_checker import LogEntry, LogFault, Stored, check_entries, check_messages
from tests.chaos.messages import (
    GOOD,
    WRITES,
    everywhere,
    faults,
    on_all,
    queues,
    refused,
    seen,
    stored,
    unknown,
    write,
)


def test_a_history_that_agrees_with_every_node_has_no_findings() -> None:
    """Acknowledged is there, seen is there, nodes are equal."""
    findings = check_messages(WRITES, [seen(1, 0), seen(3, 2)], everywhere(GOOD))

    assert findings == []


def test_a_message_of_unknown_outcome_may_be_there_or_not() -> None:
    """Its producer was told nothing, so both are right; a reader may have seen it, too."""
    writes = [*WRITES, unknown(6)]
    with_it = queues(stored(1, 0), stored(2, 1), stored(3, 2), stored(6, 3))

    assert check_messages(writes, [], everywhere(GOOD)) == []
    assert check_messages(writes, [seen(6, 3)], everywhere(with_it)) == []


def test_a_lost_message_is_found_on_every_node() -> None:
    """The newest acknowledged message is gone."""
    findings = check_messages(WRITES, [], everywhere(queues(stored(1, 0), stored(2, 1))))

    assert faults(findings) == on_all(LogFault.LOSS)


def test_a_message_that_one_node_lacks_is_lost_there_and_diverges() -> None:
    """Each node is looked at by itself."""
    nodes = {**everywhere(GOOD), "b": queues(stored(1, 0), stored(2, 1))}

    findings = check_messages(WRITES, [], nodes)

    assert faults(findings) == {(LogFault.LOSS, "b"), (LogFault.DIVERGENCE, "b")}


def test_a_message_that_is_there_twice_is_a_duplicate() -> None:
    """A retry was stored again; in another queue it is one as well."""
    again = queues(stored(1, 0), stored(2, 1), stored(3, 2), stored(3, 3))
    elsewhere = queues(
        stored(1, 0), stored(2, 1), stored(3, 2), second=(stored(4, 0), stored(5, 1), stored(3, 2))
    )

    assert (LogFault.DUPLICATE, "a") in faults(check_messages(WRITES, [], everywhere(again)))
    assert (LogFault.DUPLICATE, "a") in faults(check_messages(WRITES, [], everywhere(elsewhere)))


def test_a_message_that_nobody_wrote_is_a_phantom() -> None:
    """Its id is in no history."""
    held = queues(stored(1, 0), stored(2, 1), stored(3, 2), stored(77, 3))

    assert faults(check_messages(WRITES, [], everywhere(held))) == on_all(LogFault.PHANTOM)


def test_a_message_that_was_refused_and_is_there_is_a_phantom() -> None:
    """Refused means: not stored."""
    held = queues(stored(1, 0), stored(2, 1), stored(3, 2), stored(6, 3))

    findings = check_messages([*WRITES, refused(6)], [], everywhere(held))

    assert faults(findings) == on_all(LogFault.PHANTOM)


def test_a_message_with_another_body_is_changed() -> None:
    """Same id, same place, other bytes."""
    held = queues(stored(1, 0), Stored(1, "m2", "rot"), stored(3, 2))

    assert faults(check_messages(WRITES, [], everywhere(held))) == on_all(LogFault.CHANGED)


def test_a_message_at_another_place_than_acknowledged_has_moved() -> None:
    """Places are part of the acknowledgement; an unknown message may push it one further."""
    held = queues(stored(1, 0), stored(2, 1), stored(6, 2), stored(3, 3))

    findings = check_messages([*WRITES, unknown(6)], [], everywhere(held))

    assert (LogFault.MOVED, "a") in faults(findings)


def test_a_message_in_another_queue_has_moved() -> None:
    """Even if its producer never got an answer."""
    second = (stored(4, 0), stored(5, 1), stored(6, 2))
    held = queues(stored(1, 0), stored(2, 1), stored(3, 2), second=second)

    findings = check_messages([*WRITES, unknown(6)], [], everywhere(held))

    assert faults(findings) == on_all(LogFault.MOVED)


def test_a_message_before_one_that_was_acknowledged_earlier_is_out_of_order() -> None:
    """Both places were acknowledged so: only real time shows it."""
    writes = [write(1, offset=1), write(2, offset=0)]
    held = {0: [stored(2, 0), stored(1, 1)]}

    assert faults(check_messages(writes, [], everywhere(held))) == on_all(LogFault.ORDER)


def test_messages_that_were_under_way_together_may_stand_in_any_order() -> None:
    """Neither had ended when the other began."""
    writes = [replace(write(1, offset=1), ended_s=2.2), write(2, offset=0)]
    held = {0: [stored(2, 0), stored(1, 1)]}

    assert check_messages(writes, [], everywhere(held)) == []


def test_a_message_without_an_answer_cannot_stand_before_what_was_acknowledged_earlier() -> None:
    """It was sent at 6 s; what was acknowledged at 3.5 s must be in front of it."""
    held = queues(stored(1, 0), stored(2, 1), stored(6, 2), stored(3, 3))

    findings = check_messages([*WRITES, unknown(6)], [], everywhere(held))

    assert (LogFault.ORDER, "c") in faults(findings)


def test_offsets_that_are_not_consecutive_are_a_hole() -> None:
    """A consumer would wait at the missing one for ever."""
    writes = [write(1, offset=0), write(3, offset=2)]
    held = {0: [stored(1, 0), stored(3, 2)]}

    assert faults(check_messages(writes, [], everywhere(held))) == on_all(LogFault.HOLE)


def test_what_a_reader_saw_and_is_gone_was_retracted() -> None:
    """It was shown before it was committed, whoever wrote it."""
    findings = check_messages([*WRITES, unknown(6)], [seen(6, 3)], everywhere(GOOD))

    assert faults(findings) == on_all(LogFault.RETRACTED)


def test_what_a_reader_saw_with_another_body_was_retracted() -> None:
    """A reader got other bytes than the log has."""
    findings = check_messages(WRITES, [seen(2, 1, digest="other")], everywhere(GOOD))

    assert faults(findings) == on_all(LogFault.RETRACTED)


def test_a_node_that_differs_from_the_others_diverges() -> None:
    """Same ids, swapped on one node; what producers were told is another matter."""
    writes = [*WRITES, unknown(6), unknown(7)]
    usual = queues(stored(1, 0), stored(2, 1), stored(3, 2), stored(6, 3), stored(7, 4))
    other = queues(stored(1, 0), stored(2, 1), stored(3, 2), stored(7, 3), stored(6, 4))

    findings = check_messages(writes, [], {**everywhere(usual), "c": other})

    assert faults(findings) == {(LogFault.DIVERGENCE, "c")}


def entries(*terms: int, first: int = 1, chain: str = "") -> list[LogEntry]:
    """Return consecutive entries of these terms."""
    return [
        LogEntry(index, term, 0, f"{index}", chain or f"{index}.{term}")
        for index, term in enumerate(terms, first)
    ]


def test_equal_logs_do_not_diverge() -> None:
    """One may begin later, behind a snapshot, and one may be shorter."""
    logs = {"a": entries(1, 1, 2), "b": entries(1, 2, first=2), "c": entries(1, 1)}

    assert check_entries(logs) == []


def test_an_entry_of_another_term_diverges() -> None:
    """State machine safety, read from the disks."""
    findings = check_entries({"a": entries(1, 1, 2), "b": entries(1, 1, 3)})

    assert faults(findings) == {(LogFault.DIVERGENCE, "b")}


def test_an_entry_with_another_past_diverges() -> None:
    """The chain covers what was before it."""
    findings = check_entries({"a": entries(1, 1), "b": entries(1, 1, chain="other")})

    assert faults(findings) == {(LogFault.DIVERGENCE, "b")}


def test_a_log_without_one_of_its_entries_has_a_hole() -> None:
    """Indexes are consecutive."""
    findings = check_entries({"a": [entry for entry in entries(1, 1, 1) if entry.index != 2]})

    assert faults(findings) == {(LogFault.HOLE, "a")}


def test_a_timestamp_that_goes_back_is_found() -> None:
    """The log's clock never does, whatever the wall clocks of the nodes do."""
    times_ms = (1000, 0, 2000, 1999)
    log = [LogEntry(index, 1, ms, "", "") for index, ms in enumerate(times_ms, 1)]

    assert faults(check_entries({"a": log})) == {(LogFault.TIME, "a")}
