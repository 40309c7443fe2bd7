from pathlib import Path

import pytest

from tests.raft import scenario

FILES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario_has_its_outcome(path: Path, request: pytest.FixtureRequest) -> None:
    """Each scenario ends as its file says; `pytest --rewrite` takes over what happens."""
    if request.config.getoption("--rewrite"):
        scenario.rewrite(path)

    text = path.read_text()

    assert scenario.run(scenario.parse(text)) == text


def test_block_without_separator_is_refused() -> None:
    """A scenario with a mistake in its form is not run."""
    with pytest.raises(ValueError, match="one line of commands"):
        scenario.parse("campaign 1\nnothing\n")
