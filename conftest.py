"""What all tests have, those of `tests` as those of `e2e`: a limit of time, and a note of it."""

pytest_plugins = ("tests.running.time_limit", "tests.running.durations")
