-- Follow-ups that could not be enqueued with their outcome: visible, and kept until somebody replays or forgets them.
CREATE TABLE awa.follow_up_failures (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id    bigint NOT NULL,
    kind      text NOT NULL,
    outcome   text NOT NULL,
    spec      text NOT NULL,
    error     text NOT NULL,
    failed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Kinds whose rescues must not lose their follow-ups: declared here, so that a leader without any registry writes the rows too.
CREATE TABLE awa.outbox_kinds (
    kind        text PRIMARY KEY,
    declared_by text NOT NULL,
    declared_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- One row per rescue of such a kind, written by the rescue's own transaction, without any user code.
CREATE TABLE awa.rescue_outbox (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind       text NOT NULL,
    job        jsonb NOT NULL,
    reason     text NOT NULL,
    specs_done text[] NOT NULL DEFAULT '{}',
    failures   integer NOT NULL DEFAULT 0,
    error      text,
    next_try   timestamptz NOT NULL DEFAULT clock_timestamp(),
    parked     boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX rescue_outbox_next ON awa.rescue_outbox (next_try) WHERE NOT parked;

-- An attempt completed in its handler's own transaction; several databases clients may not be ours, so it is a function.
-- Raises when the attempt is stale, so that the business writes of that transaction abort with it.
CREATE FUNCTION awa.complete_attempt(p_job bigint, p_run_lease bigint, p_instance uuid) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
BEGIN
    IF (SELECT c.completed FROM awa_queue.complete(ARRAY[p_job], ARRAY[p_run_lease], ARRAY[0]::smallint[], p_instance) c) IS NULL THEN
        RAISE EXCEPTION 'job % is no longer run by this attempt: roll back', p_job USING ERRCODE = 'AWA04';
    END IF;
END $$;

-- What became of an attempt whose end the worker is not sure of (an ambiguous commit, a receipt of a rolled-back transaction).
CREATE FUNCTION awa.attempt_state(p_job bigint, p_run_lease bigint, p_instance uuid) RETURNS text LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off AS $$
BEGIN
    IF EXISTS (SELECT FROM awa_queue.done d WHERE d.job_id = p_job AND d.run_lease = p_run_lease) THEN
        RETURN 'completed';
    ELSIF EXISTS (SELECT FROM awa_queue.leases l WHERE l.job_id = p_job AND l.run_lease = p_run_lease AND l.instance = p_instance) THEN
        RETURN 'live';
    END IF;
    RETURN 'stale';
END $$;
