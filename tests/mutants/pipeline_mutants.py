"""Bugs in backups and queries: two uses of one table, gaps, what others put into a store."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_QUERY = "tests/pipeline/test_query.py"
_GAPS = "tests/pipeline/test_gaps.py"
_EXPIRY = "tests/pipeline/test_expiry.py"
_CATALOG = "tests/pipeline/test_catalog.py"
_SIGNATURES = "tests/pipeline/test_signatures.py"

PIPELINE_MUTANTS = (
    Mutant(
        name="each statement reads its tables once",
        package="pipeline",
        file="jobs/query.py",
        old="    if not reads_once(found):\n",
        new="    if reads_once(found) is None:\n",
        why="both branches of a UNION get the rows of the one that Spark planned last",
        checks=(_QUERY,),
    ),
    Mutant(
        name="a table that is read twice is read once",
        package="pipeline",
        file="jobs/query.py",
        old="all(count == 1 for count in counted)",
        new="all(count >= 1 for count in counted)",
        why="a table that is joined with itself gets the conditions of one side on both",
        checks=(_QUERY,),
    ),
    Mutant(
        name="what a subquery reads is not counted",
        package="pipeline",
        file="jobs/query.py",
        old="    if not plan.subqueriesAll().isEmpty():\n",
        new="    if plan.subqueriesAll() is None:\n",
        why="a subquery's conditions narrow the table that the statement itself reads",
        checks=(_QUERY,),
    ),
    Mutant(
        name="a gap ends what is shown",
        package="pipeline",
        file="archive/planning.py",
        old="        if row.places is not None or row.first_index >= newest_first\n",
        new="        if row.first_index >= newest_first\n",
        why="one broken week of backups makes all messages before it vanish from every question",
        checks=(_GAPS,),
    ),
    Mutant(
        name="what is hidden for its topics is not told",
        package="pipeline",
        file="archive/planning.py",
        old="        return stretches(older)\n",
        new="        return []\n",
        why="messages before a gap are left out without a word",
        checks=(_GAPS,),
    ),
    Mutant(
        name="a gap is compacted over",
        package="pipeline",
        file="jobs/compact.py",
        old="    if manifest.gaps() and not request.allow_gaps:\n",
        new="    if not manifest.gaps() and not request:\n",
        why="keys whose newest message is in the gap get an older one, and nobody is asked",
        checks=(_GAPS,),
    ),
    Mutant(
        name="whatever is listed is ours",
        package="pipeline",
        file="object_store/store.py",
        old="            if _NAME.fullmatch(listed.name):\n",
        new="            if listed.name:\n",
        why="a copy that someone made by hand stops gc and repair for ever",
        checks=(_EXPIRY,),
    ),
    Mutant(
        name="a newer format is damage",
        package="pipeline",
        file="archive/hashed_json.py",
        old="    if type(version) is int and version > FORMAT_VERSION:\n",
        new="    if type(version) is str:\n",
        why="after a roll-back of the image the newest backup is called corrupt",
        checks=(_CATALOG,),
    ),
    Mutant(
        name="repair publishes over a newer version's backup",
        package="pipeline",
        file="archive/repair.py",
        old="        except NewerBackup:\n            raise\n",
        new="",
        why="what the newer version knows beside the objects is lost",
        checks=(_CATALOG,),
    ),
    Mutant(
        name="a repaired backup is as old as its last entry",
        package="pipeline",
        file="archive/repair.py",
        old="    return max(made.last_timestamp_ms, known.as_of_ms)\n",
        new="    return made.last_timestamp_ms\n",
        why="a time that could be restored before is refused",
        checks=(_EXPIRY,),
    ),
    Mutant(
        name="what is there was written by another",
        package="pipeline",
        file="archive/catalog.py",
        old="        if not _is_there(store, name, data):  # else",
        new="        if name:  # else",
        why="a lost answer makes a backup begin again, and publish one manifest more each time",
        checks=(_CATALOG,),
    ),
    Mutant(
        name="a compaction is made once",
        package="pipeline",
        file="archive/compacted.py",
        old="                store.replace(name, data, _version(store, name))\n",
        new="                _version(store, name)\n",
        why="once there is a key it can neither be read nor made again",
        checks=(_SIGNATURES,),
    ),
    Mutant(
        name="a kept compaction's objects are nobody's",
        package="pipeline",
        file="archive/compacted_expiry.py",
        old="        and each.name not in names\n",
        new="",
        why="gc deletes what the newest compaction names",
        checks=(_EXPIRY,),
    ),
    Mutant(
        name="only the last name's compactions are compared",
        package="pipeline",
        file="archive/compacted_expiry.py",
        old="            if max(older.modified_s, newer.modified_s) < before_s:\n",
        new="            if min(older.modified_s, newer.modified_s) < before_s:\n",
        why="a compaction that was replaced just now goes while somebody reads it",
        checks=(_EXPIRY,),
    ),
)
