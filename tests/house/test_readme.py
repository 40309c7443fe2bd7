"""Each row of "What works today" in README.md is shown by tests, and what is refused by tests, too.

Who changes a row changes its evidence here, and the other way round: a row that nothing shows is a
wish, and one that says "not yet" of what works costs us its user.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from dledger.cli import main as command_line

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")

EVIDENCE = {
    "Raft: pre-vote": (
        "tests/raft/test_raft_paper.py::test_election_starts_only_after_a_majority_would_vote",
        "tests/raft/test_raft_paper.py::test_leader_without_a_quorum_steps_down",
        "tests/raft/test_core.py::test_lost_connection_to_the_leader_starts_a_pre_vote_early",
        "tests/raft/test_raft_paper.py::test_transfer_waits_until_the_target_has_the_log",
        "tests/system/test_dev_group.py::test_leadership_follows_the_clients",
    ),
    "Commit log": (
        "tests/replica/test_driver.py::test_nothing_is_acknowledged_while_a_majority_has_not_synced",
        "tests/store/test_crashes.py::test_log_after_a_power_cut_at_any_file_call_is_one_it_may_hold",
        "tests/store/test_bit_flips.py::test_flipped_byte_on_one_node_is_repaired_or_refused",
    ),
    "RocketMQ 5 protocol": (
        "tests/rocketmq/test_sdk.py::test_a_simple_consumer_gets_each_message_of_its_tag_once",
        "tests/rocketmq/test_sdk.py::test_a_push_consumer_that_fails_gets_the_message_again",
        "tests/rocketmq/test_rocketmq_protocol.py::test_a_nack_makes_a_message_come_back_sooner",
        "tests/system/test_clients_live.py::test_the_nodejs_client_sends_and_gets",
    ),
    "Idempotent sends": (
        "tests/requests/test_forward.py::test_a_send_whose_outcome_was_lost_is_repeated_and_stored_once",
        "tests/system/test_dev_group.py::test_nothing_is_lost_or_doubled_over_ten_kills_of_the_leader",
    ),
    "Linearizable reads": (
        "tests/system/test_reads_live.py::test_every_node_shows_what_was_acknowledged_just_before",
        "tests/system/test_reads_live.py::test_a_read_without_a_majority_is_unavailable",
    ),
    "Members added": (
        "tests/system/test_member_command.py::test_members_are_listed_added_and_removed",
        "tests/system/test_member_command.py::test_a_wiped_node_is_replaced_by_its_name",
        "tests/system/test_members_live.py::test_a_learner_gets_the_log_and_becomes_a_voter_by_itself",
        "tests/system/test_members_live.py::test_several_members_come_and_go_at_once",
    ),
    "Snapshots of broker state": (
        "tests/replica/test_node_snapshots.py::test_a_replica_that_was_away_too_long_gets_a_snapshot_and_every_message",
        "tests/replica/test_node_snapshots.py::test_messages_of_a_certain_age_go",
        "tests/replica/test_node_snapshots.py::test_a_full_disk_lets_the_oldest_segments_go_on_all_nodes",
    ),
    "Rot on the disks": (
        "tests/system/test_repair_live.py::test_a_running_nodes_rot_is_found_by_scrubbing_and_repaired",
        "tests/system/test_repair_live.py::test_nodes_repair_each_other_without_a_leader",
    ),
    "Operator: create": (
        "tests/operator/test_reconcile.py::test_a_new_group_is_built_founded_and_given_its_topics",
        "tests/operator/test_reconcile.py::test_deleted_and_applied_again_the_group_is_adopted",
        "tests/operator/test_status.py::test_each_situation_has_its_reason",
        "tests/operator/test_lease.py::test_of_two_that_start_together_one_acts",
        "e2e/stories/test_failover.py::test_every_acknowledged_message_survives_the_leaders_pod",
        "e2e/stories/test_changes.py::test_a_new_image_rolls_out_and_the_leader_comes_last",
        "tests/operator/test_lost_disk_api_server.py::test_a_disk_that_is_gone_with_its_machine_is_given_up",
        "tests/operator/test_scaling_api_server.py::test_one_three_five_three_one_whatever_becomes_of_the_operator",
    ),
    "Mutual TLS": (
        "tests/system/test_peer_tls_both.py::test_a_plain_group_gets_to_tls_by_one_restart_of_each_node",
        "tests/system/test_peer_tls_strangers.py::test_a07_a_strangers_entries_and_votes_are_not_read",
        "tests/operator/test_way_to_tls_api_server.py::test_an_operator_that_gives_certificates_rolls_them_out_and_ends_plain_text",
        "tests/operator/test_certificate_keeper.py::test_a_plain_group_accepts_both_until_every_pod_answers_over_tls",
    ),
    "`BrokerOperation`": (
        "tests/operator/test_operations.py::test_an_operation_that_is_interrupted_anywhere_ends_as_asked",
        "tests/operator/test_operation_api_server.py::test_a_transfer_is_done_and_then_deleted",
        "tests/operator/test_operation_api_server.py::test_a_suspect_disk_is_given_up_and_made_anew",
        "tests/operator/test_operation_api_server.py::test_a_lost_majority_goes_on_from_the_survivor_when_told_to",
        "e2e/stories/test_changes.py::test_leadership_is_handed_over_as_asked",
    ),
    "Compacted topics": (
        "e2e/stories/test_compaction.py::test_a_table_outlives_its_log_its_nodes_and_its_group",
        "tests/operator/test_round_reconcile.py::test_a_round_becomes_a_job_and_tells_what_it_did",
        "tests/pipeline/test_compaction_job.py::test_of_each_key_the_newest_is_left",
    ),
    "Backups by Spark": (
        "e2e/stories/test_backup_and_restore.py::test_a_group_behind_retention_comes_back_as_it_was_at_a_chosen_time",
        "tests/pipeline/test_verify.py::test_a_whole_backup_is_proven",
    ),
    "Metrics": (
        "tests/system/test_dashboards.py::test_every_query_of_the_dashboards_returns_data_through_a_failover",
        "tests/monitoring/test_alerts.py::test_each_alert_fires_when_its_story_says_so",
        "tests/house/test_monitoring.py::test_every_alert_has_a_runbook",
    ),
    "Outage spool for Python": (
        "tests/system/test_spool.py::test_three_killed_nodes_cost_a_spooling_producer_no_message",
    ),
    "`spec` fields": (
        "tests/operator/test_checks.py::test_a_field_that_nothing_acts_on_is_named",
        "tests/house/test_crd_fields.py::test_the_documentation_says_which_fields_are_acted_on",
    ),
    "SQL92 filters": (
        "tests/rocketmq/test_expression_scans.py::test_a_consumer_gets_what_matches",
        "tests/rocketmq/test_expression_scans.py::test_another_filter_is_refused_by_name",
        "tests/rocketmq/test_expression_scans.py::test_a_new_leader_goes_on_where_the_group_is",
        "tests/rocketmq/test_expressions.py::test_an_expression_matches",
    ),
    "Dead letters": (
        "tests/broker/test_dead_letters.py::test_each_message_ends_once",
        "tests/rocketmq/test_dead_letters_moved.py::test_what_a_dead_leader_was_told_the_next_one_moves",
        "tests/rocketmq/test_dead_letters_moved.py::test_dead_letters_are_listed_sent_back_and_dropped",
    ),
    "`DELAY` topics": (
        "tests/rocketmq/test_sdk.py::test_a_delayed_message_comes_when_it_is_due_or_is_recalled",
        "tests/system/test_delayed_live.py::test_each_message_is_delivered_once_though_the_leader_is_killed",
        "tests/rocketmq/test_delayed_messages.py::test_a_recalled_message_is_not_delivered",
    ),
    "`FIFO`": (
        "tests/rocketmq/test_rocketmq_bad_input.py::test_messages_that_break_a_rule_are_refused",
        "tests/rocketmq/test_rocketmq_protocol.py::test_methods_to_come_are_answered_by_name",
    ),
    "The outage spool for other": (
        "tests/system/test_sidecar_sdk.py::test_an_sdk_sees_no_error_while_the_group_and_the_sidecar_are_killed",
        "tests/system/test_sidecar_live.py::test_a_group_that_stops_and_comes_back_has_everything_once_in_order",
    ),
    "Topics that keep": (
        "tests/system/test_made_command.py::test_a_topic_is_kept_longer_by_command",
        "tests/broker/test_rekeep_histories.py::test_histories_equal_a_plain_model",
        "tests/replica/test_roller.py::test_what_is_kept_for_ever_outlives_the_log_that_it_was_stored_in",
    ),
    "Commands that drain a spool": (
        "tests/system/test_spool_tool.py::test_a_drain_without_a_sidecar_brings_everything_itself",
        "tests/system/test_spool_tool.py::test_a_drain_says_what_was_refused_and_requeue_brings_it_after_all",
        "tests/sidecar/test_showing.py::test_what_waits_is_told_message_by_message",
    ),
}
"""The first words of each row, and the tests that would fail were it false."""


def _rows() -> list[tuple[str, str]]:
    section = README.partition("## What works today\n")[2].partition("\n## ")[0]
    items = re.findall(r"^- (.*): \*\*(.+?)\*\*(.*)$", section.replace("\n  ", " "), re.MULTILINE)
    return [(row, f"{says}{more}") for row, says, more in items]


def _tests(path: str) -> set[str]:
    """Return the tests that pytest would collect from a file."""
    return {
        node.name
        for node in ast.parse((ROOT / path).read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not any("mark.skip" in ast.unparse(mark) for mark in node.decorator_list)
    }


def test_each_row_has_its_evidence() -> None:
    """One entry a row, one row an entry."""
    rows = [row for row, _ in _rows()]

    shown = {row: [words for words in EVIDENCE if row.startswith(words)] for row in rows}

    assert {row: words for row, words in shown.items() if len(words) != 1} == {}
    assert sorted(words for (words,) in shown.values()) == sorted(EVIDENCE)


def test_the_evidence_is_there() -> None:
    """Tests that exist and are not skipped; for each row at least one."""
    gone = [
        name
        for names in EVIDENCE.values()
        for name in names
        if name.partition("::")[2] not in _tests(name.partition("::")[0])
    ]

    assert gone == []
    assert all(EVIDENCE.values())


def test_a_row_says_works_or_refused() -> None:
    """And nothing between: a reader decides by that word."""
    assert {re.split(r"[;:, ]| with", says)[0] for _, says in _rows()} == {"works", "refused"}


@pytest.mark.parametrize(
    ("of_help", "of_runbooks", "from_outside"),
    [
        ("exit codes: ", "**A command's exit code**", set[str]()),
        ("of node: ", "**A node's exit code**", {"137"}),
    ],
)
def test_exit_codes_are_the_same_in_help_and_in_the_runbooks(
    of_help: str, of_runbooks: str, from_outside: set[str]
) -> None:
    """Found: 4 was another thing in each."""
    _, _, told = command_line._EPILOG.partition(of_help)
    told = re.split(r"\n(?:of node:|$)", told)[0]
    _, _, table = (ROOT / "docs/runbooks.md").read_text("utf-8").partition(of_runbooks)
    table = table.partition("\n\n**")[0]

    codes = re.findall(r"^- \*\*(\d+)\*\*:", table, re.MULTILINE)

    assert set(re.findall(r"\b(\d+) [a-z]", told)) == {*codes} - from_outside
