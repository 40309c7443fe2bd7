"""What a job leaves for the operator: a result that a container's termination message can hold."""

from __future__ import annotations

import json

import pytest

from dledger_pipeline.jobs.result import Result, in_brief

TOTALS: Result = {"phase": "Completed", "letGo": 1 << 62, "topicCount": 10_000}


@pytest.mark.parametrize("length", [1, 20, 127])
def test_a_result_of_ten_thousand_topics_fits_into_a_termination_message(length: int) -> None:
    """Whole but for names; Kubernetes cuts the rest off, and what is cut is no JSON any more."""
    names = [f"{n:0>{length}}" for n in range(10_000)]
    figures = {"kept": 1, "letGo": 2}

    brief = in_brief({**TOTALS, "topics": dict.fromkeys(names, figures)})
    kept = brief.pop("topics")

    assert brief == TOTALS
    assert isinstance(kept, list)
    assert kept == [*dict.fromkeys(names)][: len(kept)]
    written = len(json.dumps({**TOTALS, "topics": kept}).encode())
    assert 4096 - 2 * (length + 4) < written <= 4096


def test_what_is_not_told_by_topic_is_left_as_it_is() -> None:
    """A backup's result, say; and the names of few topics are all there."""
    assert in_brief(TOTALS) == TOTALS
    assert in_brief({"topics": {"a": {}, "b": {}}}) == {"topics": ["a", "b"]}
    assert in_brief({"topics": {}}) == {"topics": []}
