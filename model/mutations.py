"""Guards of the source, and what must notice when they are removed: the data of ``model.mutants``."""

from __future__ import annotations

import attrs

REFINEMENT = "model/test_refinement.py"
ELECTIONS = "model/test_leadership_refinement.py"
TABLE = "model/test_outcome_table.py"
RULES = "model/test_rules.py"
REPLAY = "model/test_real_runs.py"
CLAIMS = "tests/store/test_claim.py"


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
    Mutant(
        "a completion names its instance",
        CLAIM,
        "AND l.run_lease = p_leases[array_position(p_jobs, l.job_id)] AND l.instance = p_instance",
        "AND l.run_lease = p_leases[array_position(p_jobs, l.job_id)]",
        REFINEMENT,
    ),
    Mutant(
        "a completion names its run_lease",
        CLAIM,
        "l.run_lease = p_leases[array_position(p_jobs, l.job_id)] AND ",
        "",
        REFINEMENT,
    ),
    Mutant(
        "a completion looks again for what was carried",
        CLAIM,
        "WHILE coalesce(cardinality(completed), 0) < cardinality(p_jobs) LOOP",
        "WHILE false LOOP",
        REFINEMENT,
    ),
    Mutant(
        "and again, while a look sees it",
        CLAIM,
        "EXIT WHEN NOT EXISTS (\n            SELECT FROM unnest",
        "EXIT WHEN true OR NOT EXISTS (\n            SELECT FROM unnest",
        RULES,
    ),
    Mutant(
        "a claim skips what others have locked",
        CLAIM,
        "LIMIT p_n FOR UPDATE SKIP LOCKED",
        "LIMIT p_n FOR UPDATE",
        REFINEMENT,
    ),
    Mutant(
        "and a lone job that others have locked",
        CLAIM,
        "c.ctid = p_at FOR UPDATE SKIP LOCKED",
        "c.ctid = p_at FOR UPDATE",
        f"{CLAIMS}::test_a_claim_of_one_passes_over_a_job_that_another_session_holds",
    ),
    Mutant(
        "a claim moves run_lease on",
        CLAIM,
        "d.job_id, d.run_lease + 1, p_instance",
        "d.job_id, d.run_lease, p_instance",
        REFINEMENT,
    ),
    Mutant("that of a lone job, too", CLAIM, "p_run_lease + 1, p_instance", "p_run_lease, p_instance", REFINEMENT),
    Mutant(
        "a claim takes from its hint on, in order",
        CLAIM,
        "ORDER BY r.pos LIMIT",
        "ORDER BY r.pos DESC LIMIT",
        REFINEMENT,
    ),
    Mutant(
        "the dead claim nothing",
        CLAIM,
        "i.id = p_instance AND i.dead_at IS NOT NULL",
        "i.id = p_instance AND false",
        RULES,
    ),
    Mutant("claims look at every shard that has rows", CLAIM, "coalesce(q.lanes, 1),", "coalesce(q.shards, 1),", RULES),
    Mutant(
        "a claim that raises isolates its row",
        CLAIM,
        "IF NOT awa_queue.is_row_fault(v_state) THEN\n                    RAISE;",
        "IF true THEN\n                    RAISE;",
        RULES,
    ),
    Mutant(
        "an end locks its lease",
        SETTLE,
        "AND x.instance = p_instance FOR UPDATE;",
        "AND x.instance = p_instance;",
        REFINEMENT,
    ),
    Mutant(
        "an end names its instance",
        SETTLE,
        "x.run_lease = p_run_lease AND x.instance = p_instance",
        "x.run_lease = p_run_lease",
        REFINEMENT,
    ),
    Mutant(
        "an end names its run_lease",
        SETTLE,
        "WHERE x.job_id = p_job AND x.run_lease = p_run_lease AND",
        "WHERE x.job_id = p_job AND",
        REFINEMENT,
    ),
    Mutant(
        "what was never started is not counted",
        SETTLE,
        "j.attempt := greatest(j.attempt - 1, 0);\n    j.attempted_at := NULL;",
        "j.attempted_at := NULL;",
        REFINEMENT,
    ),
    Mutant(
        "a job that needs a taken key ends as a duplicate",
        SETTLE,
        "IF v_wants AND NOT v_had THEN",
        "IF false THEN",
        RULES,
    ),
    Mutant(
        "promotion skips what others have locked",
        MOVES,
        "ORDER BY x.run_at, x.job_id LIMIT p_rows FOR UPDATE SKIP LOCKED",
        "ORDER BY x.run_at, x.job_id LIMIT p_rows FOR UPDATE",
        REFINEMENT,
    ),
    Mutant(
        "only the dead lose their jobs",
        MOVES,
        "i.id = x.instance AND i.dead_at IS NULL)",
        "i.id = x.instance AND false)",
        REFINEMENT,
    ),
    Mutant("a rescue is not counted as an attempt", MOVES, "j.attempt := greatest(j.attempt - 1, 0);", "", REFINEMENT),
    Mutant("rescues have a bound", MOVES, "coalesce((w.job).rescues, 0) < p_bound", "true", REFINEMENT),
    Mutant(
        "a rescued job that needs its key goes one by one",
        MOVES,
        "= get_bit((w.job).unique_states, 4))",
        "= get_bit((w.job).unique_states, 4) OR true)",
        RULES,
    ),
    Mutant(
        "carrying skips what others have locked",
        HYGIENE,
        "WHERE l.lslot = p_slot LIMIT p_rows FOR UPDATE SKIP LOCKED",
        "WHERE l.lslot = p_slot LIMIT p_rows FOR UPDATE",
        REFINEMENT,
    ),
    Mutant(
        "a body is copied before anything points at the copy",
        HYGIENE,
        "FROM awa_queue.bodies b WHERE b.slot = p_slot AND b.job_id = ANY (v_jobs",
        "FROM awa_queue.bodies b WHERE b.slot = -1 AND b.job_id = ANY (v_jobs",
        REFINEMENT,
    ),
    Mutant(
        "truncation counts leases",
        HYGIENE,
        "WHEN EXISTS (SELECT FROM awa_queue.leases l WHERE l.slot = p_slot)",
        "WHEN false",
        REFINEMENT,
    ),
    Mutant(
        "truncation counts ready rows",
        HYGIENE,
        "OR EXISTS (SELECT FROM awa_queue.ready r WHERE r.slot = p_slot)",
        "",
        REFINEMENT,
    ),
    Mutant(
        "truncation never waits", HYGIENE, "IN ACCESS EXCLUSIVE MODE NOWAIT", "IN ACCESS EXCLUSIVE MODE", REFINEMENT
    ),
    Mutant(
        "the unique keys of history go with it",
        HYGIENE,
        "PERFORM awa_queue.release_history_claims(p_slot, p_retention);",
        "NULL;",
        RULES,
    ),
    Mutant(
        "a retry keeps run_lease", ADMIN, "    j.attempt := 0;\n", "    j.attempt := 0; j.run_lease := 0;\n", REFINEMENT
    ),
    Mutant(
        "a retry keeps run_lease, as the log of a run shows it",
        ADMIN,
        "    j.attempt := 0;\n",
        "    j.attempt := 0; j.run_lease := 0;\n",
        REPLAY,
    ),
    Mutant(
        "a snooze is no completion, as the log of a run shows it",
        SETTLE,
        "    j.state := (o ->> 'state')::awa.job_state;",
        "    j.state := CASE WHEN o ? 'snooze' THEN 'retryable' ELSE o ->> 'state' END::awa.job_state;",
        REPLAY,
    ),
    Mutant(
        "a retry looks once more at what has ended",
        ADMIN,
        "FOR i IN 1..2 LOOP\n        DELETE FROM awa_queue.terminal",
        "FOR i IN 1..1 LOOP\n        DELETE FROM awa_queue.terminal",
        RULES,
    ),
    Mutant(
        "a cancelled job is taken out of where it is",
        ADMIN,
        "DELETE FROM awa_queue.deferred_jobs d WHERE d.job_id = p_job RETURNING d.* INTO job",
        "SELECT d.* FROM awa_queue.deferred_jobs d WHERE d.job_id = p_job INTO job",
        REFINEMENT,
    ),
    Mutant(
        "a failure without budget is final",
        "core/outcome.py",
        "if ending.attempt >= ending.max_attempts:",
        "if ending.attempt > ending.max_attempts:",
        TABLE,
    ),
    Mutant(
        "who took the attempt has recorded its end",
        "core/outcome.py",
        "case Cause.CANCEL | Cause.LOST_LEASE:",
        "case Cause.LOST_LEASE:",
        TABLE,
    ),
    Mutant(
        "an interruption is not counted",
        "core/outcome.py",
        '"uncount": True, "interrupted": True',
        '"interrupted": True',
        TABLE,
    ),
    Mutant(
        "any leaf of a group can forbid a retry",
        "core/outcome.py",
        "return any(_is_terminal(leaf)",
        "return all(_is_terminal(leaf)",
        TABLE,
    ),
    Mutant("a receipt is not taken for granted", "core/outcome.py", "if ending.caller_owned:", "if False:", TABLE),
    Mutant("delays are finite", "core/backoff.py", "if not 0 <= seconds < math.inf:", "if seconds < 0:", TABLE),
    Mutant(
        "only a free lease is taken",
        "store/leadership.py",
        "WHERE l.holder IS NULL OR l.expires_at < clock_timestamp()",
        "WHERE true",
        ELECTIONS,
    ),
    Mutant(
        "a renewal names its term",
        "store/leadership.py",
        "AND term = $3 AND expires_at > clock_timestamp()",
        "AND expires_at > clock_timestamp()",
        ELECTIONS,
    ),
    Mutant(
        "an expired lease is not renewed",
        "store/leadership.py",
        "AND term = $3 AND expires_at > clock_timestamp()",
        "AND term = $3",
        ELECTIONS,
    ),
    Mutant(
        "a resignation names its term",
        "store/leadership.py",
        "AND holder = $2 AND term = $3 RETURNING pg_catalog.pg_notify",
        "AND holder = $2 RETURNING pg_catalog.pg_notify",
        ELECTIONS,
    ),
)
