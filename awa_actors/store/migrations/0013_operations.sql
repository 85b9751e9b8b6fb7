-- Dead letters, and what operators do to many jobs at once. Every bulk form isolates the row that cannot be moved.

-- Why a job is a dead letter is a closed list, so that alerts and filters can rely on it.
ALTER TABLE awa_queue.dlq_entries ADD CONSTRAINT dlq_reason_known CHECK (dlq_reason IN (
    'max_attempts_exhausted', 'terminal_error', 'callback_timeout', 'external_fail', 'rescue_bound',
    'wait_for_callback_contract_violation', 'manual'));
CREATE INDEX dlq_entries_newest ON awa_queue.dlq_entries (dlq_at, job_id);
CREATE INDEX dlq_entries_tags ON awa_queue.dlq_entries USING gin (tags);

-- Run a job again that has failed for good: the same id, attempts from 0, run_lease grows on. p_dead says where it must be.
-- Returns NULL when it is not there (any more). A unique key that a newer job holds is an error, and the row stays.
CREATE FUNCTION awa_queue.retry_ended(p_job bigint, p_dead boolean, p_queue text, p_priority smallint, p_run_at timestamptz)
RETURNS jsonb LANGUAGE plpgsql SET search_path = pg_catalog SET enable_seqscan = off AS $$
DECLARE
    v_dead   awa_queue.dlq_entries;
    j        awa_queue.deferred_jobs;
    v_to     awa.job_state := CASE WHEN p_run_at > clock_timestamp() THEN 'scheduled' ELSE 'available' END;
    v_holder bigint;
BEGIN
    IF p_dead THEN
        DELETE FROM awa_queue.dlq_entries d WHERE d.job_id = p_job RETURNING d.* INTO v_dead;
        SELECT * INTO j FROM jsonb_populate_record(NULL::awa_queue.deferred_jobs, to_jsonb(v_dead));
    ELSE
        DELETE FROM awa_queue.terminal t WHERE t.job_id = p_job AND t.state = 'failed' RETURNING t.* INTO j;
    END IF;
    IF j.job_id IS NULL THEN
        RETURN NULL;
    END IF;
    IF j.unique_key IS NOT NULL AND get_bit(j.unique_states, 5) = 0 AND get_bit(j.unique_states, awa.state_bit(v_to)) = 1 THEN
        v_holder := awa_queue.take_claim(j.unique_key, j.job_id);
        IF v_holder IS NOT NULL THEN
            RAISE EXCEPTION 'job % holds the unique key of job %', v_holder, p_job
                USING ERRCODE = 'unique_violation', CONSTRAINT = 'idx_awa_jobs_unique', DETAIL = v_holder::text;
        END IF;
    END IF;
    IF p_queue <> j.queue THEN
        j.queue := p_queue;
        j.shard := 0; -- the other queue may have fewer shards, and every queue has this one
    END IF;
    j.state := v_to;
    j.priority := coalesce(p_priority, j.priority);
    j.run_at := greatest(p_run_at, clock_timestamp());
    j.attempt := 0;
    j.rescues := NULL;
    j.finalized_at := NULL;
    RETURN to_jsonb(awa_queue.land(j, 'failed')) || '{"came_from": "failed"}';
END $$;

-- Many of them, each in its own subtransaction. What is refused stays and is told, with who holds its key.
CREATE FUNCTION awa_queue.retry_each(
    p_jobs bigint[], p_dead boolean, p_queue text, p_priority smallint, p_run_at timestamptz, OUT retried bigint[], OUT refused jsonb
) LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE v_job bigint; v_error text; v_detail text;
BEGIN
    retried := '{}';
    refused := '[]';
    FOREACH v_job IN ARRAY p_jobs LOOP
        BEGIN
            IF awa_queue.retry_ended(v_job, p_dead, p_queue, p_priority, p_run_at) IS NOT NULL THEN
                retried := retried || v_job;
            END IF;
        EXCEPTION WHEN data_exception OR integrity_constraint_violation OR program_limit_exceeded THEN
            GET STACKED DIAGNOSTICS v_error = MESSAGE_TEXT;
            refused := refused || jsonb_build_object('job_id', v_job, 'reason', v_error);
        END;
    END LOOP;
END $$;

-- Failed jobs become dead letters by hand. Returns how many, by kind and queue.
CREATE FUNCTION awa_queue.move_failed(p_kind text, p_queue text, p_tag text, p_job bigint, p_rows integer)
RETURNS TABLE (kind text, queue text, jobs bigint) LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    RETURN QUERY WITH picked AS MATERIALIZED (
        SELECT t.job_id FROM awa_queue.terminal t WHERE t.state = 'failed' AND (p_kind IS NULL OR t.kind = p_kind)
        AND (p_queue IS NULL OR t.queue = p_queue) AND (p_tag IS NULL OR t.tags @> ARRAY[p_tag])
        AND (p_job IS NULL OR t.job_id = p_job) LIMIT p_rows FOR UPDATE SKIP LOCKED
    ), moved AS (
        DELETE FROM awa_queue.terminal t USING picked p WHERE t.job_id = p.job_id RETURNING t.*
    ), buried AS (
        INSERT INTO awa_queue.dlq_entries AS d SELECT m.*, 'manual' FROM moved m RETURNING d.kind, d.queue
    )
    SELECT b.kind, b.queue, count(*) FROM buried b GROUP BY b.kind, b.queue;
END $$;

-- Delete failed jobs for good, of one of the two places, and give back the unique keys they still hold. Returns how many, by queue.
CREATE FUNCTION awa_queue.discard(p_dead boolean, p_kind text, p_queue text, p_tag text, p_rows integer)
RETURNS TABLE (queue text, jobs bigint) LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    RETURN QUERY EXECUTE format($q$
        WITH picked AS MATERIALIZED (
            SELECT t.job_id FROM awa_queue.%1$I t WHERE t.state = 'failed' AND ($1 IS NULL OR t.kind = $1)
            AND ($2 IS NULL OR t.queue = $2) AND ($3 IS NULL OR t.tags @> ARRAY[$3]) LIMIT $4 FOR UPDATE SKIP LOCKED
        ), gone AS (
            DELETE FROM awa_queue.%1$I t USING picked p WHERE t.job_id = p.job_id RETURNING t.job_id, t.unique_key, t.queue
        ), released AS (
            DELETE FROM awa.job_unique_claims c USING gone g WHERE c.unique_key = g.unique_key AND c.job_id = g.job_id
        )
        SELECT g.queue, count(*) FROM gone g GROUP BY g.queue $q$, CASE WHEN p_dead THEN 'dlq_entries' ELSE 'terminal' END)
    USING p_kind, p_queue, p_tag, p_rows;
END $$;

-- Cancel jobs that wait; what has begun to run meanwhile goes on. Returns those that were cancelled, as they landed.
CREATE FUNCTION awa_queue.cancel_waiting(p_jobs bigint[], p_reason text) RETURNS SETOF jsonb LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
DECLARE v_job bigint; v record; j awa_queue.deferred_jobs;
BEGIN
    FOREACH v_job IN ARRAY p_jobs LOOP
        SELECT * INTO v FROM awa_queue.pull(v_job, false);
        CONTINUE WHEN v.came_from IS NULL;
        j := v.job;
        j.state := 'cancelled';
        j.errors := awa_queue.with_cancel(j, v.came_from, p_reason);
        RETURN NEXT to_jsonb(awa_queue.land(j, v.came_from)) || jsonb_build_object('came_from', v.came_from);
    END LOOP;
END $$;

-- A page of jobs, newest first, full while rows match. Walks down the ids in index order, filtering where the rows lie, and
-- looks up only what passed: a page costs what it passes over and not what there is.
CREATE FUNCTION awa.list_jobs(
    p_state awa.job_state, p_kind text, p_queue text, p_tag text, p_since timestamptz, p_until timestamptz, p_before bigint, p_limit integer
) RETURNS SETOF jsonb LANGUAGE plpgsql STABLE
SET search_path = pg_catalog SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_below bigint := coalesce(p_before, 9223372036854775807);
    v_left  integer := p_limit;
    v_step  integer := least(greatest(p_limit, 100), 5000);
    v_ids   bigint[];
    v_found integer;
    -- A body says nothing about the state of its job; these states never live in one.
    v_bodies boolean := coalesce(p_state NOT IN ('scheduled', 'retryable', 'failed', 'cancelled'), true);
BEGIN
    LOOP
        -- A place that gave as many rows as were asked for says nothing of what lies below its last one, and a job with several
        -- bodies takes several of them: the next look begins at the highest of these last ones.
        WITH met AS MATERIALIZED (
            (SELECT 1 AS place, b.job_id FROM awa_queue.bodies b WHERE b.job_id < v_below AND v_bodies
             AND (p_kind IS NULL OR b.kind = p_kind) AND (p_queue IS NULL OR b.queue = p_queue)
             AND (p_tag IS NULL OR p_tag = ANY (b.tags)) AND (p_since IS NULL OR b.created_at >= p_since)
             AND (p_until IS NULL OR b.created_at < p_until) ORDER BY b.job_id DESC LIMIT v_step)
            UNION ALL (SELECT 2, d.job_id FROM awa_queue.deferred_jobs d WHERE d.job_id < v_below AND (p_state IS NULL OR d.state = p_state)
             AND (p_kind IS NULL OR d.kind = p_kind) AND (p_queue IS NULL OR d.queue = p_queue)
             AND (p_tag IS NULL OR p_tag = ANY (d.tags)) AND (p_since IS NULL OR d.created_at >= p_since)
             AND (p_until IS NULL OR d.created_at < p_until) ORDER BY d.job_id DESC LIMIT v_step)
            UNION ALL (SELECT 3, t.job_id FROM awa_queue.terminal t WHERE t.job_id < v_below AND (p_state IS NULL OR t.state = p_state)
             AND (p_kind IS NULL OR t.kind = p_kind) AND (p_queue IS NULL OR t.queue = p_queue)
             AND (p_tag IS NULL OR p_tag = ANY (t.tags)) AND (p_since IS NULL OR t.created_at >= p_since)
             AND (p_until IS NULL OR t.created_at < p_until) ORDER BY t.job_id DESC LIMIT v_step)
            UNION ALL (SELECT 4, h.job_id FROM awa.jobs_hot h WHERE h.job_id < v_below AND (p_state IS NULL OR h.state = p_state)
             AND (p_kind IS NULL OR h.kind = p_kind) AND (p_queue IS NULL OR h.queue = p_queue)
             AND (p_tag IS NULL OR p_tag = ANY (h.tags)) AND (p_since IS NULL OR h.created_at >= p_since)
             AND (p_until IS NULL OR h.created_at < p_until) ORDER BY h.job_id DESC LIMIT v_step)
            UNION ALL (SELECT 5, s.job_id FROM awa.scheduled_jobs s WHERE s.job_id < v_below AND (p_state IS NULL OR s.state = p_state)
             AND (p_kind IS NULL OR s.kind = p_kind) AND (p_queue IS NULL OR s.queue = p_queue)
             AND (p_tag IS NULL OR p_tag = ANY (s.tags)) AND (p_since IS NULL OR s.created_at >= p_since)
             AND (p_until IS NULL OR s.created_at < p_until) ORDER BY s.job_id DESC LIMIT v_step)
        ), looked AS MATERIALIZED (
            SELECT max(f.last) AS down_to FROM (SELECT min(m.job_id) AS last FROM met m GROUP BY m.place HAVING count(*) = v_step) f
        )
        SELECT l.down_to, ARRAY(SELECT DISTINCT m.job_id FROM met m WHERE m.job_id >= coalesce(l.down_to, 0))
        INTO v_below, v_ids FROM looked l;
        RETURN QUERY SELECT to_jsonb(j.*) FROM unnest(v_ids) AS i (id) CROSS JOIN LATERAL (
            SELECT x.* FROM awa.jobs x WHERE x.id = i.id LIMIT 1) j
        WHERE (p_state IS NULL OR j.state = p_state) AND (p_kind IS NULL OR j.kind = p_kind) AND (p_queue IS NULL OR j.queue = p_queue)
          AND (p_tag IS NULL OR p_tag = ANY (j.tags)) AND (p_since IS NULL OR j.created_at >= p_since)
          AND (p_until IS NULL OR j.created_at < p_until)
        ORDER BY i.id DESC LIMIT v_left;
        GET DIAGNOSTICS v_found = ROW_COUNT;
        v_left := v_left - v_found;
        EXIT WHEN v_left <= 0 OR v_below IS NULL;
        v_step := least(v_step * 2, 5000);
    END LOOP;
END $$;
