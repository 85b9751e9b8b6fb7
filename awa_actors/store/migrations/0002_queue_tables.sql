-- The queue plane: bodies are written once per availability; what churns is narrow and leaves by TRUNCATE.
-- Autovacuum is off on ring partitions: it would hold the lock that truncation needs, and TRUNCATE resets what it cares for.

CREATE SCHEMA awa_queue;

-- A whole job: the shape of every plain table, and what moves between them inside the functions.
CREATE TABLE awa_queue.deferred_jobs (
    job_id        bigint PRIMARY KEY,
    kind          text NOT NULL CHECK (length(kind) BETWEEN 1 AND 200),
    queue         text NOT NULL CHECK (octet_length(queue) BETWEEN 1 AND 200),
    state         awa.job_state NOT NULL,
    args          jsonb NOT NULL,
    priority      smallint NOT NULL CHECK (priority BETWEEN 1 AND 4),
    attempt       smallint NOT NULL DEFAULT 0,
    run_lease     bigint NOT NULL DEFAULT 0,
    max_attempts  smallint NOT NULL CHECK (max_attempts BETWEEN 1 AND 1000),
    shard         smallint NOT NULL DEFAULT 0,
    run_at        timestamptz NOT NULL,
    created_at    timestamptz NOT NULL,
    attempted_at  timestamptz,
    finalized_at  timestamptz,
    deadline_ms   bigint CHECK (deadline_ms > 0),
    metadata      jsonb,
    tags          text[] CHECK (cardinality(tags) <= 20),
    errors        jsonb,
    progress      jsonb,
    result        jsonb,
    unique_key    bytea CHECK (octet_length(unique_key) BETWEEN 1 AND 200),
    unique_states bit(8),
    snoozes       integer,
    rescues       integer,
    interrupted   integer,
    instance      uuid,
    past          jsonb   -- attempts that ended without an error and were not counted, see awa_queue.with_past
);
CREATE TABLE awa_queue.terminal (LIKE awa_queue.deferred_jobs INCLUDING ALL);
CREATE TABLE awa_queue.dlq_entries (LIKE awa_queue.deferred_jobs INCLUDING ALL);
ALTER TABLE awa_queue.dlq_entries
    ADD COLUMN dlq_reason text NOT NULL, ADD COLUMN dlq_at timestamptz NOT NULL DEFAULT clock_timestamp();

-- Deferred rows of any age are found by their due time alone: one index, no predicate that a generic plan could miss.
CREATE INDEX deferred_jobs_due ON awa_queue.deferred_jobs (run_at, job_id);
CREATE INDEX deferred_jobs_queue ON awa_queue.deferred_jobs (queue, state);
CREATE INDEX terminal_age ON awa_queue.terminal (queue, finalized_at);
CREATE INDEX dlq_entries_age ON awa_queue.dlq_entries (queue, dlq_at);

-- Everything about a job that does not change while it is available or runs. NULL stands for the common value
-- (run_at = created_at, pos = job_id, counters 0), which keeps the usual row narrow. What the plain tables would refuse must not get
-- here either: a job that could be inserted but not recorded as failed would never leave its worker. The functions that insert see to
-- that (0003); constraints would be read and planned anew by every statement, a third of what a lone insert costs.
CREATE TABLE awa_queue.bodies (
    slot          smallint NOT NULL,
    priority      smallint NOT NULL,
    max_attempts  smallint NOT NULL,
    shard         smallint NOT NULL,
    job_id        bigint NOT NULL,
    created_at    timestamptz NOT NULL,
    kind          text NOT NULL,
    queue         text NOT NULL,
    args          jsonb NOT NULL,
    pos           bigint,
    run_at        timestamptz,
    deadline_ms   bigint,
    metadata      jsonb,
    tags          text[],
    errors        jsonb,
    progress      jsonb,
    unique_key    bytea,
    unique_states bit(8),
    snoozes       integer,
    rescues       integer,
    interrupted   integer,
    past          jsonb
) PARTITION BY LIST (slot);

CREATE TABLE awa_queue.ready (
    rslot     smallint NOT NULL,
    priority  smallint NOT NULL,
    shard     smallint NOT NULL,
    slot      smallint NOT NULL,
    attempt   smallint NOT NULL,
    pos       bigint NOT NULL,
    job_id    bigint NOT NULL,
    run_lease bigint NOT NULL,
    ready_at  timestamptz NOT NULL,
    queue     text NOT NULL
) PARTITION BY LIST (rslot);

-- Ready rows of paused queues wait here, so that they do not keep a ring slot from emptying.
CREATE TABLE awa_queue.parked_ready (LIKE awa_queue.ready);
ALTER TABLE awa_queue.parked_ready ADD PRIMARY KEY (queue, priority, shard, pos);

CREATE TABLE awa_queue.leases (
    lslot       smallint NOT NULL,
    slot        smallint NOT NULL,
    attempt     smallint NOT NULL,
    frees_claim boolean NOT NULL,   -- the unique key changes hands when it completes
    job_id      bigint NOT NULL,
    run_lease   bigint NOT NULL,
    instance    uuid NOT NULL,
    claimed_at  timestamptz NOT NULL,
    state       awa.job_state NOT NULL DEFAULT 'running',
    deadline_at timestamptz,
    progress    jsonb,
    metadata    jsonb
) PARTITION BY LIST (lslot);

-- The narrow fact that a job completed; the rest is read from its body while the segment lives. The instance's number lies where
-- alignment would leave a gap.
CREATE TABLE awa_queue.done (
    slot            smallint NOT NULL,
    attempt         smallint NOT NULL,
    instance_number integer,
    job_id          bigint NOT NULL,
    run_lease       bigint NOT NULL,
    claimed_at      timestamptz,
    finalized_at    timestamptz NOT NULL,
    result          jsonb
) PARTITION BY LIST (slot);

DO $$
BEGIN
    FOR i IN 0..7 LOOP
        EXECUTE format('CREATE TABLE awa_queue.bodies_%s PARTITION OF awa_queue.bodies FOR VALUES IN (%s) WITH (autovacuum_enabled = off)', i, i);
        EXECUTE format('CREATE UNIQUE INDEX bodies_%s_job ON awa_queue.bodies_%s (job_id)', i, i);
        EXECUTE format('CREATE TABLE awa_queue.done_%s PARTITION OF awa_queue.done FOR VALUES IN (%s) WITH (autovacuum_enabled = off)', i, i);
        EXECUTE format('CREATE INDEX done_%s_job ON awa_queue.done_%s (job_id)', i, i);
        EXECUTE format('CREATE TABLE awa_queue.ready_%s PARTITION OF awa_queue.ready FOR VALUES IN (%s) WITH (autovacuum_enabled = off)', i, i);
        EXECUTE format('CREATE INDEX ready_%s_lane ON awa_queue.ready_%s (queue, priority, shard, pos)', i, i);
    END LOOP;
    FOR i IN 0..3 LOOP
        EXECUTE format('CREATE TABLE awa_queue.leases_%s PARTITION OF awa_queue.leases FOR VALUES IN (%s) WITH (autovacuum_enabled = off)', i, i);
        EXECUTE format('CREATE UNIQUE INDEX leases_%s_job ON awa_queue.leases_%s (job_id)', i, i);
    END LOOP;
END $$;

-- Which slot of each ring is current: append-only, the newest row counts, the append is the compare-and-swap.
CREATE TABLE awa_queue.ring_turns (
    ring       text NOT NULL CHECK (ring IN ('segments', 'ready', 'leases')),
    generation bigint NOT NULL,
    slot       smallint NOT NULL,
    turned_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (ring, generation)
);
INSERT INTO awa_queue.ring_turns (ring, generation, slot) VALUES ('segments', 0, 0), ('ready', 0, 0), ('leases', 0, 0);

-- When a slot was first found empty under its lock. It is truncated at a later look: a dump takes its snapshot first and its locks
-- after that, and would miss what was still there in between.
CREATE TABLE awa_queue.emptied_slots (
    ring     text NOT NULL,
    slot     smallint NOT NULL,
    found_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (ring, slot)
);

-- STRICT and STABLE would let the planner fold it into a plan; it must be read afresh in every statement.
CREATE FUNCTION awa_queue.current_slot(p_ring text) RETURNS smallint LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog AS $$
DECLARE v_slot smallint;
BEGIN
    SELECT t.slot INTO v_slot FROM awa_queue.ring_turns t WHERE t.ring = p_ring ORDER BY t.generation DESC LIMIT 1;
    RETURN v_slot;
END $$;

-- The canonical plane: one row per job that is updated where it stands. It has no ring, no hints and no segments: installations
-- that began on it leave it online (0019), fresh ones never use it. What both planes share is here too: ids and positions come from
-- one sequence, unique keys and callbacks have one table, and failed, cancelled and dead jobs end in `terminal` and `dlq_entries`.
CREATE TABLE awa.jobs_hot (
    LIKE awa_queue.deferred_jobs INCLUDING DEFAULTS INCLUDING CONSTRAINTS,
    pos         bigint NOT NULL,
    ready_at    timestamptz NOT NULL,
    deadline_at timestamptz,
    PRIMARY KEY (job_id),
    CHECK (state IN ('available', 'running', 'waiting_external', 'completed'))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX jobs_hot_lane ON awa.jobs_hot (queue, priority, pos) WHERE state = 'available';
CREATE INDEX jobs_hot_pos ON awa.jobs_hot (pos) WHERE state = 'available';
CREATE INDEX jobs_hot_running ON awa.jobs_hot (instance) WHERE state = 'running';
CREATE INDEX jobs_hot_deadline ON awa.jobs_hot (deadline_at) WHERE state = 'running';
CREATE INDEX jobs_hot_waiting ON awa.jobs_hot (job_id) WHERE state = 'waiting_external';
CREATE INDEX jobs_hot_completed ON awa.jobs_hot (finalized_at) WHERE state = 'completed';
CREATE TABLE awa.scheduled_jobs (
    LIKE awa_queue.deferred_jobs INCLUDING ALL,
    CHECK (state IN ('scheduled', 'retryable'))
);

-- The columns of a canonical row that every verb knows, and its attempt as a lease whose address is no slot of the ring.
-- No SET clauses: they must be inlined.
CREATE FUNCTION awa.job_of(h awa.jobs_hot) RETURNS awa_queue.deferred_jobs LANGUAGE sql IMMUTABLE AS $$
    SELECT ROW(h.job_id, h.kind, h.queue, h.state, h.args, h.priority, h.attempt, h.run_lease, h.max_attempts, h.shard, h.run_at,
               h.created_at, h.attempted_at, h.finalized_at, h.deadline_ms, h.metadata, h.tags, h.errors, h.progress, h.result,
               h.unique_key, h.unique_states, h.snoozes, h.rescues, h.interrupted, h.instance, h.past)::awa_queue.deferred_jobs
$$;
CREATE FUNCTION awa.lease_of(h awa.jobs_hot) RETURNS awa_queue.leases LANGUAGE sql IMMUTABLE AS $$
    SELECT ROW(-1, -1, h.attempt, false, h.job_id, h.run_lease, h.instance, h.attempted_at, h.state, h.deadline_at, NULL,
               NULL)::awa_queue.leases
$$;
