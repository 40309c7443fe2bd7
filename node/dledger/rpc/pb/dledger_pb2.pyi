from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AppendRequest(_message.Message):
    __slots__ = ("client_id", "topic", "queue_id", "records", "deliver_at_ms", "half")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_MS_FIELD_NUMBER: _ClassVar[int]
    HALF_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    topic: str
    queue_id: int
    records: _containers.RepeatedCompositeFieldContainer[Record]
    deliver_at_ms: int
    half: Half
    def __init__(self, client_id: _Optional[str] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ..., deliver_at_ms: _Optional[int] = ..., half: _Optional[_Union[Half, _Mapping]] = ...) -> None: ...

class Half(_message.Message):
    __slots__ = ("check_after_ms",)
    CHECK_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    check_after_ms: int
    def __init__(self, check_after_ms: _Optional[int] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("message_id", "body", "tag", "keys", "properties", "born_at_ms", "typed")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    BORN_AT_MS_FIELD_NUMBER: _ClassVar[int]
    TYPED_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    body: bytes
    tag: str
    keys: _containers.RepeatedScalarFieldContainer[str]
    properties: _containers.ScalarMap[str, str]
    born_at_ms: int
    typed: Typed
    def __init__(self, message_id: _Optional[str] = ..., body: _Optional[bytes] = ..., tag: _Optional[str] = ..., keys: _Optional[_Iterable[str]] = ..., properties: _Optional[_Mapping[str, str]] = ..., born_at_ms: _Optional[int] = ..., typed: _Optional[_Union[Typed, _Mapping]] = ...) -> None: ...

class AppendResponse(_message.Message):
    __slots__ = ("queue_id", "offsets", "index", "recall_handles", "transaction_ids")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    RECALL_HANDLES_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_IDS_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    offsets: _containers.RepeatedScalarFieldContainer[int]
    index: int
    recall_handles: _containers.RepeatedScalarFieldContainer[str]
    transaction_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, queue_id: _Optional[int] = ..., offsets: _Optional[_Iterable[int]] = ..., index: _Optional[int] = ..., recall_handles: _Optional[_Iterable[str]] = ..., transaction_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class RecallRequest(_message.Message):
    __slots__ = ("topic", "recall_handle")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    RECALL_HANDLE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    recall_handle: str
    def __init__(self, topic: _Optional[str] = ..., recall_handle: _Optional[str] = ...) -> None: ...

class RecallResponse(_message.Message):
    __slots__ = ("message_id",)
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    def __init__(self, message_id: _Optional[str] = ...) -> None: ...

class EndTransactionRequest(_message.Message):
    __slots__ = ("topic", "transaction_id", "commits")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    transaction_id: str
    commits: bool
    def __init__(self, topic: _Optional[str] = ..., transaction_id: _Optional[str] = ..., commits: _Optional[bool] = ...) -> None: ...

class EndTransactionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ProduceBatches(_message.Message):
    __slots__ = ("batches",)
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    batches: _containers.RepeatedCompositeFieldContainer[ProduceBatch]
    def __init__(self, batches: _Optional[_Iterable[_Union[ProduceBatch, _Mapping]]] = ...) -> None: ...

class ProduceBatch(_message.Message):
    __slots__ = ("id", "command", "joined")
    ID_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    id: int
    command: bytes
    joined: bool
    def __init__(self, id: _Optional[int] = ..., command: _Optional[bytes] = ..., joined: _Optional[bool] = ...) -> None: ...

class ProduceAnswers(_message.Message):
    __slots__ = ("answers",)
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[ProduceAnswer]
    def __init__(self, answers: _Optional[_Iterable[_Union[ProduceAnswer, _Mapping]]] = ...) -> None: ...

class ProduceAnswer(_message.Message):
    __slots__ = ("id", "queue_id", "first_offset", "offsets", "index", "conflicts", "refused", "disk_full", "key_queues", "stopped", "recall_handles")
    ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    CONFLICTS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    DISK_FULL_FIELD_NUMBER: _ClassVar[int]
    KEY_QUEUES_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    RECALL_HANDLES_FIELD_NUMBER: _ClassVar[int]
    id: int
    queue_id: int
    first_offset: int
    offsets: _containers.RepeatedScalarFieldContainer[int]
    index: int
    conflicts: _containers.RepeatedScalarFieldContainer[int]
    refused: str
    disk_full: str
    key_queues: int
    stopped: bool
    recall_handles: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[int] = ..., queue_id: _Optional[int] = ..., first_offset: _Optional[int] = ..., offsets: _Optional[_Iterable[int]] = ..., index: _Optional[int] = ..., conflicts: _Optional[_Iterable[int]] = ..., refused: _Optional[str] = ..., disk_full: _Optional[str] = ..., key_queues: _Optional[int] = ..., stopped: _Optional[bool] = ..., recall_handles: _Optional[_Iterable[str]] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("topic", "queue_id", "start_offset", "max_records", "follow", "linearizable", "joined", "generation", "with_gaps")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_RECORDS_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    LINEARIZABLE_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    WITH_GAPS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    start_offset: int
    max_records: int
    follow: bool
    linearizable: bool
    joined: bool
    generation: int
    with_gaps: bool
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., start_offset: _Optional[int] = ..., max_records: _Optional[int] = ..., follow: _Optional[bool] = ..., linearizable: _Optional[bool] = ..., joined: _Optional[bool] = ..., generation: _Optional[int] = ..., with_gaps: _Optional[bool] = ...) -> None: ...

class ReadIndexRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReadIndexResponse(_message.Message):
    __slots__ = ("index",)
    INDEX_FIELD_NUMBER: _ClassVar[int]
    index: int
    def __init__(self, index: _Optional[int] = ...) -> None: ...

class ReadResponse(_message.Message):
    __slots__ = ("records", "next_offset", "generation")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[StoredRecord]
    next_offset: int
    generation: int
    def __init__(self, records: _Optional[_Iterable[_Union[StoredRecord, _Mapping]]] = ..., next_offset: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...

class StoredRecord(_message.Message):
    __slots__ = ("offset", "index", "stored_at_ms", "record", "typed")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    STORED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    TYPED_FIELD_NUMBER: _ClassVar[int]
    offset: int
    index: int
    stored_at_ms: int
    record: Record
    typed: Typed
    def __init__(self, offset: _Optional[int] = ..., index: _Optional[int] = ..., stored_at_ms: _Optional[int] = ..., record: _Optional[_Union[Record, _Mapping]] = ..., typed: _Optional[_Union[Typed, _Mapping]] = ...) -> None: ...

class Typed(_message.Message):
    __slots__ = ("message_group", "deliver_at_ms", "priority", "moved_from")
    MESSAGE_GROUP_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_MS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    MOVED_FROM_FIELD_NUMBER: _ClassVar[int]
    message_group: str
    deliver_at_ms: int
    priority: int
    moved_from: MovedFrom
    def __init__(self, message_group: _Optional[str] = ..., deliver_at_ms: _Optional[int] = ..., priority: _Optional[int] = ..., moved_from: _Optional[_Union[MovedFrom, _Mapping]] = ...) -> None: ...

class MovedFrom(_message.Message):
    __slots__ = ("topic", "generation", "queue_id", "offset", "stored_at_ms", "born_host", "attempts")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    STORED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    BORN_HOST_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    generation: int
    queue_id: int
    offset: int
    stored_at_ms: int
    born_host: str
    attempts: int
    def __init__(self, topic: _Optional[str] = ..., generation: _Optional[int] = ..., queue_id: _Optional[int] = ..., offset: _Optional[int] = ..., stored_at_ms: _Optional[int] = ..., born_host: _Optional[str] = ..., attempts: _Optional[int] = ...) -> None: ...

class ReadBatchesResponse(_message.Message):
    __slots__ = ("batches", "next_offset", "generation")
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    batches: _containers.RepeatedCompositeFieldContainer[StoredBatch]
    next_offset: int
    generation: int
    def __init__(self, batches: _Optional[_Iterable[_Union[StoredBatch, _Mapping]]] = ..., next_offset: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...

class StoredBatch(_message.Message):
    __slots__ = ("first_offset", "first_row", "count", "index", "stored_at_ms", "payload", "entry_counts", "entry_indexes", "entry_stored_at_ms", "offsets")
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROW_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    STORED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    ENTRY_COUNTS_FIELD_NUMBER: _ClassVar[int]
    ENTRY_INDEXES_FIELD_NUMBER: _ClassVar[int]
    ENTRY_STORED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    first_offset: int
    first_row: int
    count: int
    index: int
    stored_at_ms: int
    payload: bytes
    entry_counts: _containers.RepeatedScalarFieldContainer[int]
    entry_indexes: _containers.RepeatedScalarFieldContainer[int]
    entry_stored_at_ms: _containers.RepeatedScalarFieldContainer[int]
    offsets: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, first_offset: _Optional[int] = ..., first_row: _Optional[int] = ..., count: _Optional[int] = ..., index: _Optional[int] = ..., stored_at_ms: _Optional[int] = ..., payload: _Optional[bytes] = ..., entry_counts: _Optional[_Iterable[int]] = ..., entry_indexes: _Optional[_Iterable[int]] = ..., entry_stored_at_ms: _Optional[_Iterable[int]] = ..., offsets: _Optional[_Iterable[int]] = ...) -> None: ...

class CreateTopicRequest(_message.Message):
    __slots__ = ("name", "type", "queues", "compaction")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    COMPACTION_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: str
    queues: int
    compaction: Compaction
    def __init__(self, name: _Optional[str] = ..., type: _Optional[str] = ..., queues: _Optional[int] = ..., compaction: _Optional[_Union[Compaction, _Mapping]] = ...) -> None: ...

class Compaction(_message.Message):
    __slots__ = ("min_lag_ms", "tombstone_ms")
    MIN_LAG_MS_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONE_MS_FIELD_NUMBER: _ClassVar[int]
    min_lag_ms: int
    tombstone_ms: int
    def __init__(self, min_lag_ms: _Optional[int] = ..., tombstone_ms: _Optional[int] = ...) -> None: ...

class CreateTopicResponse(_message.Message):
    __slots__ = ("created",)
    CREATED_FIELD_NUMBER: _ClassVar[int]
    created: bool
    def __init__(self, created: _Optional[bool] = ...) -> None: ...

class ListTopicsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTopicsResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[Topic]
    def __init__(self, topics: _Optional[_Iterable[_Union[Topic, _Mapping]]] = ...) -> None: ...

class Topic(_message.Message):
    __slots__ = ("name", "type", "queues", "messages", "retention_hours", "compaction")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    RETENTION_HOURS_FIELD_NUMBER: _ClassVar[int]
    COMPACTION_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: str
    queues: int
    messages: int
    retention_hours: int
    compaction: Compaction
    def __init__(self, name: _Optional[str] = ..., type: _Optional[str] = ..., queues: _Optional[int] = ..., messages: _Optional[int] = ..., retention_hours: _Optional[int] = ..., compaction: _Optional[_Union[Compaction, _Mapping]] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("id", "name", "address")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    address: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class BootstrapRequest(_message.Message):
    __slots__ = ("group_id", "members")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    members: _containers.RepeatedCompositeFieldContainer[Member]
    def __init__(self, group_id: _Optional[str] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ...) -> None: ...

class BootstrapResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusResponse(_message.Message):
    __slots__ = ("node_id", "name", "group", "group_id", "role", "term", "leader_id", "commit_index", "applied_index", "last_index", "synced_index", "ready", "not_ready_reason", "members", "last_failover", "version", "storage_used_bytes", "storage_capacity_bytes", "writes_refused_reason", "recovered_to", "faulty_entries", "feature_level", "commit_waits_ms", "told_group_id", "now_ms", "last_term", "epoch", "clock_ahead_ms", "clock_behind_ms", "log_ahead_ms", "older_copy", "client_certificate_fault", "client_certificate_begins_ms", "client_certificate_ends_ms", "held_waiting")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    APPLIED_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    SYNCED_INDEX_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    NOT_READY_REASON_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    LAST_FAILOVER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STORAGE_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    STORAGE_CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    WRITES_REFUSED_REASON_FIELD_NUMBER: _ClassVar[int]
    RECOVERED_TO_FIELD_NUMBER: _ClassVar[int]
    FAULTY_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    FEATURE_LEVEL_FIELD_NUMBER: _ClassVar[int]
    COMMIT_WAITS_MS_FIELD_NUMBER: _ClassVar[int]
    TOLD_GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    NOW_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_TERM_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CLOCK_AHEAD_MS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_BEHIND_MS_FIELD_NUMBER: _ClassVar[int]
    LOG_AHEAD_MS_FIELD_NUMBER: _ClassVar[int]
    OLDER_COPY_FIELD_NUMBER: _ClassVar[int]
    CLIENT_CERTIFICATE_FAULT_FIELD_NUMBER: _ClassVar[int]
    CLIENT_CERTIFICATE_BEGINS_MS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_CERTIFICATE_ENDS_MS_FIELD_NUMBER: _ClassVar[int]
    HELD_WAITING_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    name: str
    group: str
    group_id: str
    role: str
    term: int
    leader_id: str
    commit_index: int
    applied_index: int
    last_index: int
    synced_index: int
    ready: bool
    not_ready_reason: str
    members: _containers.RepeatedCompositeFieldContainer[MemberStatus]
    last_failover: Failover
    version: str
    storage_used_bytes: int
    storage_capacity_bytes: int
    writes_refused_reason: str
    recovered_to: int
    faulty_entries: int
    feature_level: int
    commit_waits_ms: int
    told_group_id: str
    now_ms: int
    last_term: int
    epoch: int
    clock_ahead_ms: int
    clock_behind_ms: int
    log_ahead_ms: int
    older_copy: str
    client_certificate_fault: str
    client_certificate_begins_ms: int
    client_certificate_ends_ms: int
    held_waiting: int
    def __init__(self, node_id: _Optional[str] = ..., name: _Optional[str] = ..., group: _Optional[str] = ..., group_id: _Optional[str] = ..., role: _Optional[str] = ..., term: _Optional[int] = ..., leader_id: _Optional[str] = ..., commit_index: _Optional[int] = ..., applied_index: _Optional[int] = ..., last_index: _Optional[int] = ..., synced_index: _Optional[int] = ..., ready: _Optional[bool] = ..., not_ready_reason: _Optional[str] = ..., members: _Optional[_Iterable[_Union[MemberStatus, _Mapping]]] = ..., last_failover: _Optional[_Union[Failover, _Mapping]] = ..., version: _Optional[str] = ..., storage_used_bytes: _Optional[int] = ..., storage_capacity_bytes: _Optional[int] = ..., writes_refused_reason: _Optional[str] = ..., recovered_to: _Optional[int] = ..., faulty_entries: _Optional[int] = ..., feature_level: _Optional[int] = ..., commit_waits_ms: _Optional[int] = ..., told_group_id: _Optional[str] = ..., now_ms: _Optional[int] = ..., last_term: _Optional[int] = ..., epoch: _Optional[int] = ..., clock_ahead_ms: _Optional[int] = ..., clock_behind_ms: _Optional[int] = ..., log_ahead_ms: _Optional[int] = ..., older_copy: _Optional[str] = ..., client_certificate_fault: _Optional[str] = ..., client_certificate_begins_ms: _Optional[int] = ..., client_certificate_ends_ms: _Optional[int] = ..., held_waiting: _Optional[int] = ...) -> None: ...

class WatchStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusNews(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: StatusResponse
    def __init__(self, status: _Optional[_Union[StatusResponse, _Mapping]] = ...) -> None: ...

class MemberStatus(_message.Message):
    __slots__ = ("member", "role", "match_index", "lag", "connected", "voter", "feature_level")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    MATCH_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    VOTER_FIELD_NUMBER: _ClassVar[int]
    FEATURE_LEVEL_FIELD_NUMBER: _ClassVar[int]
    member: Member
    role: str
    match_index: int
    lag: int
    connected: bool
    voter: bool
    feature_level: int
    def __init__(self, member: _Optional[_Union[Member, _Mapping]] = ..., role: _Optional[str] = ..., match_index: _Optional[int] = ..., lag: _Optional[int] = ..., connected: _Optional[bool] = ..., voter: _Optional[bool] = ..., feature_level: _Optional[int] = ...) -> None: ...

class Failover(_message.Message):
    __slots__ = ("from_id", "to_id", "term", "cause", "detected_ms", "elected_ms", "first_ack_ms", "at_ms")
    FROM_ID_FIELD_NUMBER: _ClassVar[int]
    TO_ID_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    DETECTED_MS_FIELD_NUMBER: _ClassVar[int]
    ELECTED_MS_FIELD_NUMBER: _ClassVar[int]
    FIRST_ACK_MS_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    from_id: str
    to_id: str
    term: int
    cause: str
    detected_ms: int
    elected_ms: int
    first_ack_ms: int
    at_ms: int
    def __init__(self, from_id: _Optional[str] = ..., to_id: _Optional[str] = ..., term: _Optional[int] = ..., cause: _Optional[str] = ..., detected_ms: _Optional[int] = ..., elected_ms: _Optional[int] = ..., first_ack_ms: _Optional[int] = ..., at_ms: _Optional[int] = ...) -> None: ...

class TransferLeaderRequest(_message.Message):
    __slots__ = ("target_id",)
    TARGET_ID_FIELD_NUMBER: _ClassVar[int]
    target_id: str
    def __init__(self, target_id: _Optional[str] = ...) -> None: ...

class TransferLeaderResponse(_message.Message):
    __slots__ = ("leader_id",)
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    leader_id: str
    def __init__(self, leader_id: _Optional[str] = ...) -> None: ...

class AddLearnerRequest(_message.Message):
    __slots__ = ("id", "name", "address")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    address: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class RemoveMemberRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class ChangeMembersRequest(_message.Message):
    __slots__ = ("add", "remove")
    ADD_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    add: _containers.RepeatedCompositeFieldContainer[Member]
    remove: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, add: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., remove: _Optional[_Iterable[str]] = ...) -> None: ...

class MembershipResponse(_message.Message):
    __slots__ = ("index", "voters", "learners")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    LEARNERS_FIELD_NUMBER: _ClassVar[int]
    index: int
    voters: _containers.RepeatedCompositeFieldContainer[Member]
    learners: _containers.RepeatedCompositeFieldContainer[Member]
    def __init__(self, index: _Optional[int] = ..., voters: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., learners: _Optional[_Iterable[_Union[Member, _Mapping]]] = ...) -> None: ...

class ForceNewGroupRequest(_message.Message):
    __slots__ = ("group_id", "node_id", "expected_last_term", "expected_last_index")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_LAST_TERM_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    node_id: str
    expected_last_term: int
    expected_last_index: int
    def __init__(self, group_id: _Optional[str] = ..., node_id: _Optional[str] = ..., expected_last_term: _Optional[int] = ..., expected_last_index: _Optional[int] = ...) -> None: ...

class ForceNewGroupResponse(_message.Message):
    __slots__ = ("term", "index", "epoch", "committed_index", "removed")
    TERM_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_INDEX_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    term: int
    index: int
    epoch: int
    committed_index: int
    removed: _containers.RepeatedCompositeFieldContainer[Member]
    def __init__(self, term: _Optional[int] = ..., index: _Optional[int] = ..., epoch: _Optional[int] = ..., committed_index: _Optional[int] = ..., removed: _Optional[_Iterable[_Union[Member, _Mapping]]] = ...) -> None: ...

class ExportPlanRequest(_message.Message):
    __slots__ = ("group_id", "first_index", "last_index", "target_bytes")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    TARGET_BYTES_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    first_index: int
    last_index: int
    target_bytes: int
    def __init__(self, group_id: _Optional[str] = ..., first_index: _Optional[int] = ..., last_index: _Optional[int] = ..., target_bytes: _Optional[int] = ...) -> None: ...

class ExportPlanResponse(_message.Message):
    __slots__ = ("group_id", "term", "commit_index", "first_available", "ranges", "group", "kept_from", "applied_index")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    FIRST_AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    KEPT_FROM_FIELD_NUMBER: _ClassVar[int]
    APPLIED_INDEX_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    term: int
    commit_index: int
    first_available: int
    ranges: _containers.RepeatedCompositeFieldContainer[ExportRange]
    group: str
    kept_from: int
    applied_index: int
    def __init__(self, group_id: _Optional[str] = ..., term: _Optional[int] = ..., commit_index: _Optional[int] = ..., first_available: _Optional[int] = ..., ranges: _Optional[_Iterable[_Union[ExportRange, _Mapping]]] = ..., group: _Optional[str] = ..., kept_from: _Optional[int] = ..., applied_index: _Optional[int] = ...) -> None: ...

class ExportRange(_message.Message):
    __slots__ = ("first_index", "last_index", "bytes", "previous_chain")
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_CHAIN_FIELD_NUMBER: _ClassVar[int]
    first_index: int
    last_index: int
    bytes: int
    previous_chain: int
    def __init__(self, first_index: _Optional[int] = ..., last_index: _Optional[int] = ..., bytes: _Optional[int] = ..., previous_chain: _Optional[int] = ...) -> None: ...

class ExportRequest(_message.Message):
    __slots__ = ("group_id", "first_index", "last_index")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    first_index: int
    last_index: int
    def __init__(self, group_id: _Optional[str] = ..., first_index: _Optional[int] = ..., last_index: _Optional[int] = ...) -> None: ...

class ExportChunk(_message.Message):
    __slots__ = ("first_index", "last_index", "previous_chain", "positions", "records", "segment", "offset")
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_CHAIN_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    first_index: int
    last_index: int
    previous_chain: int
    positions: bytes
    records: bytes
    segment: str
    offset: int
    def __init__(self, first_index: _Optional[int] = ..., last_index: _Optional[int] = ..., previous_chain: _Optional[int] = ..., positions: _Optional[bytes] = ..., records: _Optional[bytes] = ..., segment: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class ExportSnapshotRequest(_message.Message):
    __slots__ = ("group_id",)
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    def __init__(self, group_id: _Optional[str] = ...) -> None: ...

class ExportSnapshotChunk(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class ExportPlacesRequest(_message.Message):
    __slots__ = ("group_id", "first_index", "last_index", "with_topics")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    WITH_TOPICS_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    first_index: int
    last_index: int
    with_topics: bool
    def __init__(self, group_id: _Optional[str] = ..., first_index: _Optional[int] = ..., last_index: _Optional[int] = ..., with_topics: _Optional[bool] = ...) -> None: ...

class ExportPlacesChunk(_message.Message):
    __slots__ = ("queues", "state")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[QueuePlaces]
    state: PlacesState
    def __init__(self, queues: _Optional[_Iterable[_Union[QueuePlaces, _Mapping]]] = ..., state: _Optional[_Union[PlacesState, _Mapping]] = ...) -> None: ...

class QueuePlaces(_message.Message):
    __slots__ = ("generation", "queue_id", "end_offset", "first_offsets", "indexes", "starts", "ends", "rows")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    queue_id: int
    end_offset: int
    first_offsets: bytes
    indexes: bytes
    starts: bytes
    ends: bytes
    rows: bytes
    def __init__(self, generation: _Optional[int] = ..., queue_id: _Optional[int] = ..., end_offset: _Optional[int] = ..., first_offsets: _Optional[bytes] = ..., indexes: _Optional[bytes] = ..., starts: _Optional[bytes] = ..., ends: _Optional[bytes] = ..., rows: _Optional[bytes] = ...) -> None: ...

class PlacesState(_message.Message):
    __slots__ = ("kept_from", "applied_index", "topics_made", "topics")
    KEPT_FROM_FIELD_NUMBER: _ClassVar[int]
    APPLIED_INDEX_FIELD_NUMBER: _ClassVar[int]
    TOPICS_MADE_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    kept_from: int
    applied_index: int
    topics_made: int
    topics: _containers.RepeatedCompositeFieldContainer[PlacesTopic]
    def __init__(self, kept_from: _Optional[int] = ..., applied_index: _Optional[int] = ..., topics_made: _Optional[int] = ..., topics: _Optional[_Iterable[_Union[PlacesTopic, _Mapping]]] = ...) -> None: ...

class PlacesTopic(_message.Message):
    __slots__ = ("name", "generation")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    generation: int
    def __init__(self, name: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class SnapshotRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SnapshotResponse(_message.Message):
    __slots__ = ("last_index",)
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    last_index: int
    def __init__(self, last_index: _Optional[int] = ...) -> None: ...

class Backlog(_message.Message):
    __slots__ = ("group", "topic", "unread", "held", "filters")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    UNREAD_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    unread: int
    held: int
    filters: _containers.RepeatedCompositeFieldContainer[FilterBacklog]
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., unread: _Optional[int] = ..., held: _Optional[int] = ..., filters: _Optional[_Iterable[_Union[FilterBacklog, _Mapping]]] = ...) -> None: ...

class FilterBacklog(_message.Message):
    __slots__ = ("filter", "unread", "waits")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    UNREAD_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    filter: str
    unread: int
    waits: bool
    def __init__(self, filter: _Optional[str] = ..., unread: _Optional[int] = ..., waits: _Optional[bool] = ...) -> None: ...

class DescribeTopicRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DescribeTopicResponse(_message.Message):
    __slots__ = ("topic", "generation", "backlogs", "in_use", "made_again_queues")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    BACKLOGS_FIELD_NUMBER: _ClassVar[int]
    IN_USE_FIELD_NUMBER: _ClassVar[int]
    MADE_AGAIN_QUEUES_FIELD_NUMBER: _ClassVar[int]
    topic: Topic
    generation: int
    backlogs: _containers.RepeatedCompositeFieldContainer[Backlog]
    in_use: bool
    made_again_queues: int
    def __init__(self, topic: _Optional[_Union[Topic, _Mapping]] = ..., generation: _Optional[int] = ..., backlogs: _Optional[_Iterable[_Union[Backlog, _Mapping]]] = ..., in_use: _Optional[bool] = ..., made_again_queues: _Optional[int] = ...) -> None: ...

class GrowTopicRequest(_message.Message):
    __slots__ = ("name", "queues")
    NAME_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    name: str
    queues: int
    def __init__(self, name: _Optional[str] = ..., queues: _Optional[int] = ...) -> None: ...

class GrowTopicResponse(_message.Message):
    __slots__ = ("before",)
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    before: int
    def __init__(self, before: _Optional[int] = ...) -> None: ...

class SetTopicRetentionRequest(_message.Message):
    __slots__ = ("name", "hours")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HOURS_FIELD_NUMBER: _ClassVar[int]
    name: str
    hours: int
    def __init__(self, name: _Optional[str] = ..., hours: _Optional[int] = ...) -> None: ...

class SetTopicRetentionResponse(_message.Message):
    __slots__ = ("before", "dropped")
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    before: int
    dropped: int
    def __init__(self, before: _Optional[int] = ..., dropped: _Optional[int] = ...) -> None: ...

class CompactRequest(_message.Message):
    __slots__ = ("group_id", "as_of_index", "as_of_chain", "topic", "generation", "queue_id", "first", "to", "stays", "again_in_ms", "proofs", "alone")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    AS_OF_INDEX_FIELD_NUMBER: _ClassVar[int]
    AS_OF_CHAIN_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    STAYS_FIELD_NUMBER: _ClassVar[int]
    AGAIN_IN_MS_FIELD_NUMBER: _ClassVar[int]
    PROOFS_FIELD_NUMBER: _ClassVar[int]
    ALONE_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    as_of_index: int
    as_of_chain: int
    topic: str
    generation: int
    queue_id: int
    first: int
    to: int
    stays: bytes
    again_in_ms: int
    proofs: _containers.RepeatedCompositeFieldContainer[Beaten]
    alone: bytes
    def __init__(self, group_id: _Optional[str] = ..., as_of_index: _Optional[int] = ..., as_of_chain: _Optional[int] = ..., topic: _Optional[str] = ..., generation: _Optional[int] = ..., queue_id: _Optional[int] = ..., first: _Optional[int] = ..., to: _Optional[int] = ..., stays: _Optional[bytes] = ..., again_in_ms: _Optional[int] = ..., proofs: _Optional[_Iterable[_Union[Beaten, _Mapping]]] = ..., alone: _Optional[bytes] = ...) -> None: ...

class Beaten(_message.Message):
    __slots__ = ("offset", "by")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    offset: int
    by: int
    def __init__(self, offset: _Optional[int] = ..., by: _Optional[int] = ...) -> None: ...

class CompactResponse(_message.Message):
    __slots__ = ("ask", "kept", "let_go", "written_bytes", "later")
    ASK_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    LET_GO_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    LATER_FIELD_NUMBER: _ClassVar[int]
    ask: _containers.RepeatedScalarFieldContainer[int]
    kept: int
    let_go: int
    written_bytes: int
    later: int
    def __init__(self, ask: _Optional[_Iterable[int]] = ..., kept: _Optional[int] = ..., let_go: _Optional[int] = ..., written_bytes: _Optional[int] = ..., later: _Optional[int] = ...) -> None: ...

class DeleteTopicRequest(_message.Message):
    __slots__ = ("name", "generation")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    generation: int
    def __init__(self, name: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class DeleteTopicResponse(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: int
    def __init__(self, messages: _Optional[int] = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[ConsumerGroup]
    def __init__(self, groups: _Optional[_Iterable[_Union[ConsumerGroup, _Mapping]]] = ...) -> None: ...

class ConsumerGroup(_message.Message):
    __slots__ = ("name", "backlogs")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BACKLOGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    backlogs: _containers.RepeatedCompositeFieldContainer[Backlog]
    def __init__(self, name: _Optional[str] = ..., backlogs: _Optional[_Iterable[_Union[Backlog, _Mapping]]] = ...) -> None: ...

class Place(_message.Message):
    __slots__ = ("newest", "stored_ms", "offset")
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    STORED_MS_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    newest: bool
    stored_ms: int
    offset: int
    def __init__(self, newest: _Optional[bool] = ..., stored_ms: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class CreateGroupRequest(_message.Message):
    __slots__ = ("name", "begin")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    name: str
    begin: Place
    def __init__(self, name: _Optional[str] = ..., begin: _Optional[_Union[Place, _Mapping]] = ...) -> None: ...

class CreateGroupResponse(_message.Message):
    __slots__ = ("created",)
    CREATED_FIELD_NUMBER: _ClassVar[int]
    created: bool
    def __init__(self, created: _Optional[bool] = ...) -> None: ...

class DeleteGroupRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteGroupResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeGroupRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DescribeGroupResponse(_message.Message):
    __slots__ = ("queues", "members", "backlogs", "filters", "begins_at_ms")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    BACKLOGS_FIELD_NUMBER: _ClassVar[int]
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    BEGINS_AT_MS_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[GroupQueue]
    members: _containers.RepeatedCompositeFieldContainer[GroupMember]
    backlogs: _containers.RepeatedCompositeFieldContainer[Backlog]
    filters: _containers.RepeatedCompositeFieldContainer[GroupFilter]
    begins_at_ms: int
    def __init__(self, queues: _Optional[_Iterable[_Union[GroupQueue, _Mapping]]] = ..., members: _Optional[_Iterable[_Union[GroupMember, _Mapping]]] = ..., backlogs: _Optional[_Iterable[_Union[Backlog, _Mapping]]] = ..., filters: _Optional[_Iterable[_Union[GroupFilter, _Mapping]]] = ..., begins_at_ms: _Optional[int] = ...) -> None: ...

class GroupQueue(_message.Message):
    __slots__ = ("topic", "queue_id", "first", "end", "committed", "next", "lag", "held")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    first: int
    end: int
    committed: int
    next: int
    lag: int
    held: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., first: _Optional[int] = ..., end: _Optional[int] = ..., committed: _Optional[int] = ..., next: _Optional[int] = ..., lag: _Optional[int] = ..., held: _Optional[int] = ...) -> None: ...

class GroupMember(_message.Message):
    __slots__ = ("client_id", "held", "alive")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    held: int
    alive: bool
    def __init__(self, client_id: _Optional[str] = ..., held: _Optional[int] = ..., alive: _Optional[bool] = ...) -> None: ...

class GroupFilter(_message.Message):
    __slots__ = ("topic", "filter")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    filter: str
    def __init__(self, topic: _Optional[str] = ..., filter: _Optional[str] = ...) -> None: ...

class SeekGroupRequest(_message.Message):
    __slots__ = ("group", "topic", "queue_id", "to", "only_look")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    ONLY_LOOK_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    queue_id: int
    to: Place
    only_look: bool
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., to: _Optional[_Union[Place, _Mapping]] = ..., only_look: _Optional[bool] = ...) -> None: ...

class SeekGroupResponse(_message.Message):
    __slots__ = ("queues",)
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[SoughtQueue]
    def __init__(self, queues: _Optional[_Iterable[_Union[SoughtQueue, _Mapping]]] = ...) -> None: ...

class SoughtQueue(_message.Message):
    __slots__ = ("queue_id", "before", "offset", "held", "asked", "unread")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    UNREAD_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    before: int
    offset: int
    held: int
    asked: int
    unread: int
    def __init__(self, queue_id: _Optional[int] = ..., before: _Optional[int] = ..., offset: _Optional[int] = ..., held: _Optional[int] = ..., asked: _Optional[int] = ..., unread: _Optional[int] = ...) -> None: ...

class FindMessagesRequest(_message.Message):
    __slots__ = ("topic", "queue_id", "generation", "start_offset", "end_offset", "message_id", "key")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    generation: int
    start_offset: int
    end_offset: int
    message_id: str
    key: str
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., generation: _Optional[int] = ..., start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., message_id: _Optional[str] = ..., key: _Optional[str] = ...) -> None: ...

class FindMessagesResponse(_message.Message):
    __slots__ = ("records", "generation", "next_offset", "end_offset")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[StoredRecord]
    generation: int
    next_offset: int
    end_offset: int
    def __init__(self, records: _Optional[_Iterable[_Union[StoredRecord, _Mapping]]] = ..., generation: _Optional[int] = ..., next_offset: _Optional[int] = ..., end_offset: _Optional[int] = ...) -> None: ...

class SetGroupRequest(_message.Message):
    __slots__ = ("name", "max_attempts", "backoff_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    max_attempts: int
    backoff_ms: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., max_attempts: _Optional[int] = ..., backoff_ms: _Optional[_Iterable[int]] = ...) -> None: ...

class SetGroupResponse(_message.Message):
    __slots__ = ("max_attempts", "backoff_ms", "before_max_attempts", "before_backoff_ms")
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_MS_FIELD_NUMBER: _ClassVar[int]
    BEFORE_MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    BEFORE_BACKOFF_MS_FIELD_NUMBER: _ClassVar[int]
    max_attempts: int
    backoff_ms: _containers.RepeatedScalarFieldContainer[int]
    before_max_attempts: int
    before_backoff_ms: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, max_attempts: _Optional[int] = ..., backoff_ms: _Optional[_Iterable[int]] = ..., before_max_attempts: _Optional[int] = ..., before_backoff_ms: _Optional[_Iterable[int]] = ...) -> None: ...

class ListHeldRequest(_message.Message):
    __slots__ = ("limit",)
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    limit: int
    def __init__(self, limit: _Optional[int] = ...) -> None: ...

class ListHeldResponse(_message.Message):
    __slots__ = ("messages", "size_bytes", "waiting", "first")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    messages: int
    size_bytes: int
    waiting: int
    first: _containers.RepeatedCompositeFieldContainer[HeldMessage]
    def __init__(self, messages: _Optional[int] = ..., size_bytes: _Optional[int] = ..., waiting: _Optional[int] = ..., first: _Optional[_Iterable[_Union[HeldMessage, _Mapping]]] = ...) -> None: ...

class HeldMessage(_message.Message):
    __slots__ = ("topic", "message_id", "due_ms", "size_bytes", "waits")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    DUE_MS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    message_id: str
    due_ms: int
    size_bytes: int
    waits: bool
    def __init__(self, topic: _Optional[str] = ..., message_id: _Optional[str] = ..., due_ms: _Optional[int] = ..., size_bytes: _Optional[int] = ..., waits: _Optional[bool] = ...) -> None: ...

class ResumeHeldRequest(_message.Message):
    __slots__ = ("drops",)
    DROPS_FIELD_NUMBER: _ClassVar[int]
    drops: bool
    def __init__(self, drops: _Optional[bool] = ...) -> None: ...

class ResumeHeldResponse(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: int
    def __init__(self, messages: _Optional[int] = ...) -> None: ...

class DeadLettersRequest(_message.Message):
    __slots__ = ("group", "limit")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    group: str
    limit: int
    def __init__(self, group: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class DeadLettersResponse(_message.Message):
    __slots__ = ("letters", "more")
    LETTERS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    letters: _containers.RepeatedCompositeFieldContainer[DeadLetter]
    more: bool
    def __init__(self, letters: _Optional[_Iterable[_Union[DeadLetter, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class DeadLetter(_message.Message):
    __slots__ = ("offset", "message_id", "size_bytes", "moved_from", "held", "kept_because", "sent_to_queue", "sent_to_offset", "was_sent_before")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MOVED_FROM_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    KEPT_BECAUSE_FIELD_NUMBER: _ClassVar[int]
    SENT_TO_QUEUE_FIELD_NUMBER: _ClassVar[int]
    SENT_TO_OFFSET_FIELD_NUMBER: _ClassVar[int]
    WAS_SENT_BEFORE_FIELD_NUMBER: _ClassVar[int]
    offset: int
    message_id: str
    size_bytes: int
    moved_from: MovedFrom
    held: bool
    kept_because: str
    sent_to_queue: int
    sent_to_offset: int
    was_sent_before: bool
    def __init__(self, offset: _Optional[int] = ..., message_id: _Optional[str] = ..., size_bytes: _Optional[int] = ..., moved_from: _Optional[_Union[MovedFrom, _Mapping]] = ..., held: _Optional[bool] = ..., kept_because: _Optional[str] = ..., sent_to_queue: _Optional[int] = ..., sent_to_offset: _Optional[int] = ..., was_sent_before: _Optional[bool] = ...) -> None: ...

class AskProducersRequest(_message.Message):
    __slots__ = ("topic", "client_ids", "others", "but_not", "command")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    CLIENT_IDS_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    BUT_NOT_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    topic: str
    client_ids: _containers.RepeatedScalarFieldContainer[str]
    others: bool
    but_not: str
    command: bytes
    def __init__(self, topic: _Optional[str] = ..., client_ids: _Optional[_Iterable[str]] = ..., others: _Optional[bool] = ..., but_not: _Optional[str] = ..., command: _Optional[bytes] = ...) -> None: ...

class AskProducersResponse(_message.Message):
    __slots__ = ("asked",)
    ASKED_FIELD_NUMBER: _ClassVar[int]
    asked: int
    def __init__(self, asked: _Optional[int] = ...) -> None: ...

class ListTransactionsRequest(_message.Message):
    __slots__ = ("topic", "limit", "after")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    limit: int
    after: str
    def __init__(self, topic: _Optional[str] = ..., limit: _Optional[int] = ..., after: _Optional[str] = ...) -> None: ...

class ListTransactionsResponse(_message.Message):
    __slots__ = ("transactions", "more")
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    transactions: _containers.RepeatedCompositeFieldContainer[Transaction]
    more: bool
    def __init__(self, transactions: _Optional[_Iterable[_Union[Transaction, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class Transaction(_message.Message):
    __slots__ = ("name", "topic", "message_id", "client_id", "size_bytes", "since_ms", "checks", "next_ms", "waits")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    NEXT_MS_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic: str
    message_id: str
    client_id: str
    size_bytes: int
    since_ms: int
    checks: int
    next_ms: int
    waits: bool
    def __init__(self, name: _Optional[str] = ..., topic: _Optional[str] = ..., message_id: _Optional[str] = ..., client_id: _Optional[str] = ..., size_bytes: _Optional[int] = ..., since_ms: _Optional[int] = ..., checks: _Optional[int] = ..., next_ms: _Optional[int] = ..., waits: _Optional[bool] = ...) -> None: ...

class EndTransactionsRequest(_message.Message):
    __slots__ = ("names", "commits")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    commits: bool
    def __init__(self, names: _Optional[_Iterable[str]] = ..., commits: _Optional[bool] = ...) -> None: ...

class EndTransactionsResponse(_message.Message):
    __slots__ = ("transactions",)
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    transactions: _containers.RepeatedCompositeFieldContainer[EndedTransaction]
    def __init__(self, transactions: _Optional[_Iterable[_Union[EndedTransaction, _Mapping]]] = ...) -> None: ...

class EndedTransaction(_message.Message):
    __slots__ = ("name", "was", "stays_because")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WAS_FIELD_NUMBER: _ClassVar[int]
    STAYS_BECAUSE_FIELD_NUMBER: _ClassVar[int]
    name: str
    was: str
    stays_because: str
    def __init__(self, name: _Optional[str] = ..., was: _Optional[str] = ..., stays_because: _Optional[str] = ...) -> None: ...

class EraseRequest(_message.Message):
    __slots__ = ("topic", "key", "generation", "start_offset", "end_offset", "only_count", "offsets", "queue_id", "first_entry")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ONLY_COUNT_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_ENTRY_FIELD_NUMBER: _ClassVar[int]
    topic: str
    key: str
    generation: int
    start_offset: int
    end_offset: int
    only_count: bool
    offsets: _containers.RepeatedScalarFieldContainer[int]
    queue_id: int
    first_entry: int
    def __init__(self, topic: _Optional[str] = ..., key: _Optional[str] = ..., generation: _Optional[int] = ..., start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., only_count: _Optional[bool] = ..., offsets: _Optional[_Iterable[int]] = ..., queue_id: _Optional[int] = ..., first_entry: _Optional[int] = ...) -> None: ...

class EraseResponse(_message.Message):
    __slots__ = ("generation", "messages", "first_entry", "erase_entry", "next_offset", "end_offset", "named")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    FIRST_ENTRY_FIELD_NUMBER: _ClassVar[int]
    ERASE_ENTRY_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NAMED_FIELD_NUMBER: _ClassVar[int]
    generation: int
    messages: int
    first_entry: int
    erase_entry: int
    next_offset: int
    end_offset: int
    named: int
    def __init__(self, generation: _Optional[int] = ..., messages: _Optional[int] = ..., first_entry: _Optional[int] = ..., erase_entry: _Optional[int] = ..., next_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., named: _Optional[int] = ...) -> None: ...

class ListErasuresRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListErasuresResponse(_message.Message):
    __slots__ = ("erasures", "first_index", "retention_hours")
    ERASURES_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    RETENTION_HOURS_FIELD_NUMBER: _ClassVar[int]
    erasures: _containers.RepeatedCompositeFieldContainer[Erasure]
    first_index: int
    retention_hours: int
    def __init__(self, erasures: _Optional[_Iterable[_Union[Erasure, _Mapping]]] = ..., first_index: _Optional[int] = ..., retention_hours: _Optional[int] = ...) -> None: ...

class Erasure(_message.Message):
    __slots__ = ("entry", "at_ms", "topic", "messages", "first_entry")
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    FIRST_ENTRY_FIELD_NUMBER: _ClassVar[int]
    entry: int
    at_ms: int
    topic: str
    messages: int
    first_entry: int
    def __init__(self, entry: _Optional[int] = ..., at_ms: _Optional[int] = ..., topic: _Optional[str] = ..., messages: _Optional[int] = ..., first_entry: _Optional[int] = ...) -> None: ...
