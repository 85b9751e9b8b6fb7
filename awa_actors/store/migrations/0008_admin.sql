-- What operators and users read and do to single jobs.

-- Every job of both planes, each exactly once. Dead letters have a table of their own. `instance_number` is of completed jobs: their
-- instance by its number, for when its row has gone.
CREATE VIEW awa.jobs AS
WITH live AS (
    SELECT (awa_queue.as_row(b, 'available', r.attempt, r.run_lease, NULL, NULL, NULL, NULL)).*, NULL::timestamptz AS deadline_at,
           NULL::integer AS instance_number
    FROM awa_queue.bodies b JOIN awa_queue.ready r
      ON r.queue = b.queue AND r.priority = b.priority AND r.shard = b.shard AND r.pos = coalesce(b.pos, b.job_id)
     AND r.job_id = b.job_id AND r.slot = b.slot
    UNION ALL
    SELECT (awa_queue.as_row(b, 'available', r.attempt, r.run_lease, NULL, NULL, NULL, NULL)).*, NULL, NULL
    FROM awa_queue.parked_ready r JOIN awa_queue.bodies b ON b.slot = r.slot AND b.job_id = r.job_id
    UNION ALL
    SELECT (awa_queue.as_row(b, l.state, l.attempt, l.run_lease, l.claimed_at, l.progress, l.metadata, l.instance)).*, l.deadline_at,
           NULL
    FROM awa_queue.leases l JOIN awa_queue.bodies b ON b.slot = l.slot AND b.job_id = l.job_id
    UNION ALL
    SELECT b.job_id, b.kind, b.queue, 'completed', b.args, b.priority, d.attempt, d.run_lease, b.max_attempts, b.shard,
           coalesce(b.run_at, b.created_at), b.created_at, d.claimed_at, d.finalized_at, b.deadline_ms, b.metadata, b.tags, b.errors,
           NULL, d.result, b.unique_key, b.unique_states, b.snoozes, b.rescues, b.interrupted,
           (SELECT i.id FROM awa.instances i WHERE i.number = d.instance_number AND i.started_at <= d.finalized_at
            ORDER BY i.started_at DESC LIMIT 1), b.past, NULL, d.instance_number
    FROM awa_queue.done d JOIN awa_queue.bodies b ON b.slot = d.slot AND b.job_id = d.job_id
    UNION ALL
    SELECT d.*, NULL, NULL FROM awa_queue.deferred_jobs d
    UNION ALL
    SELECT t.*, NULL, NULL FROM awa_queue.terminal t
    UNION ALL
    SELECT (awa.job_of(h)).*, h.deadline_at, NULL FROM awa.jobs_hot h
    UNION ALL
    SELECT s.*, NULL, NULL FROM awa.scheduled_jobs s
)
SELECT job_id AS id, kind, queue, args, state, priority, attempt, run_lease, max_attempts, run_at, NULL::timestamptz AS heartbeat_at,
       deadline_at, attempted_at, finalized_at, created_at, errors, coalesce(metadata, '{}') AS metadata, coalesce(tags, '{}') AS tags,
       unique_key, unique_states, progress, result, deadline_ms, coalesce(snoozes, 0) AS snoozes, coalesce(rescues, 0) AS rescues,
       coalesce(interrupted, 0) AS interrupted, instance, shard, instance_number, past
FROM live;

-- One job by id, wherever it is, dead letters included (dlq_reason set).
CREATE FUNCTION awa.find_job(p_job bigint) RETURNS jsonb LANGUAGE plpgsql STABLE
SET search_path = pg_catalog SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE v jsonb;
BEGIN
    SELECT to_jsonb(j.*) INTO v FROM awa.jobs j WHERE j.id = p_job LIMIT 1;
    IF v IS NULL THEN
        SELECT to_jsonb(d.*) - 'job_id' || jsonb_build_object('id', d.job_id) INTO v FROM awa_queue.dlq_entries d WHERE d.job_id = p_job;
    ELSIF v ->> 'state' IN ('running', 'waiting_external') THEN
        v := v || coalesce((SELECT jsonb_build_object('callback_id', c.callback_id, 'callback_timeout_at', c.timeout_at)
            FROM awa_queue.callbacks c WHERE c.job_id = p_job AND c.run_lease = (v ->> 'run_lease')::bigint AND NOT c.resumed), '{}');
    END IF;
    RETURN v;
END $$;

-- Take a job out of wherever it waits or runs. NULL: it is nowhere alive. A job may move while we look, so look a few times.
CREATE FUNCTION awa_queue.pull(p_job bigint, p_running boolean, OUT job awa_queue.deferred_jobs, OUT came_from awa.job_state) LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off AS $$
DECLARE
    l awa_queue.leases;
    b awa_queue.bodies;
    r awa_queue.ready;
    h awa.jobs_hot;
BEGIN
    FOR i IN 1..5 LOOP
        SELECT x.* INTO l FROM awa_queue.leases x WHERE x.job_id = p_job FOR UPDATE;
        IF FOUND THEN
            IF l.state = 'running' AND NOT p_running THEN
                RETURN;
            END IF;
            job := awa_queue.whole(l);
            came_from := l.state;
            DELETE FROM awa_queue.leases x WHERE x.lslot = l.lslot AND x.job_id = p_job AND x.run_lease = l.run_lease;
            PERFORM pg_notify('awa:cancel', json_build_object('job_id', p_job, 'run_lease', l.run_lease)::text);
            RETURN;
        END IF;
        DELETE FROM awa_queue.deferred_jobs d WHERE d.job_id = p_job RETURNING d.* INTO job;
        IF FOUND THEN
            came_from := job.state;
            RETURN;
        END IF;
        DELETE FROM awa.scheduled_jobs s WHERE s.job_id = p_job RETURNING s.* INTO job;
        IF FOUND THEN
            came_from := job.state;
            RETURN;
        END IF;
        SELECT x.* INTO h FROM awa.jobs_hot x WHERE x.job_id = p_job AND x.state <> 'completed' FOR UPDATE;
        IF FOUND THEN
            IF h.state = 'running' AND NOT p_running THEN
                RETURN;
            END IF;
            DELETE FROM awa.jobs_hot x WHERE x.job_id = p_job;
            job := awa.job_of(h);
            came_from := h.state;
            IF h.state <> 'available' THEN
                PERFORM pg_notify('awa:cancel', json_build_object('job_id', p_job, 'run_lease', h.run_lease)::text);
            END IF;
            RETURN;
        END IF;
        FOR b IN SELECT x.* FROM awa_queue.bodies x WHERE x.job_id = p_job LOOP
            DELETE FROM awa_queue.ready x WHERE x.queue = b.queue AND x.priority = b.priority AND x.shard = b.shard
                AND x.pos = coalesce(b.pos, b.job_id) AND x.job_id = p_job RETURNING x.* INTO r;
            IF NOT FOUND THEN
                DELETE FROM awa_queue.parked_ready x WHERE x.queue = b.queue AND x.priority = b.priority AND x.shard = b.shard
                    AND x.pos = coalesce(b.pos, b.job_id) AND x.job_id = p_job RETURNING x.* INTO r;
            END IF;
            IF FOUND THEN
                SELECT x.* INTO b FROM awa_queue.bodies x WHERE x.slot = r.slot AND x.job_id = p_job;
                job := awa_queue.as_row(b, 'available', r.attempt, r.run_lease, NULL, NULL, NULL, NULL);
                came_from := 'available';
                RETURN;
            END IF;
        END LOOP;
    END LOOP;
    job := NULL;
END $$;

-- Cancel a job in any state that is not an end. A running attempt is told at once; its late outcome is stale.
CREATE FUNCTION awa.cancel_job(p_job bigint, p_reason text DEFAULT 'cancelled by an operator') RETURNS jsonb LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
DECLARE v record; j awa_queue.deferred_jobs;
BEGIN
    SELECT * INTO v FROM awa_queue.pull(p_job, true);
    IF v.came_from IS NULL THEN
        RETURN NULL;
    END IF;
    j := v.job;
    j.state := 'cancelled';
    j.errors := awa_queue.with_cancel(j, v.came_from, p_reason);
    RETURN to_jsonb(awa_queue.land(j, v.came_from)) || jsonb_build_object('came_from', v.came_from);
END $$;

-- Run a job again now: failed, cancelled, dead, deferred and parked ones. attempt starts at 0; run_lease keeps growing.
-- A unique key that a newer job holds is an error here, and the row stays.
CREATE FUNCTION awa.retry_job(p_job bigint) RETURNS jsonb LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    j      awa_queue.deferred_jobs;
    v      record;
    v_dead record;
    v_from awa.job_state;
    v_holder bigint;
    v_is_dead boolean := false;
BEGIN
    FOR i IN 1..2 LOOP
        DELETE FROM awa_queue.terminal t WHERE t.job_id = p_job RETURNING t.* INTO j;
        EXIT WHEN FOUND;
        DELETE FROM awa_queue.dlq_entries d WHERE d.job_id = p_job RETURNING d.* INTO v_dead;
        IF FOUND THEN
            SELECT * INTO j FROM jsonb_populate_record(NULL::awa_queue.deferred_jobs, to_jsonb(v_dead));
            v_is_dead := true;
            EXIT;
        END IF;
        SELECT * INTO v FROM awa_queue.pull(p_job, false);
        j := v.job;
        -- Not alive: it may have ended while pull waited for whoever ended it, so look at what has ended once more.
        EXIT WHEN v.came_from IS NOT NULL;
    END LOOP;
    IF j.job_id IS NULL THEN
        RETURN NULL;
    END IF;
    v_from := j.state;
    IF j.unique_key IS NOT NULL AND get_bit(j.unique_states, awa.state_bit(v_from)) = 0 AND get_bit(j.unique_states, 1) = 1 THEN
        v_holder := awa_queue.take_claim(j.unique_key, j.job_id);
        IF v_holder IS NOT NULL THEN
            RAISE EXCEPTION 'job % holds the unique key of job %', v_holder, p_job
                USING ERRCODE = 'unique_violation', CONSTRAINT = 'idx_awa_jobs_unique', DETAIL = v_holder::text;
        END IF;
    END IF;
    IF v_from = 'waiting_external' THEN
        j.past := awa_queue.with_past(j, 'retried', 'by an operator');
    END IF;
    j.state := 'available';
    j.attempt := 0;
    j.rescues := NULL;
    j.finalized_at := NULL;
    j.run_at := clock_timestamp();
    RETURN to_jsonb(awa_queue.land(j, v_from)) || jsonb_build_object('came_from', v_from, 'was_dead_letter', v_is_dead);
END $$;

-- Producers written for the older contract run unchanged: same signature, one awa.jobs row. A job said to be available with
-- a due time in the future waits for it. Plans are pinned as in find_job: the row is read back from a view of many tables.
CREATE FUNCTION awa.insert_job_compat(
    p_kind text, p_queue text DEFAULT 'default', p_args jsonb DEFAULT '{}', p_state awa.job_state DEFAULT 'available',
    p_priority smallint DEFAULT 2, p_max_attempts smallint DEFAULT 25, p_run_at timestamptz DEFAULT NULL, p_metadata jsonb DEFAULT '{}',
    p_tags text[] DEFAULT '{}', p_unique_key bytea DEFAULT NULL, p_unique_states bit(8) DEFAULT NULL, p_ordering_key bytea DEFAULT NULL
) RETURNS awa.jobs LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_fault text := CASE
        WHEN p_state NOT IN ('available', 'scheduled', 'retryable') THEN 'a job cannot be inserted as ' || p_state
        WHEN p_run_at NOT BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-30 00:00:00+00' THEN 'run_at must lie between 0001-01-02 and 9999-12-30'
        WHEN jsonb_typeof(p_metadata) <> 'object' THEN 'metadata must be a JSON object'
        WHEN array_position(p_tags, NULL) IS NOT NULL THEN 'tags must not be null'
        WHEN octet_length(p_unique_key) NOT BETWEEN 1 AND 200 THEN 'a unique key must have 1 to 200 bytes' END;
    v_opts  jsonb;
    v_id    bigint;
    v_row   awa.jobs;
BEGIN
    IF v_fault IS NOT NULL THEN
        RAISE EXCEPTION '%', v_fault USING ERRCODE = 'invalid_parameter_value';
    END IF;
    v_opts := jsonb_strip_nulls(jsonb_build_object(
            'run_at', CASE WHEN p_state <> 'available' OR p_run_at > clock_timestamp() THEN coalesce(p_run_at, clock_timestamp()) END,
            'tags', to_jsonb(nullif(p_tags, '{}')), 'unique_key', encode(p_unique_key, 'hex'),
            'unique_states', CASE WHEN p_unique_key IS NOT NULL THEN coalesce(p_unique_states, B'11111000')::text END,
            'ordering_key', encode(p_ordering_key, 'hex')))
        || CASE WHEN p_metadata <> '{}' THEN jsonb_build_object('metadata', p_metadata) ELSE '{}' END;
    SELECT r.ids[1] INTO v_id FROM awa.insert_jobs(
        ARRAY[coalesce(p_args, '{}')::text], ARRAY[p_kind], ARRAY[p_queue], ARRAY[p_priority], ARRAY[p_max_attempts],
        CASE WHEN v_opts <> '{}' THEN ARRAY[v_opts::text] END) r;
    IF p_state = 'retryable' THEN
        UPDATE awa_queue.deferred_jobs d SET state = 'retryable' WHERE d.job_id = v_id;
        UPDATE awa.scheduled_jobs s SET state = 'retryable' WHERE s.job_id = v_id;
    END IF;
    SELECT j.* INTO v_row FROM awa.jobs j WHERE j.id = v_id LIMIT 1;
    RETURN v_row;
END $$;
