"""Guards taken out of the source, one at a time, in a copy: each must be noticed. ``python -m model.mutants [WORD]``.

The list is data: what is removed, where, and what notices. Before anything is removed the copy must pass.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

REPOSITORY = Path(__file__).parents[1]
COPIED = ("awa_actors", "model", "tests", "pyproject.toml")

REFINEMENT = "model/test_refinement.py"
ELECTIONS = "model/test_leadership_refinement.py"
TABLE = "model/test_outcome_table.py"
RULES = "model/test_rules.py"
REPLAY = "model/test_replay.py"


@attrs.frozen
class Mutant:
    """A guard that is removed.

    Args:
        sentence: what does not hold any more.
        file: inside awa_actors.
        old, new: the text and its replacement, wherever it occurs.
        caught_by: the tests that must fail.
    """

    sentence: str
    file: str
    old: str
    new: str
    caught_by: str


CLAIM = "store/migrations/0004_claim_and_complete.sql"
SETTLE = "store/migrations/0005_settle.sql"
MOVES = "store/migrations/0006_promote_and_rescue.sql"
HYGIENE = "store/migrations/0007_hygiene.sql"
ADMIN = "store/migrations/0008_admin.sql"

MUTANTS = (
    Mutant("a completion names its instance", CLAIM, "l.run_lease = i.run_lease AND l.instance = p_instance", "l.run_lease = i.run_lease", REFINEMENT),
    Mutant("a completion names its run_lease", CLAIM, "l.job_id = i.job_id AND l.run_lease = i.run_lease", "l.job_id = i.job_id", REFINEMENT),
    Mutant("a completion looks again for what was carried", CLAIM, "WHILE coalesce(cardinality(completed), 0) < cardinality(p_jobs) LOOP", "WHILE false LOOP", REFINEMENT),
    Mutant("and again, while a look sees it", CLAIM, "EXIT WHEN NOT EXISTS (\n            SELECT FROM unnest", "EXIT WHEN true OR NOT EXISTS (\n            SELECT FROM unnest", RULES),
    Mutant("a claim skips what others have locked", CLAIM, "LIMIT p_n FOR UPDATE SKIP LOCKED", "LIMIT p_n FOR UPDATE", REFINEMENT),
    Mutant("a claim moves run_lease on", CLAIM, "d.job_id, d.run_lease + 1, p_instance", "d.job_id, d.run_lease, p_instance", REFINEMENT),
    Mutant("a claim takes from its hint on, in order", CLAIM, "ORDER BY r.pos LIMIT p_n", "ORDER BY r.pos DESC LIMIT p_n", REFINEMENT),
    Mutant("claims look at every shard that has rows", CLAIM, "SELECT q.lanes,", "SELECT q.shards,", RULES),
    Mutant("a claim that raises isolates its row", CLAIM, "WHEN data_exception OR integrity_constraint_violation OR SQLSTATE 'AWA01' THEN", "WHEN division_by_zero THEN", RULES),
    Mutant("an end locks its lease", SETTLE, "AND x.instance = p_instance FOR UPDATE;", "AND x.instance = p_instance;", RULES),
    Mutant("an end names its instance", SETTLE, "x.run_lease = p_run_lease AND x.instance = p_instance", "x.run_lease = p_run_lease", REFINEMENT),
    Mutant("an end names its run_lease", SETTLE, "WHERE x.job_id = p_job AND x.run_lease = p_run_lease AND", "WHERE x.job_id = p_job AND", REFINEMENT),
    Mutant("what was never started is not counted", SETTLE, "greatest(l.attempt - 1, 0), coalesce(b.pos, b.job_id)", "l.attempt, coalesce(b.pos, b.job_id)", REFINEMENT),
    Mutant("a job that needs a taken key ends as a duplicate", SETTLE, "IF v_wants AND NOT v_had AND awa_queue.take_claim", "IF false AND awa_queue.take_claim", RULES),
    Mutant("promotion skips what others have locked", MOVES, "ORDER BY x.run_at, x.job_id LIMIT p_rows FOR UPDATE SKIP LOCKED", "ORDER BY x.run_at, x.job_id LIMIT p_rows FOR UPDATE", REFINEMENT),
    Mutant("only the dead lose their jobs", MOVES, "i.id = x.instance AND i.dead_at IS NULL)", "i.id = x.instance AND false)", REFINEMENT),
    Mutant("a rescue is not counted as an attempt", MOVES, "j.attempt := greatest(j.attempt - 1, 0);", "", REFINEMENT),
    Mutant("rescues have a bound", MOVES, "coalesce((w.job).rescues, 0) < p_bound", "true", REFINEMENT),
    Mutant("a rescued job that needs its key goes one by one", MOVES, "= get_bit((w.job).unique_states, 4))", "= get_bit((w.job).unique_states, 4) OR true)", RULES),
    Mutant("carrying skips what others have locked", HYGIENE, "WHERE l.lslot = p_slot LIMIT p_rows FOR UPDATE SKIP LOCKED", "WHERE l.lslot = p_slot LIMIT p_rows FOR UPDATE", REFINEMENT),
    Mutant("a carried body is re-addressed", HYGIENE, "UPDATE awa_queue.ready r SET slot = v_slot", "UPDATE awa_queue.ready r SET slot = r.slot", REFINEMENT),
    Mutant("truncation counts leases", HYGIENE, "WHEN EXISTS (SELECT FROM awa_queue.leases l WHERE l.slot = p_slot)", "WHEN false", REFINEMENT),
    Mutant("truncation counts ready rows", HYGIENE, "OR EXISTS (SELECT FROM awa_queue.ready r WHERE r.slot = p_slot)", "", REFINEMENT),
    Mutant("truncation never waits", HYGIENE, "IN ACCESS EXCLUSIVE MODE NOWAIT", "IN ACCESS EXCLUSIVE MODE", REFINEMENT),
    Mutant("the unique keys of history go with it", HYGIENE, "PERFORM awa_queue.release_history_claims(p_slot, p_retention);", "NULL;", RULES),
    Mutant("a retry keeps run_lease", ADMIN, "    j.attempt := 0;\n", "    j.attempt := 0; j.run_lease := 0;\n", REFINEMENT),
    Mutant("a retry looks once more at what has ended", ADMIN, "FOR i IN 1..2 LOOP\n        DELETE FROM awa_queue.terminal", "FOR i IN 1..1 LOOP\n        DELETE FROM awa_queue.terminal", RULES),
    Mutant("a cancelled job is taken out of where it is", ADMIN, "DELETE FROM awa_queue.deferred_jobs d WHERE d.job_id = p_job RETURNING d.* INTO job", "SELECT d.* FROM awa_queue.deferred_jobs d WHERE d.job_id = p_job INTO job", REFINEMENT),
    Mutant("a failure without budget is final", "core/outcome.py", "if ending.attempt >= ending.max_attempts:", "if ending.attempt > ending.max_attempts:", TABLE),
    Mutant("who took the attempt has recorded its end", "core/outcome.py", "case Cause.CANCEL | Cause.LOST_LEASE:", "case Cause.LOST_LEASE:", TABLE),
    Mutant("an interruption is not counted", "core/outcome.py", '"uncount": True, "interrupted": True', '"interrupted": True', TABLE),
    Mutant("any leaf of a group can forbid a retry", "core/outcome.py", "return any(_is_terminal(leaf)", "return all(_is_terminal(leaf)", TABLE),
    Mutant("a receipt is not taken for granted", "core/outcome.py", "if ending.caller_owned:", "if False:", TABLE),
    Mutant("delays are finite", "core/backoff.py", "if not 0 <= seconds < math.inf:", "if seconds < 0:", TABLE),
    Mutant("only a free lease is taken", "store/leadership.py", "WHERE l.holder IS NULL OR l.expires_at < clock_timestamp()", "WHERE true", ELECTIONS),
    Mutant("a renewal names its term", "store/leadership.py", "AND term = $3 AND expires_at > clock_timestamp()", "AND expires_at > clock_timestamp()", ELECTIONS),
    Mutant("an expired lease is not renewed", "store/leadership.py", "AND term = $3 AND expires_at > clock_timestamp()", "AND term = $3", ELECTIONS),
    Mutant("a resignation names its term", "store/leadership.py", "AND holder = $2 AND term = $3 RETURNING pg_catalog.pg_notify", "AND holder = $2 RETURNING pg_catalog.pg_notify", ELECTIONS),
)  # fmt: skip


@contextmanager
def copied() -> Iterator[Path]:
    """A copy of the package and of what tests it."""
    with tempfile.TemporaryDirectory(prefix="awa-mutants-") as directory:
        here = Path(directory)
        here.chmod(0o755)
        for name in COPIED:
            source, target = REPOSITORY / name, here / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
        yield here


def passes(here: Path, tests: str) -> tuple[bool, str]:
    """Whether tests of a copy pass, and what they said."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "", *tests.split()]
    # With more walks than usual, since the first that differs is enough.
    environment = {**os.environ, "AWA_MODEL_PROFILE": "ci", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"pytest could not run {tests}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.returncode == 0, done.stdout


def survives(here: Path, mutant: Mutant) -> bool:
    """Remove a guard, run what must notice, and put it back."""
    path = here / "awa_actors" / mutant.file
    original = path.read_text()
    if mutant.old not in original:
        raise SystemExit(f"{mutant.file} has changed: {mutant.sentence!r} is not written as {mutant.old!r} any more")
    path.write_text(original.replace(mutant.old, mutant.new))
    try:
        return passes(here, mutant.caught_by)[0]
    finally:
        path.write_text(original)


def main() -> None:
    """Run every mutant whose sentence or file has WORD in it; the exit status is 1 when one survives."""
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    mutants = [mutant for mutant in MUTANTS if word in mutant.sentence or word in mutant.file or word in mutant.caught_by]
    survivors = []
    with copied() as here:
        for tests in sorted({mutant.caught_by for mutant in mutants}):
            fine, said = passes(here, tests)
            if not fine:
                raise SystemExit(f"{tests} fails although nothing was removed:\n{said[-3000:]}")
        for mutant in mutants:
            began = time.perf_counter()
            alive = survives(here, mutant)
            survivors += [mutant] * alive
            verdict = "SURVIVES" if alive else "caught"
            print(f"{verdict:8} {time.perf_counter() - began:5.0f} s  {mutant.sentence}  [{mutant.file}, {mutant.caught_by}]", flush=True)
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} caught")
    raise SystemExit(bool(survivors))


if __name__ == "__main__":
    main()
