"""Bugs in what is written, and in how it is read again."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_RULES = "tests/store/test_persistence_rules.py"
_FULL = "tests/store/test_full_disks.py"
_FAULTS = "tests/store/test_faults.py"
_FAULTY = "tests/store/test_faulty_slots.py"
_DROPPING = "tests/store/test_dropping.py"
_FORMAT = "tests/store/test_format.py"
_SCRUBBING = "tests/store/test_scrubbing.py"

STORE_MUTANTS = (
    Mutant(
        name="a quota that is used up is not a full disk",
        file="files/full.py",
        old="frozenset({errno.ENOSPC, errno.EDQUOT})",
        new="frozenset({errno.ENOSPC})",
        why="all nodes of a group end at once where they should wait for room",
        checks=(_FULL,),
    ),
    Mutant(
        name="create an index file outside of what knows a full disk",
        file="store/recovery.py",
        old="    temporary = path.with_name(path.name + NEW_SUFFIX)\n    with making(",
        new="    temporary = path.with_name(path.name + NEW_SUFFIX)\n"
        "    files.open(temporary, Mode.CREATE).close()\n    with making(",
        why="a disk without an inode ends the node",
        checks=(_FULL,),
    ),
    Mutant(
        name="forget the entries before the lower watermark has room",
        file="store/commit_log.py",
        old="        crossing = any(segment.first_index > last for",
        new="        self._index.forget_behind(last)\n"
        "        crossing = any(segment.first_index > last for",
        why="the next append goes behind records that were never removed",
        checks=(_FULL,),
    ),
    Mutant(
        name="the watermark without the data's sync",
        file="store/commit_log.py",
        old="        last.sync(self._disk.open(last))\n        first = max(",
        new="        first = max(",
        why="entries are acknowledged that a power cut takes",
        checks=(_RULES,),
    ),
    Mutant(
        name="seal without a sync",
        file="store/commit_log.py",
        old="        segment.sync(file)\n",
        new="",
        why="the records before a segment boundary are lost behind a watermark",
        checks=(_RULES,),
    ),
    Mutant(
        name="forget the directory sync of a segment",
        file="store/segment_files.py",
        old="            self.files.rename(temporary, segment.path)\n"
        "        self.files.fsync_dir(self._directory)\n",
        new="            self.files.rename(temporary, segment.path)\n",
        why="a segment full of acknowledged entries has no name after a power cut",
        checks=(_RULES,),
    ),
    Mutant(
        name="write one of the two copies of a vote",
        file="store/two_copies.py",
        old="        for path in self.paths:\n            replace_file(",
        new="        for path in self.paths[:1]:\n            replace_file(",
        why="one damaged byte costs the member for ever",
        checks=(_FAULTS,),
    ),
    Mutant(
        name="take the older copy of a vote",
        file="store/two_copies.py",
        old="newest = max(whole, key=self._rank)",
        new="newest = min(whole, key=self._rank)",
        why="a vote that the newer copy has is forgotten",
        checks=(_RULES,),
    ),
    Mutant(
        name="start with one whole copy of a vote",
        file="store/two_copies.py",
        old="            if copy != newest:\n",
        new="            if copy is None:\n",
        why="the next damaged byte brings back the time before a vote that was told since",
        checks=(_RULES,),
    ),
    Mutant(
        name="forget the directory sync of a vote",
        file="files/atomic.py",
        old="    try:\n        files.fsync_dir(path.parent)\n    except OSError as error:\n"
        '        raise StorageError(f"cannot replace',
        new="    try:\n        pass\n    except OSError as error:\n"
        '        raise StorageError(f"cannot replace',
        why="a vote that was told is forgotten",
        checks=(_RULES,),
    ),
    Mutant(
        name="rename a vote before it is synced",
        file="files/atomic.py",
        old="            file.pwritev(step, position)\n            file.fdatasync()\n",
        new="            file.pwritev(step, position)\n",
        why="the name stands for bytes that are not there",
        checks=(_RULES,),
    ),
    Mutant(
        name="tell a vote whose name is not durable",
        file="files/atomic.py",
        old="        files.fsync_dir(path.parent)\n    except OSError as error:\n"
        '        raise StorageError(f"cannot sync the name',
        new="        files.list(path.parent)\n    except OSError as error:\n"
        '        raise StorageError(f"cannot sync the name',
        why="a process was killed before its directory sync; the next one goes by that vote",
        checks=(_RULES,),
    ),
    Mutant(
        name="go on in a segment whose name is not durable",
        file="store/recovery.py",
        old="        files.remove(directory / name)\n    files.fsync_dir(directory)\n",
        new="        files.remove(directory / name)\n",
        why="the same for a segment, and for a removal",
        checks=(_RULES,),
    ),
    Mutant(
        name="go by a watermark that is not durable",
        file="store/recovery.py",
        old="    watermark.settle()\n",
        new="",
        why="segments are removed on the word of a slot that a power cut takes back",
        checks=(_RULES,),
    ),
    Mutant(
        name="leave truncated records behind the end",
        file="store/segment.py",
        old="            write_zeros(file, self.end, self.dirty_end)\n",
        new="            write_zeros(file, self.end, self.end)\n",
        why="what Raft removed comes back at the next start",
        checks=(_RULES,),
    ),
    Mutant(
        name="truncate without lowering the watermark",
        file="store/commit_log.py",
        old="if last < self._watermark.mark.index or crossing:",
        new="if crossing and last > self._watermark.mark.index:",
        why="an interrupted truncation is taken for rot",
        checks=(_RULES,),
    ),
    Mutant(
        name="trust the page cache after a failed sync",
        file="store/recovery.py",
        old="            file.pwritev([file.pread(size, position)], position)\n",
        new="            file.pread(size, position)\n",
        why="records are promised that never reached the disk",
        checks=(_RULES,),
    ),
    Mutant(
        name="one slot for the watermark",
        file="store/watermark.py",
        old="mark.sequence % 2 * SLOT_STRIDE_BYTES)",
        new="0)",
        why="a power cut while it is written leaves none",
        checks=(_RULES, _FORMAT, _DROPPING, _FAULTY),
    ),
    Mutant(
        name="move the log's beginning in one slot only",
        file="store/watermark.py",
        old="for _ in range(2):",
        new="for _ in range(1):",
        why="the other slot asks for segments that are gone",
        checks=(_DROPPING,),
    ),
    Mutant(
        name="go on after a failed sync",
        file="store/log_state.py",
        old="self.failure = self.failure or str(error)",
        new="self.failure = self.failure or None",
        why="a later sync succeeds without writing, and entries are acknowledged",
        checks=(_FAULTS,),
    ),
    Mutant(
        name="take a body without its CRC",
        file="store/format.py",
        old="    if found != header.crc32c:\n",
        new="    if found < 0:\n",
        why="rot is handed to clients",
        checks=(_FORMAT, _FAULTS),
    ),
    Mutant(
        name="take any record that parses",
        file="store/format.py",
        old='    if found != expected:\n        raise ValueError(f"chain CRC',
        new='    if found < 0:\n        raise ValueError(f"chain CRC',
        why="a record of another history continues the log",
        checks=(_FORMAT, _FAULTS),
    ),
    Mutant(
        name="take any entry for a repair",
        file="store/slot_repair.py",
        old="if encoded.chains != [segment.chain(index)] or start + encoded.size_bytes != end:",
        new="if start + encoded.size_bytes != end:",
        why="a peer with another history overwrites what was acknowledged",
        checks=(_FAULTY,),
    ),
    Mutant(
        name="call a repair done without reading back",
        file="store/slot_repair.py",
        old="return disk.open(slot.segment).pread(len(slot.record), slot.start) == slot.record",
        new="return bool(slot.record)",
        why="a disk that loses the write again goes unnoticed",
        checks=(_FAULTY,),
    ),
    Mutant(
        name="treat a faulty slot as absent",
        file="store/segment_scan.py",
        old="    result.faulty.add(identity.entry_index, identity.entry_index)\n",
        new='    raise ValueError("rot")\n',
        why="rot shortens a log, and the node votes and acks as if it had never had the entry",
        checks=(_FAULTY, _FAULTS),
    ),
    Mutant(
        name="no identity rows behind a restart within the old log",
        file="store/commit_log.py",
        old="                self._state.rows_index = index\n",
        new="",
        why="one rotten record there, and the node refuses to start (M56)",
        checks=(_FAULTY,),
    ),
    Mutant(
        name="scrub what is not synced",
        file="store/log_scrubber.py",
        old="last = min(self._state.synced_index, self._index.last_index)\n",
        new="last = self._index.last_index\n",
        why="what the disk does not have yet is called rot",
        checks=(_SCRUBBING,),
    ),
    Mutant(
        name="take a record of a newer version for a torn tail",
        file="store/format.py",
        old="    if kind not in _KINDS:  # the chain CRC is valid, so this is not damage\n",
        new="    if kind not in _KINDS:\n        raise ValueError\n    if kind not in _KINDS:\n",
        why="an older image cuts what the newer one acknowledged",
        checks=("tests/store/test_newer_formats.py",),
    ),
    Mutant(
        name="take a slot of a newer version for a damaged one",
        file="store/format.py",
        old="    if version > FORMAT_VERSION:\n",
        new="    if version > FORMAT_VERSION + 9:\n",
        why="the slot before counts, and what was promised since is cut",
        checks=("tests/store/test_newer_formats.py",),
    ),
)
