-- Cron: one row per schedule. `mark` is the nominal time up to which its fires are decided; it outlives every job, so that
-- there is one job per (schedule, nominal time) whoever evaluates, however often, however late.

CREATE TABLE awa.cron_schedules (
    name          text PRIMARY KEY CHECK (octet_length(name) BETWEEN 1 AND 200),
    application   text NOT NULL,
    digest        text NOT NULL,
    expression    text NOT NULL,
    timezone      text NOT NULL,
    missed_fire   text NOT NULL CHECK (missed_fire IN ('coalesce', 'catch_up', 'skip')),
    overlap       text NOT NULL CHECK (overlap IN ('allow', 'skip_if_running')),
    jitter        float8 NOT NULL CHECK (jitter >= 0),
    kind          text NOT NULL,
    queue         text NOT NULL,
    args          jsonb NOT NULL,
    priority      smallint NOT NULL,
    max_attempts  smallint NOT NULL,
    options       jsonb NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    declared_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    paused_at     timestamptz,
    paused_by     text,
    mark          timestamptz,
    last_fire     timestamptz,
    last_job_id   bigint,
    enqueued      bigint NOT NULL DEFAULT 0,
    skipped       bigint NOT NULL DEFAULT 0,    -- the job of the fire before was still alive
    taken         bigint NOT NULL DEFAULT 0,    -- another job held the unique key
    refused       bigint NOT NULL DEFAULT 0,    -- the job could not be stored
    last_error    text
) WITH (fillfactor = 50);

-- Declare a schedule: a new one, a change of one's own, or (p_fresh false) only a sign that it is still declared. What another
-- application owns is left alone. Where the times change, those of the new expression before the change were never missed.
CREATE FUNCTION awa.cron_declare(p_application text, p_digest text, p jsonb, p_fresh boolean) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
BEGIN
    INSERT INTO awa.cron_schedules AS s (name, application, digest, expression, timezone, missed_fire, overlap, jitter, kind, queue,
        args, priority, max_attempts, options)
    SELECT d.name, p_application, p_digest, d.expression, d.timezone, d.missed_fire, d.overlap, d.jitter, d.kind, d.queue,
           d.args, d.priority, d.max_attempts, d.options
    FROM jsonb_to_record(p) AS d (name text, expression text, timezone text, missed_fire text, overlap text, jitter float8,
        kind text, queue text, args jsonb, priority smallint, max_attempts smallint, options jsonb)
    ON CONFLICT (name) DO UPDATE SET
        digest = excluded.digest, expression = excluded.expression, timezone = excluded.timezone,
        missed_fire = excluded.missed_fire, overlap = excluded.overlap, jitter = excluded.jitter, kind = excluded.kind,
        queue = excluded.queue, args = excluded.args, priority = excluded.priority, max_attempts = excluded.max_attempts,
        options = excluded.options, declared_at = excluded.declared_at,
        updated_at = CASE WHEN s.digest = excluded.digest THEN s.updated_at ELSE excluded.updated_at END,
        mark = CASE WHEN (s.expression, s.timezone) = (excluded.expression, excluded.timezone) THEN s.mark
                    ELSE greatest(s.mark, clock_timestamp() - interval '60 seconds') END
    WHERE s.application = excluded.application AND (p_fresh OR s.digest = excluded.digest);
END $$;

-- Whether a job has not ended. A job that is gone has.
CREATE FUNCTION awa.is_alive(p_job bigint) RETURNS boolean LANGUAGE plpgsql STABLE SET search_path = pg_catalog AS $$
BEGIN
    RETURN coalesce(awa.find_job(p_job) ->> 'state' IN ('scheduled', 'available', 'running', 'retryable', 'waiting_external'), false);
END $$;

-- What a job of a schedule carries: its options, and which fire it is.
CREATE FUNCTION awa.cron_options(s awa.cron_schedules, p_metadata jsonb, p_fire timestamptz) RETURNS jsonb LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog AS $$
    SELECT s.options || jsonb_build_object('metadata', coalesce(s.options -> 'metadata', '{}') || jsonb_build_object(
        'cron_name', s.name, 'cron_fire_time', to_char(p_fire AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"+00:00"')) || p_metadata)
$$;

-- Decide fires: move the mark from p_expected to p_mark and enqueue one job for each of p_fires, all or nothing. The move is a
-- compare-and-swap, so of any number of evaluators one does it. p_delays (s) is the jitter of each fire.
-- Outcome: fired · lost (another evaluator was first, or the schedule was paused, changed or removed) · busy (somebody's open
-- transaction holds the row or the unique key: the mark stays, the next pass tries again; nobody else waits for it).
CREATE FUNCTION awa.cron_fire(
    p_name text, p_digest text, p_expected timestamptz, p_mark timestamptz, p_fires timestamptz[], p_delays float8[],
    OUT outcome text, OUT enqueued integer, OUT skipped integer, OUT taken integer, OUT refused integer
) LANGUAGE plpgsql SET search_path = pg_catalog SET lock_timeout = '200ms' AS $$
DECLARE
    s          awa.cron_schedules;
    v_fires    timestamptz[] := coalesce(p_fires, '{}');
    v_ids      bigint[];
    v_inserted boolean[];
    v_error    text;
    v_last     integer;
BEGIN
    enqueued := 0; skipped := 0; taken := 0; refused := 0;
    UPDATE awa.cron_schedules c SET mark = p_mark
    WHERE c.name = p_name AND c.digest = p_digest AND c.mark IS NOT DISTINCT FROM p_expected AND c.paused_at IS NULL
    RETURNING c.* INTO s;
    IF NOT FOUND THEN
        outcome := 'lost';
        RETURN;
    END IF;
    outcome := 'fired';
    IF s.overlap = 'skip_if_running' AND cardinality(v_fires) > 0 THEN
        v_fires := CASE WHEN awa.is_alive(s.last_job_id) THEN '{}' ELSE v_fires[1:1] END;
        skipped := cardinality(p_fires) - cardinality(v_fires);
    END IF;
    IF cardinality(v_fires) > 0 THEN
        BEGIN
            SELECT r.ids, r.inserted INTO v_ids, v_inserted FROM awa.insert_jobs(
                array_fill(s.args::text, ARRAY[cardinality(v_fires)]), ARRAY[s.kind], ARRAY[s.queue], ARRAY[s.priority],
                ARRAY[s.max_attempts], ARRAY(
                    SELECT (awa.cron_options(s, '{}', f.fire) - 'delay' || '{"on_conflict": "skip"}'
                            || CASE WHEN f.due > clock_timestamp() THEN jsonb_build_object('run_at', f.due) ELSE '{}' END)::text
                    FROM (SELECT x.fire, x.ord, x.fire + make_interval(
                              secs => coalesce(p_delays[x.ord], 0) + coalesce((s.options ->> 'delay')::float8, 0)) AS due
                          FROM unnest(v_fires) WITH ORDINALITY AS x (fire, ord)) f
                    ORDER BY f.ord)) r;
        EXCEPTION WHEN data_exception OR integrity_constraint_violation OR program_limit_exceeded THEN
            -- Asked again it would fail again: this fire is decided too, visibly.
            GET STACKED DIAGNOSTICS v_error = MESSAGE_TEXT;
            refused := cardinality(v_fires);
        END;
        SELECT count(*) FILTER (WHERE i.yes), count(*) FILTER (WHERE NOT i.yes), max(i.ord) FILTER (WHERE i.yes)
        INTO enqueued, taken, v_last FROM unnest(v_inserted) WITH ORDINALITY AS i (yes, ord);
    END IF;
    UPDATE awa.cron_schedules c SET
        last_fire = coalesce(v_fires[v_last], c.last_fire), last_job_id = coalesce(v_ids[v_last], c.last_job_id),
        enqueued = c.enqueued + cron_fire.enqueued, skipped = c.skipped + cron_fire.skipped, taken = c.taken + cron_fire.taken,
        refused = c.refused + cron_fire.refused,
        last_error = CASE WHEN cardinality(v_fires) > 0 THEN v_error ELSE c.last_error END
    WHERE c.name = p_name;
EXCEPTION WHEN lock_not_available THEN
    outcome := 'busy'; enqueued := 0; skipped := 0; taken := 0; refused := 0;
END $$;

-- Enqueue the job of a schedule now, paused or not, beside its fires. NULL: there is no such schedule. A unique key that is
-- taken is the operator's to know.
CREATE FUNCTION awa.cron_trigger(
    p_name text, p_metadata jsonb DEFAULT '{}', OUT id bigint, OUT kind text, OUT queue text, OUT inserted boolean
) LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
DECLARE s awa.cron_schedules;
BEGIN
    SELECT c.* INTO s FROM awa.cron_schedules c WHERE c.name = p_name;
    IF FOUND THEN
        SELECT r.ids[1], s.kind, s.queue, r.inserted[1] INTO id, kind, queue, inserted FROM awa.insert_jobs(
            ARRAY[s.args::text], ARRAY[s.kind], ARRAY[s.queue], ARRAY[s.priority], ARRAY[s.max_attempts],
            ARRAY[awa.cron_options(s, p_metadata || '{"triggered_manually": true}', clock_timestamp())::text]) r;
    END IF;
END $$;

-- Descriptors: what applications say about queues and kinds. One row per thing that is said, with when it was last said: what
-- nobody says any more goes stale, and two live rows of one subject are drift.
CREATE TABLE awa.descriptors (
    subject       text NOT NULL CHECK (subject IN ('queue', 'kind')),
    name          text NOT NULL CHECK (name <> ''),
    application   text NOT NULL,
    digest        text NOT NULL CHECK (length(digest) BETWEEN 1 AND 128),
    descriptor    jsonb NOT NULL,
    publish_every interval NOT NULL CHECK (publish_every > interval '0'),
    first_seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_seen_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (subject, name, application, digest)
) WITH (fillfactor = 50);

-- Admin refresh. One count at a time: whoever finds another counting leaves it to them.
CREATE FUNCTION awa.try_refresh(p_what integer) RETURNS boolean LANGUAGE sql VOLATILE SET search_path = pg_catalog AS $$
    SELECT pg_try_advisory_xact_lock('awa.queue_stats'::regclass::oid::bigint << 32 | p_what)
$$;

-- Live jobs and ends by queue, in one statement: counts by state add up to the jobs at that instant. Functions lock the partitions
-- before they take the statement's snapshot, so that none is truncated in between. Returns how many queues have a row.
CREATE FUNCTION awa.refresh_queue_stats() RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog SET jit = off AS $$
DECLARE v_count integer;
BEGIN
    IF NOT awa.try_refresh(1) THEN
        RETURN 0;
    END IF;
    WITH counted AS (
        SELECT r.queue, 'available' AS state, count(*) AS jobs, min(r.ready_at) AS oldest FROM awa_queue.ready r GROUP BY r.queue
        UNION ALL SELECT r.queue, 'available', count(*), min(r.ready_at) FROM awa_queue.parked_ready r GROUP BY r.queue
        -- OFFSET 0 keeps this a look by index per running attempt: no statistics could tell that bodies are many and leases few.
        UNION ALL SELECT b.queue, l.state::text, count(*), NULL FROM awa_queue.leases l CROSS JOIN LATERAL (
            SELECT x.queue FROM awa_queue.bodies x WHERE x.slot = l.slot AND x.job_id = l.job_id OFFSET 0) b GROUP BY b.queue, l.state
        UNION ALL SELECT d.queue, d.state::text, count(*), NULL FROM awa_queue.deferred_jobs d GROUP BY d.queue, d.state
        UNION ALL SELECT t.queue, t.state::text, count(*), NULL FROM awa_queue.terminal t GROUP BY t.queue, t.state
        UNION ALL SELECT h.queue, h.state::text, count(*), min(h.ready_at) FILTER (WHERE h.state = 'available') FROM awa.jobs_hot h
                  WHERE h.state <> 'completed' GROUP BY h.queue, h.state
        UNION ALL SELECT s.queue, s.state::text, count(*), NULL FROM awa.scheduled_jobs s GROUP BY s.queue, s.state
        UNION ALL SELECT e.queue, 'dead', count(*), NULL FROM awa_queue.dlq_entries e GROUP BY e.queue
        UNION ALL SELECT q.queue, 'completed', 0, NULL FROM awa.queue_stats q WHERE q.completed_last_hour > 0
    ), summed AS (
        SELECT c.queue, coalesce(sum(c.jobs) FILTER (WHERE c.state = 'available'), 0) AS available,
               coalesce(sum(c.jobs) FILTER (WHERE c.state = 'running'), 0) AS running,
               coalesce(sum(c.jobs) FILTER (WHERE c.state = 'scheduled'), 0) AS scheduled,
               coalesce(sum(c.jobs) FILTER (WHERE c.state = 'retryable'), 0) AS retryable,
               coalesce(sum(c.jobs) FILTER (WHERE c.state = 'waiting_external'), 0) AS waiting_external,
               coalesce(sum(c.jobs) FILTER (WHERE c.state = 'failed'), 0) AS failed,
               coalesce(sum(c.jobs) FILTER (WHERE c.state = 'cancelled'), 0) AS cancelled,
               coalesce(sum(c.jobs) FILTER (WHERE c.state = 'dead'), 0) AS dead_letters, min(c.oldest) AS oldest_ready_at
        FROM counted c GROUP BY c.queue
    ), gone AS (
        DELETE FROM awa.queue_stats q WHERE NOT EXISTS (SELECT FROM summed s WHERE s.queue = q.queue)
    )
    INSERT INTO awa.queue_stats AS q (queue, available, running, scheduled, retryable, waiting_external, failed, cancelled,
        completed_last_hour, dead_letters, oldest_ready_at, refreshed_at)
    SELECT s.queue, s.available, s.running, s.scheduled, s.retryable, s.waiting_external, s.failed, s.cancelled, 0, s.dead_letters,
           s.oldest_ready_at, clock_timestamp() FROM summed s
    ON CONFLICT (queue) DO UPDATE SET available = excluded.available, running = excluded.running, scheduled = excluded.scheduled,
        retryable = excluded.retryable, waiting_external = excluded.waiting_external, failed = excluded.failed,
        cancelled = excluded.cancelled, dead_letters = excluded.dead_letters, oldest_ready_at = excluded.oldest_ready_at,
        refreshed_at = excluded.refreshed_at;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- The share of a table (percent) to read so that at most p_bytes of it are: what is larger is estimated from random blocks.
CREATE FUNCTION awa.sample_share(p_table text, p_bytes bigint) RETURNS float8 LANGUAGE sql VOLATILE SET search_path = pg_catalog AS $$
    SELECT least(100, 100.0 * p_bytes / greatest(1, pg_relation_size(p_table::regclass)
        + coalesce((SELECT sum(pg_relation_size(t.relid)) FROM pg_partition_tree(p_table::regclass) t WHERE t.isleaf), 0)))::float8
$$;

-- Jobs by kind, and completions of the last hour by queue and kind. Ready rows and completions do not know their kind, a body
-- does: the price is a look per row, so beyond p_bytes per table it is an estimate. Returns how many kinds have a row.
CREATE FUNCTION awa.refresh_kind_stats(p_bytes bigint) RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog SET jit = off AS $$
DECLARE
    v_ready    float8 := awa.sample_share('awa_queue.ready', p_bytes);
    v_done     float8 := awa.sample_share('awa_queue.done', p_bytes);
    v_deferred float8 := awa.sample_share('awa_queue.deferred_jobs', p_bytes);
    v_terminal float8 := awa.sample_share('awa_queue.terminal', p_bytes);
    v_count    integer;
BEGIN
    IF NOT awa.try_refresh(1) OR NOT awa.try_refresh(2) THEN
        RETURN 0;
    END IF;
    WITH counted AS (
        SELECT b.queue, b.kind, 'live' AS state, round(count(*) * 100 / v_ready) AS jobs
        FROM awa_queue.ready r TABLESAMPLE SYSTEM (v_ready) CROSS JOIN LATERAL (
            SELECT x.queue, x.kind FROM awa_queue.bodies x WHERE x.slot = r.slot AND x.job_id = r.job_id OFFSET 0) b GROUP BY b.queue, b.kind
        UNION ALL SELECT b.queue, b.kind, 'live', count(*) FROM awa_queue.parked_ready r CROSS JOIN LATERAL (
            SELECT x.queue, x.kind FROM awa_queue.bodies x WHERE x.slot = r.slot AND x.job_id = r.job_id OFFSET 0) b GROUP BY b.queue, b.kind
        UNION ALL SELECT b.queue, b.kind, 'live', count(*) FROM awa_queue.leases l CROSS JOIN LATERAL (
            SELECT x.queue, x.kind FROM awa_queue.bodies x WHERE x.slot = l.slot AND x.job_id = l.job_id OFFSET 0) b GROUP BY b.queue, b.kind
        UNION ALL SELECT d.queue, d.kind, 'live', round(count(*) * 100 / v_deferred)
                  FROM awa_queue.deferred_jobs d TABLESAMPLE SYSTEM (v_deferred) GROUP BY d.queue, d.kind
        UNION ALL SELECT t.queue, t.kind, t.state::text, round(count(*) * 100 / v_terminal)
                  FROM awa_queue.terminal t TABLESAMPLE SYSTEM (v_terminal) WHERE t.state = 'failed' GROUP BY t.queue, t.kind, t.state
        UNION ALL SELECT h.queue, h.kind, CASE h.state WHEN 'completed' THEN 'completed' ELSE 'live' END, count(*) FROM awa.jobs_hot h
                  WHERE h.state <> 'completed' OR h.finalized_at > clock_timestamp() - interval '1 hour' GROUP BY 1, 2, 3
        UNION ALL SELECT s.queue, s.kind, 'live', count(*) FROM awa.scheduled_jobs s GROUP BY s.queue, s.kind
        UNION ALL SELECT b.queue, b.kind, 'completed', round(count(*) * 100 / v_done)
        FROM awa_queue.done d TABLESAMPLE SYSTEM (v_done) CROSS JOIN LATERAL (
            SELECT x.queue, x.kind FROM awa_queue.bodies x WHERE x.slot = d.slot AND x.job_id = d.job_id OFFSET 0) b
        WHERE d.finalized_at > clock_timestamp() - interval '1 hour' GROUP BY b.queue, b.kind
    ), by_kind AS (
        SELECT c.kind, coalesce(sum(c.jobs) FILTER (WHERE c.state = 'live'), 0) AS live,
               coalesce(sum(c.jobs) FILTER (WHERE c.state = 'failed'), 0) AS failed,
               coalesce(sum(c.jobs) FILTER (WHERE c.state = 'completed'), 0) AS completed, array_agg(DISTINCT c.queue ORDER BY c.queue) AS queues
        FROM counted c GROUP BY c.kind
    ), by_queue AS (
        SELECT coalesce(c.queue, q.queue) AS queue, coalesce(sum(c.jobs), 0) AS completed
        FROM (SELECT * FROM counted WHERE state = 'completed') c
        FULL JOIN (SELECT s.queue FROM awa.queue_stats s WHERE s.completed_last_hour > 0) q ON q.queue = c.queue GROUP BY 1
    ), queued AS (
        INSERT INTO awa.queue_stats AS q SELECT b.queue, 0, 0, 0, 0, 0, 0, 0, b.completed, 0, NULL, clock_timestamp() FROM by_queue b
        ON CONFLICT (queue) DO UPDATE SET completed_last_hour = excluded.completed_last_hour
    ), gone AS (
        DELETE FROM awa.kind_stats k WHERE NOT EXISTS (SELECT FROM by_kind b WHERE b.kind = k.kind)
    )
    INSERT INTO awa.kind_stats AS k (kind, live, failed, completed_last_hour, queues, refreshed_at)
    SELECT b.kind, b.live, b.failed, b.completed, b.queues, clock_timestamp() FROM by_kind b
    ON CONFLICT (kind) DO UPDATE SET live = excluded.live, failed = excluded.failed,
        completed_last_hour = excluded.completed_last_hour, queues = excluded.queues, refreshed_at = excluded.refreshed_at;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;
