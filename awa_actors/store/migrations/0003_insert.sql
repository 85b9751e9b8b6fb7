-- Enqueue: one function for one job and for many, on anybody's connection and in anybody's transaction.
-- It takes no lock that another producer or a claimer would wait for (a unique key excepted, by nature).

CREATE TYPE awa_queue.new_job AS (
    ord integer, job_id bigint, kind text, queue text, args jsonb, priority smallint, max_attempts smallint,
    shard smallint, run_at timestamptz, deadline_ms bigint, metadata jsonb, tags text[],
    unique_key bytea, unique_states bit(8), on_conflict text, inserted boolean);

-- Shard of an ordering key: 64-bit multiply-and-add over its bytes. numeric, since bigint overflow is an error here.
CREATE FUNCTION awa.shard_of(p_key bytea, p_shards integer) RETURNS smallint LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog AS $$
DECLARE h numeric := 14695981039346656037;
BEGIN
    FOR i IN 0..length(p_key) - 1 LOOP
        h := mod(h * 1099511628211 + get_byte(p_key, i), 18446744073709551616);
    END LOOP;
    RETURN mod(h, p_shards)::smallint;
END $$;

-- Which shard a job goes to: its ordering key decides, else the producer's session does; one shard unless configured.
CREATE FUNCTION awa_queue.choose_shard(p_queue text, p_key bytea) RETURNS smallint LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
DECLARE v_shards smallint;
BEGIN
    SELECT q.shards INTO v_shards FROM awa.queues q WHERE q.queue = p_queue;
    IF coalesce(v_shards, 1) = 1 THEN
        RETURN 0;
    END IF;
    RETURN CASE WHEN p_key IS NULL THEN pg_backend_pid() % v_shards ELSE awa.shard_of(p_key, v_shards) END;
END $$;

-- Take the unique key for a job. NULL: taken; otherwise the job that holds it.
CREATE FUNCTION awa_queue.take_claim(p_key bytea, p_job bigint) RETURNS bigint LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
DECLARE v_holder bigint;
BEGIN
    LOOP
        INSERT INTO awa.job_unique_claims (unique_key, job_id) VALUES (p_key, p_job) ON CONFLICT (unique_key) DO NOTHING;
        IF FOUND THEN
            RETURN NULL;
        END IF;
        -- A new statement: a holder that committed while the insert waited is visible only now.
        SELECT c.job_id INTO v_holder FROM awa.job_unique_claims c WHERE c.unique_key = p_key;
        IF v_holder = p_job THEN
            RETURN NULL;
        ELSIF v_holder IS NOT NULL THEN
            RETURN v_holder;
        END IF;
    END LOOP;
END $$;

-- What the plain tables refuse, before it gets into bodies. A value that is missing is refused there.
CREATE FUNCTION awa_queue.check_limits(p_kinds text[], p_queues text[], p_priorities smallint[], p_max_attempts smallint[])
RETURNS void LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog AS $$
DECLARE v_fault text;
BEGIN
    v_fault := CASE
        WHEN EXISTS (SELECT FROM unnest(p_kinds) k WHERE length(k) NOT BETWEEN 1 AND 200) THEN 'a kind has 1 to 200 characters'
        WHEN EXISTS (SELECT FROM unnest(p_queues) q WHERE octet_length(q) NOT BETWEEN 1 AND 200) THEN 'a queue''s name has 1 to 200 bytes'
        WHEN EXISTS (SELECT FROM unnest(p_priorities) p WHERE p NOT BETWEEN 1 AND 4) THEN 'a priority is 1 (most urgent) to 4'
        WHEN EXISTS (SELECT FROM unnest(p_max_attempts) m WHERE m NOT BETWEEN 1 AND 1000) THEN 'max_attempts is 1 to 1000' END;
    IF v_fault IS NOT NULL THEN
        RAISE EXCEPTION '%', v_fault USING ERRCODE = 'check_violation';
    END IF;
END $$;

-- Args are JSON texts. The other arrays have one value per job, or a single one for all.
-- p_opts (JSON texts, or NULL when no job has any) carries what few jobs need: run_at (text), delay (s), deadline_ms, metadata,
-- tags, unique_key (hex), unique_states (bit text), on_conflict (raise | return_existing | skip), ordering_key (hex).
-- Returns the ids in order of the args; p_opts given: for a job that was not inserted the holder's id.
CREATE FUNCTION awa.insert_jobs(
    p_args text[], p_kinds text[], p_queues text[], p_priorities smallint[], p_max_attempts smallint[],
    p_opts text[] DEFAULT NULL, OUT ids bigint[], OUT inserted boolean[]
) LANGUAGE plpgsql SET search_path = pg_catalog SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_now   timestamptz := clock_timestamp();
    v_slot  smallint := awa_queue.current_slot('segments');
    v_rslot smallint := awa_queue.current_slot('ready');
    v_opts  jsonb[] := p_opts::jsonb[];
    v_canonical boolean := false;
    v_queue text;
BEGIN
    -- Once the queue plane is all there is, that is final, and one look without a lock is all it costs.
    IF NOT EXISTS (SELECT FROM awa.storage_transition_state s WHERE s.state = 'active') THEN
        v_canonical := awa.writes_canonical();
    END IF;
    -- Metadata alone changes nothing about where a job goes: follow-ups and traced jobs all have some, and stay on this path.
    IF v_canonical OR EXISTS (SELECT FROM unnest(v_opts) o (opt) WHERE o.opt - 'metadata' <> '{}')
       OR EXISTS (SELECT FROM awa.queues q WHERE q.queue = ANY (p_queues) AND q.shards > 1) THEN
        SELECT r.ids, r.inserted INTO ids, inserted
        FROM awa_queue.insert_with_options(p_args, p_kinds, p_queues, p_priorities, p_max_attempts, p_opts, v_canonical) r;
        RETURN;
    END IF;
    PERFORM awa_queue.check_limits(p_kinds, p_queues, p_priorities, p_max_attempts);
    -- Args are looked up where they are stored: whatever a scan of their array or the common table holds beyond work_mem goes to a file.
    WITH job AS MATERIALIZED (
        SELECT nextval('awa.job_id_seq') AS job_id, i, coalesce(p_queues[i], p_queues[1]) AS queue,
               coalesce(p_priorities[i], p_priorities[1]) AS priority
        FROM generate_series(1, cardinality(p_args)) i
    ), bodied AS (
        INSERT INTO awa_queue.bodies (slot, priority, max_attempts, shard, job_id, created_at, kind, queue, args, metadata)
        SELECT v_slot, j.priority, coalesce(p_max_attempts[j.i], p_max_attempts[1]), 0, j.job_id, v_now,
               coalesce(p_kinds[j.i], p_kinds[1]), j.queue, p_args[j.i]::jsonb, nullif(v_opts[j.i] -> 'metadata', 'null'::jsonb)
        FROM job j
    ), readied AS (
        INSERT INTO awa_queue.ready (rslot, priority, shard, slot, attempt, pos, job_id, run_lease, ready_at, queue)
        SELECT v_rslot, j.priority, 0, v_slot, 0, j.job_id, j.job_id, 0, v_now, j.queue FROM job j
    )
    SELECT array_agg(j.job_id) INTO ids FROM job j;
    IF p_opts IS NOT NULL THEN
        inserted := array_fill(true, ARRAY[coalesce(cardinality(ids), 0)]);
    END IF;
    FOR v_queue IN SELECT DISTINCT q FROM unnest(p_queues) q LOOP
        PERFORM awa.wake(v_queue, awa.queue_channel(v_queue));
    END LOOP;
END $$;

-- One job that needs no more than a place in line, at a third of the price of a batch of one: what cannot be had so goes that way.
CREATE FUNCTION awa.insert_one(
    p_kind text, p_queue text, p_args text, p_priority smallint, p_max_attempts smallint, p_opts text DEFAULT NULL,
    OUT id bigint, OUT inserted boolean
) LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    v_now   timestamptz := clock_timestamp();
    v_opts  jsonb := p_opts::jsonb;
    v_slot  smallint;
    v_rslot smallint;
    v_plain boolean;
BEGIN
    SELECT (SELECT t.slot FROM awa_queue.ring_turns t WHERE t.ring = 'segments' ORDER BY t.generation DESC LIMIT 1),
           (SELECT t.slot FROM awa_queue.ring_turns t WHERE t.ring = 'ready' ORDER BY t.generation DESC LIMIT 1),
           EXISTS (SELECT FROM awa.storage_transition_state s WHERE s.state = 'active')
           AND NOT EXISTS (SELECT FROM awa.queues q WHERE q.queue = p_queue AND q.shards > 1)
    INTO v_slot, v_rslot, v_plain;
    IF NOT v_plain OR v_opts - 'metadata' <> '{}' THEN
        SELECT r.ids[1], coalesce(r.inserted[1], true) INTO id, inserted FROM awa.insert_jobs(
            ARRAY[p_args], ARRAY[p_kind], ARRAY[p_queue], ARRAY[p_priority], ARRAY[p_max_attempts],
            CASE WHEN p_opts IS NOT NULL THEN ARRAY[p_opts] END) r;
        RETURN;
    END IF;
    IF NOT (length(p_kind) BETWEEN 1 AND 200 AND octet_length(p_queue) BETWEEN 1 AND 200 AND p_priority BETWEEN 1 AND 4
            AND p_max_attempts BETWEEN 1 AND 1000) THEN
        PERFORM awa_queue.check_limits(ARRAY[p_kind], ARRAY[p_queue], ARRAY[p_priority], ARRAY[p_max_attempts]);
    END IF;
    id := nextval('awa.job_id_seq');
    inserted := true;
    INSERT INTO awa_queue.bodies (slot, priority, max_attempts, shard, job_id, created_at, kind, queue, args, metadata)
    VALUES (v_slot, p_priority, p_max_attempts, 0, id, v_now, p_kind, p_queue, p_args::jsonb,
            nullif(v_opts -> 'metadata', 'null'::jsonb));
    INSERT INTO awa_queue.ready (rslot, priority, shard, slot, attempt, pos, job_id, run_lease, ready_at, queue)
    VALUES (v_rslot, p_priority, 0, v_slot, 0, id, id, 0, v_now, p_queue);
    -- What awa.wake does: a call would cost as much as both rows.
    PERFORM pg_notify(awa.queue_channel(p_queue), '') FROM awa.sleepers s
    WHERE s.name = p_queue AND s.until > clock_timestamp() AND coalesce(current_setting('awa.notify', true), '') <> 'off';
END $$;

CREATE FUNCTION awa_queue.insert_with_options(
    p_args text[], p_kinds text[], p_queues text[], p_priorities smallint[], p_max_attempts smallint[], p_opts text[],
    p_canonical boolean, OUT ids bigint[], OUT inserted boolean[]
) LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    v_now    timestamptz := clock_timestamp();
    v_slot   smallint := awa_queue.current_slot('segments');
    v_rslot  smallint := awa_queue.current_slot('ready');
    v_jobs   awa_queue.new_job[];
    v_job    awa_queue.new_job;
    v_holder bigint;
    v_name   text;
    v_first  timestamptz;
BEGIN
    -- Without the args, which would be copied with every look at the jobs, where they are stored from p_args.
    SELECT array_agg(ROW(ord, nextval('awa.job_id_seq'), coalesce(p_kinds[ord], p_kinds[1]), n.queue,
                         CASE WHEN p_canonical THEN p_args[ord]::jsonb END,
                         coalesce(p_priorities[ord], p_priorities[1]), coalesce(p_max_attempts[ord], p_max_attempts[1]),
                         awa_queue.choose_shard(n.queue, decode(o.opt ->> 'ordering_key', 'hex')),
                         CASE WHEN o.opt ? 'run_at' THEN (o.opt ->> 'run_at')::timestamptz
                              WHEN o.opt ? 'delay' THEN v_now + make_interval(secs => (o.opt ->> 'delay')::float8) END,
                         (o.opt ->> 'deadline_ms')::bigint, nullif(o.opt -> 'metadata', 'null'::jsonb),
                         CASE WHEN o.opt ? 'tags' THEN ARRAY(SELECT jsonb_array_elements_text(o.opt -> 'tags')) END,
                         decode(o.opt ->> 'unique_key', 'hex'), (o.opt ->> 'unique_states')::bit(8),
                         coalesce(o.opt ->> 'on_conflict', 'raise'), true)::awa_queue.new_job ORDER BY ord)
    INTO v_jobs
    FROM generate_series(1, cardinality(p_args)) ord
    CROSS JOIN LATERAL (SELECT p_opts[ord]::jsonb AS opt) o
    CROSS JOIN LATERAL (SELECT coalesce(p_queues[ord], p_queues[1]) AS queue) n;

    PERFORM awa_queue.check_limits(p_kinds, p_queues, p_priorities, p_max_attempts);
    IF EXISTS (SELECT FROM unnest(v_jobs) j
               WHERE cardinality(j.tags) > 20 OR octet_length(j.unique_key) NOT BETWEEN 1 AND 200 OR j.deadline_ms < 1) THEN
        RAISE EXCEPTION 'a job has at most 20 tags, a unique key of 1 to 200 bytes and a deadline of a millisecond or more'
            USING ERRCODE = 'check_violation';
    END IF;
    -- Keys in one order everywhere, so that two batches with the same keys wait for each other rather than deadlock.
    FOR v_job IN SELECT * FROM unnest(v_jobs) j WHERE j.unique_key IS NOT NULL ORDER BY j.unique_key, j.ord LOOP
        IF v_job.unique_states IS NULL OR get_bit(v_job.unique_states, CASE WHEN v_job.run_at IS NULL THEN 1 ELSE 0 END) = 0 THEN
            CONTINUE;
        END IF;
        v_holder := awa_queue.take_claim(v_job.unique_key, v_job.job_id);
        IF v_holder IS NULL THEN
            CONTINUE;
        ELSIF v_job.on_conflict = 'raise' AND EXISTS (SELECT FROM unnest(v_jobs) j WHERE j.job_id = v_holder) THEN
            RAISE EXCEPTION 'two jobs of this batch have the same unique key'
                USING ERRCODE = 'unique_violation', CONSTRAINT = 'idx_awa_jobs_unique',
                      HINT = 'on_conflict return_existing or skip inserts the first of them';
        ELSIF v_job.on_conflict = 'raise' THEN
            RAISE EXCEPTION 'another job holds this unique key: job %', v_holder
                USING ERRCODE = 'unique_violation', CONSTRAINT = 'idx_awa_jobs_unique', DETAIL = v_holder::text,
                      HINT = 'on_conflict return_existing or skip inserts nothing instead';
        END IF;
        v_jobs[v_job.ord].job_id := v_holder;
        v_jobs[v_job.ord].inserted := false;
    END LOOP;

    IF p_canonical THEN
        PERFORM awa.insert_canonical(v_jobs, v_now);
    ELSE
        WITH job AS MATERIALIZED (SELECT * FROM unnest(v_jobs) j WHERE j.inserted AND j.run_at IS NULL),
        bodied AS (
            INSERT INTO awa_queue.bodies (slot, priority, max_attempts, shard, job_id, created_at, kind, queue, args, deadline_ms,
                                          metadata, tags, unique_key, unique_states)
            SELECT v_slot, j.priority, j.max_attempts, j.shard, j.job_id, v_now, j.kind, j.queue, p_args[j.ord]::jsonb, j.deadline_ms,
                   j.metadata, j.tags, j.unique_key, j.unique_states FROM job j)
        INSERT INTO awa_queue.ready (rslot, priority, shard, slot, attempt, pos, job_id, run_lease, ready_at, queue)
        SELECT v_rslot, j.priority, j.shard, v_slot, 0, j.job_id, j.job_id, 0, v_now, j.queue FROM job j;

        INSERT INTO awa_queue.deferred_jobs (job_id, kind, queue, state, args, priority, max_attempts, shard, run_at, created_at,
                                             deadline_ms, metadata, tags, unique_key, unique_states)
        SELECT j.job_id, j.kind, j.queue, 'scheduled', p_args[j.ord]::jsonb, j.priority, j.max_attempts, j.shard, j.run_at, v_now,
               j.deadline_ms, j.metadata, j.tags, j.unique_key, j.unique_states
        FROM unnest(v_jobs) j WHERE j.inserted AND j.run_at IS NOT NULL;
    END IF;

    FOR v_name IN SELECT DISTINCT j.queue FROM unnest(v_jobs) j WHERE j.inserted AND j.run_at IS NULL LOOP
        PERFORM awa.wake(v_name, awa.queue_channel(v_name));
    END LOOP;
    SELECT min(j.run_at) INTO v_first FROM unnest(v_jobs) j WHERE j.inserted AND j.run_at IS NOT NULL;
    PERFORM awa_queue.due_at(v_first);
    SELECT array_agg(j.job_id ORDER BY j.ord), array_agg(j.inserted ORDER BY j.ord) INTO ids, inserted FROM unnest(v_jobs) j;
END $$;

-- Tell a sleeping promoter that something is due before it meant to look again. Its mark names the instant of its next look.
CREATE FUNCTION awa_queue.due_at(p_due timestamptz) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    IF p_due IS NOT NULL AND coalesce(current_setting('awa.notify', true), '') <> 'off'
       AND EXISTS (SELECT FROM awa.sleepers s WHERE s.name = 'awa:due' AND s.until > p_due AND s.until > clock_timestamp()) THEN
        PERFORM pg_notify('awa:due', '');
    END IF;
END $$;

-- The same for callers whose transaction must survive a taken key: nothing is inserted, `conflict` says why, `holder` names the job.
-- Any other failure raises. The handler costs a subtransaction, so this is for batches in which a key may be taken.
CREATE FUNCTION awa.insert_jobs_or_conflict(
    p_args text[], p_kinds text[], p_queues text[], p_priorities smallint[], p_max_attempts smallint[],
    p_opts text[] DEFAULT NULL, OUT ids bigint[], OUT inserted boolean[], OUT conflict text, OUT holder bigint
) LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    v_constraint text;
    v_detail     text;
BEGIN
    SELECT r.ids, r.inserted INTO ids, inserted
    FROM awa.insert_jobs(p_args, p_kinds, p_queues, p_priorities, p_max_attempts, p_opts) r;
EXCEPTION WHEN unique_violation THEN
    GET STACKED DIAGNOSTICS v_constraint = CONSTRAINT_NAME, v_detail = PG_EXCEPTION_DETAIL, conflict = MESSAGE_TEXT;
    IF v_constraint <> 'idx_awa_jobs_unique' THEN
        RAISE;
    END IF;
    holder := nullif(v_detail, '')::bigint;
END $$;

-- An instant a producer wrote as text. It must name its offset: what the session's TimeZone is must not matter. The bounds are
-- those of core/validation.py: every driver can read back what lies between them.
CREATE FUNCTION awa_queue.read_instant(p_text text) RETURNS timestamptz LANGUAGE plpgsql STABLE SET search_path = pg_catalog AS $$
DECLARE v_instant timestamptz;
BEGIN
    IF p_text !~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]+)?)?(Z|[+-][0-9]{2}(:?[0-9]{2})?)$' THEN
        RAISE EXCEPTION 'run_at must be ISO 8601 text with an offset, such as 2026-01-31T09:00:00Z, not %', left(p_text, 60)
            USING ERRCODE = 'invalid_datetime_format';
    END IF;
    v_instant := p_text::timestamptz;
    IF v_instant NOT BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-30 00:00:00+00' THEN
        RAISE EXCEPTION 'run_at must lie between 0001-01-02 and 9999-12-30' USING ERRCODE = 'datetime_field_overflow';
    END IF;
    RETURN v_instant;
END $$;

-- What is wrong with the options of awa.insert_job (NULL: nothing): unknown names, other types, what cannot be meant.
CREATE FUNCTION awa_queue.options_fault(p_opts jsonb) RETURNS text LANGUAGE plpgsql STABLE SET search_path = pg_catalog AS $$
DECLARE v_fault text;
BEGIN
    SELECT string_agg(CASE WHEN t.type IS NULL THEN 'unknown option: ' || left(o.key, 60)
                           ELSE o.key || ' must be of type ' || t.type || ', not ' || jsonb_typeof(o.value) END, '; ' ORDER BY o.key)
    INTO v_fault
    FROM jsonb_each(p_opts) o
    LEFT JOIN (VALUES ('queue', 'string'), ('priority', 'number'), ('max_attempts', 'number'), ('run_at', 'string'), ('delay', 'number'),
                      ('deadline', 'number'), ('metadata', 'object'), ('tags', 'array'), ('unique_key', 'string'),
                      ('unique_states', 'array'), ('on_conflict', 'string'), ('ordering_key', 'string')) t (key, type) USING (key)
    WHERE t.type IS DISTINCT FROM jsonb_typeof(o.value);
    IF v_fault IS NOT NULL THEN
        RETURN v_fault;
    END IF;
    RETURN CASE
        WHEN p_opts ? 'run_at' AND p_opts ? 'delay' THEN 'give run_at or delay, not both'
        WHEN (p_opts ->> 'delay')::numeric < 0 THEN 'delay must not be negative'
        WHEN (p_opts ->> 'deadline')::numeric < 0.001 THEN 'deadline must be at least a millisecond'
        WHEN p_opts ->> 'on_conflict' NOT IN ('raise', 'return_existing', 'skip') THEN 'on_conflict is raise, return_existing or skip'
        WHEN p_opts ->> 'unique_key' !~ '^([0-9A-Fa-f]{2}){1,200}$' THEN 'unique_key must be 1 to 200 bytes in hex'
        WHEN NOT p_opts ? 'unique_key' AND p_opts ?| ARRAY['unique_states', 'on_conflict']
            THEN 'unique_states and on_conflict mean nothing without a unique_key'
        WHEN EXISTS (SELECT FROM jsonb_array_elements(p_opts -> 'unique_states') s
                     WHERE s NOT IN (SELECT to_jsonb(v) FROM unnest(enum_range(NULL::awa.job_state)) v))
            THEN 'unique_states must be names of states'
        WHEN NOT p_opts -> 'unique_states' ? CASE WHEN p_opts ?| ARRAY['run_at', 'delay'] THEN 'scheduled' ELSE 'available' END
            THEN 'unique_states must include the state this job is inserted in, available or (with run_at or delay) scheduled'
        WHEN octet_length(p_opts ->> 'ordering_key') NOT BETWEEN 1 AND 1024 THEN 'ordering_key must have 1 to 1024 bytes'
        WHEN EXISTS (SELECT FROM jsonb_array_elements(p_opts -> 'tags') t
                     WHERE jsonb_typeof(t) <> 'string' OR length(t #>> '{}') NOT BETWEEN 1 AND 200)
            THEN 'tags must be strings of 1 to 200 characters'
        WHEN EXISTS (SELECT FROM jsonb_object_keys(p_opts -> 'metadata') k
                     WHERE (k LIKE 'awa:%' AND k <> 'awa:traceparent') OR k LIKE '$_awa$_%' ESCAPE '$'
                        OR k IN ('cron_name', 'cron_fire_time', 'triggered_manually'))
            THEN 'metadata keys awa:*, _awa_*, cron_name, cron_fire_time and triggered_manually are reserved'
    END;
END $$;

-- The stable producer function for any language. opts: queue, priority, max_attempts, run_at (ISO text with offset), delay (s),
-- deadline (s), metadata, tags, unique_key (hex), unique_states (names, default every state but failed and cancelled),
-- on_conflict, ordering_key (text). A null option counts as absent; what is unknown or cannot be meant is refused.
CREATE FUNCTION awa.insert_job(p_kind text, p_args jsonb DEFAULT '{}', p_opts jsonb DEFAULT '{}', OUT id bigint, OUT inserted boolean)
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    v_opts  jsonb;
    v_rest  jsonb;
    v_fault text;
    v_mask  text;
BEGIN
    IF jsonb_typeof(p_args) <> 'object' OR jsonb_typeof(p_opts) <> 'object' THEN
        RAISE EXCEPTION 'args and options must be JSON objects' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT coalesce(jsonb_object_agg(o.key, o.value), '{}') INTO v_opts FROM jsonb_each(p_opts) o WHERE o.value <> 'null';
    v_fault := awa_queue.options_fault(v_opts);
    IF v_fault IS NOT NULL THEN
        RAISE EXCEPTION '%', v_fault USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF v_opts ? 'unique_key' THEN
        SELECT string_agg(CASE WHEN NOT v_opts ? 'unique_states' THEN CASE WHEN s IN ('failed', 'cancelled') THEN '0' ELSE '1' END
                               WHEN v_opts -> 'unique_states' ? s::text THEN '1' ELSE '0' END, '' ORDER BY s)
        INTO v_mask FROM unnest(enum_range(NULL::awa.job_state)) s;
    END IF;
    -- Delays and deadlines end at ten years (core/backoff.py), so that now + delay stays a date.
    v_rest := (v_opts - ARRAY['queue', 'priority', 'max_attempts', 'deadline']) || jsonb_strip_nulls(jsonb_build_object(
        'run_at', awa_queue.read_instant(v_opts ->> 'run_at'),
        'delay', CASE WHEN v_opts ? 'delay' THEN least((v_opts ->> 'delay')::numeric, 316224000) END,
        'deadline_ms', CASE WHEN v_opts ? 'deadline' THEN trunc(least((v_opts ->> 'deadline')::numeric, 316224000) * 1000) END,
        'unique_states', v_mask,
        'ordering_key', encode(convert_to(v_opts ->> 'ordering_key', 'UTF8'), 'hex')));
    SELECT r.id, r.inserted INTO id, inserted FROM awa.insert_one(
        p_kind, coalesce(v_opts ->> 'queue', 'default'), coalesce(p_args, '{}')::text, coalesce((v_opts ->> 'priority')::smallint, 2::smallint),
        coalesce((v_opts ->> 'max_attempts')::smallint, 25::smallint), CASE WHEN v_rest <> '{}' THEN v_rest::text END) r;
END $$;
