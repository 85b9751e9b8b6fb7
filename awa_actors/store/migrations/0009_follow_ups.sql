-- Follow-ups that could not be enqueued with their outcome: visible, and kept until somebody replays or forgets them.
-- `event` is what the spec was given, so that a replay evaluates it again.
CREATE TABLE awa.follow_up_failures (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id    bigint NOT NULL,
    kind      text NOT NULL,
    outcome   text NOT NULL,
    spec      text NOT NULL,
    error     text NOT NULL,
    event     jsonb NOT NULL,
    failed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- An attempt completed in its handler's own transaction; other languages' clients need it too, so it is a function.
-- Raises when the attempt is stale, so that the business writes of that transaction abort with it.
CREATE FUNCTION awa.complete_attempt(p_job bigint, p_run_lease bigint, p_instance uuid, p_metadata jsonb DEFAULT NULL)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    IF p_metadata IS NOT NULL THEN
        PERFORM awa_queue.note_body(p_job, p_run_lease, p_instance, p_metadata);
    END IF;
    IF (SELECT c.completed FROM awa_queue.complete(ARRAY[p_job], ARRAY[p_run_lease], ARRAY[0]::smallint[], p_instance) c) IS NULL THEN
        RAISE EXCEPTION 'job % is no longer run by this attempt: roll back', p_job USING ERRCODE = 'AWA04';
    END IF;
END $$;

-- What became of an attempt whose end the worker is not sure of: `completed` (and when), `live`, or `stale`.
-- The lease is looked for first and locked: a transaction that is just committing its completion is waited for, and the
-- second statement then sees what it did. The other way round an attempt could complete between the two looks.
CREATE FUNCTION awa.attempt_state(p_job bigint, p_run_lease bigint, p_instance uuid, OUT state text, OUT at timestamptz) LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off AS $$
BEGIN
    IF (awa_queue.lock_lease(p_job, p_run_lease, p_instance)).job_id IS NOT NULL THEN
        state := 'live';
        RETURN;
    END IF;
    SELECT e.finalized_at INTO at FROM (
        SELECT d.finalized_at FROM awa_queue.done d WHERE d.job_id = p_job AND d.run_lease = p_run_lease
        UNION ALL SELECT h.finalized_at FROM awa.jobs_hot h
                  WHERE h.job_id = p_job AND h.run_lease = p_run_lease AND h.state = 'completed') e;
    state := CASE WHEN FOUND THEN 'completed' ELSE 'stale' END;
END $$;
