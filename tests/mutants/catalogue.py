"""All mutants, by part of the node, of the operator, and of the pipeline."""

from __future__ import annotations

from tests.mutants.answer_mutants import ANSWER_MUTANTS
from tests.mutants.channel_mutants import CHANNEL_MUTANTS
from tests.mutants.compacted_mutants import COMPACTED_MUTANTS
from tests.mutants.compaction_mutants import COMPACTION_MUTANTS
from tests.mutants.consumer_mutants import CONSUMER_MUTANTS
from tests.mutants.dead_letter_mutants import DEAD_LETTER_MUTANTS
from tests.mutants.deletion_mutants import DELETION_MUTANTS
from tests.mutants.discard_mutants import DISCARD_MUTANTS
from tests.mutants.door_mutants import DOOR_MUTANTS
from tests.mutants.edge_mutants import EDGE_MUTANTS
from tests.mutants.erase_mutants import ERASE_MUTANTS
from tests.mutants.erased_mutants import ERASED_MUTANTS
from tests.mutants.fifo_mutants import FIFO_MUTANTS
from tests.mutants.filter_mutants import FILTER_MUTANTS
from tests.mutants.force_mutants import FORCE_MUTANTS
from tests.mutants.gate_mutants import GATE_MUTANTS
from tests.mutants.growth_mutants import GROWTH_MUTANTS
from tests.mutants.held_mutants import HELD_MUTANTS
from tests.mutants.identity_mutants import IDENTITY_MUTANTS
from tests.mutants.keeping_mutants import KEEPING_MUTANTS
from tests.mutants.link_mutants import LINK_MUTANTS
from tests.mutants.mutant import Mutant
from tests.mutants.node_mutants import NODE_MUTANTS
from tests.mutants.operator_mutants import OPERATOR_MUTANTS
from tests.mutants.pipeline_mutants import PIPELINE_MUTANTS
from tests.mutants.places_mutants import PLACES_MUTANTS
from tests.mutants.poison_mutants import POISON_MUTANTS
from tests.mutants.priority_mutants import PRIORITY_MUTANTS
from tests.mutants.raft_mutants import RAFT_MUTANTS
from tests.mutants.replay_mutants import REPLAY_MUTANTS
from tests.mutants.replica_mutants import REPLICA_MUTANTS
from tests.mutants.room_mutants import ROOM_MUTANTS
from tests.mutants.round_mutants import ROUND_MUTANTS
from tests.mutants.seek_mutants import SEEK_MUTANTS
from tests.mutants.sidecar_mutants import SIDECAR_MUTANTS
from tests.mutants.store_mutants import STORE_MUTANTS
from tests.mutants.table_mutants import TABLE_MUTANTS
from tests.mutants.time_mutants import TIME_MUTANTS
from tests.mutants.timer_mutants import TIMER_MUTANTS
from tests.mutants.transaction_mutants import TRANSACTION_MUTANTS
from tests.mutants.type_mutants import TYPE_MUTANTS
from tests.mutants.witness_mutants import WITNESS_MUTANTS

MUTANTS: tuple[Mutant, ...] = (
    *RAFT_MUTANTS,
    *DISCARD_MUTANTS,
    *FORCE_MUTANTS,
    *STORE_MUTANTS,
    *WITNESS_MUTANTS,
    *NODE_MUTANTS,
    *LINK_MUTANTS,
    *EDGE_MUTANTS,
    *IDENTITY_MUTANTS,
    *REPLAY_MUTANTS,
    *CHANNEL_MUTANTS,
    *SIDECAR_MUTANTS,
    *REPLICA_MUTANTS,
    *ROOM_MUTANTS,
    *TIME_MUTANTS,
    *CONSUMER_MUTANTS,
    *SEEK_MUTANTS,
    *DEAD_LETTER_MUTANTS,
    *HELD_MUTANTS,
    *TIMER_MUTANTS,
    *TRANSACTION_MUTANTS,
    *ERASED_MUTANTS,
    *FIFO_MUTANTS,
    *PRIORITY_MUTANTS,
    *TYPE_MUTANTS,
    *FILTER_MUTANTS,
    *ANSWER_MUTANTS,
    *DOOR_MUTANTS,
    *POISON_MUTANTS,
    *DELETION_MUTANTS,
    *GROWTH_MUTANTS,
    *KEEPING_MUTANTS,
    *ERASE_MUTANTS,
    *COMPACTED_MUTANTS,
    *TABLE_MUTANTS,
    *COMPACTION_MUTANTS,
    *OPERATOR_MUTANTS,
    *GATE_MUTANTS,
    *ROUND_MUTANTS,
    *PIPELINE_MUTANTS,
    *PLACES_MUTANTS,
)
