-- The move from the canonical plane to the queue plane: canonical, prepared, mixed_transition, active. Every step locks the singleton;
-- what a step waits for is said in words, by the same function that refuses it.

-- Everybody who caches the state looks again, whoever changed it and however.
CREATE FUNCTION awa.tell_storage() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    PERFORM pg_notify('awa:storage', NEW.state);
    RETURN NULL;
END $$;
CREATE TRIGGER tell_storage AFTER INSERT OR UPDATE ON awa.storage_transition_state
FOR EACH ROW EXECUTE FUNCTION awa.tell_storage();

CREATE FUNCTION awa.keep_storage() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    RAISE EXCEPTION 'this row says where jobs are: it is changed by the functions awa.storage_…, and never deleted'
        USING ERRCODE = 'object_not_in_prerequisite_state', CONSTRAINT = 'awa_storage_gate';
END $$;
CREATE TRIGGER keep_storage BEFORE DELETE OR TRUNCATE ON awa.storage_transition_state FOR EACH STATEMENT EXECUTE FUNCTION awa.keep_storage();

-- The name of the queue plane's schema, for every gate and every reader. What is not recorded is the name that these functions use.
CREATE FUNCTION awa.storage_schema() RETURNS text LANGUAGE sql STABLE SET search_path = pg_catalog AS $$
    SELECT coalesce((SELECT nullif(btrim(s.details ->> 'schema'), '') FROM awa.storage_transition_state s),
                    split_part('awa_queue.', '.', 1))
$$;

CREATE TYPE awa.storage_state AS (
    current_engine text, active_engine text, prepared_engine text, state text, transition_epoch bigint, details jsonb,
    entered_at timestamptz, updated_at timestamptz, finalized_at timestamptz);

-- How things stand.
CREATE FUNCTION awa.storage_status() RETURNS awa.storage_state LANGUAGE sql STABLE SET search_path = pg_catalog AS $$
    SELECT s.current_engine,
           CASE WHEN s.state = 'mixed_transition' THEN s.prepared_engine ELSE s.current_engine END,
           s.prepared_engine, s.state, s.transition_epoch, s.details, s.entered_at, s.updated_at, s.finalized_at
    FROM awa.storage_transition_state s
$$;

-- The singleton, locked for a step. A row lock alone would wait for ever where producers overlap without end, each sharing it; the lock
-- on the table is a fair queue. Whoever writes jobs meanwhile stands behind us, so we wait for those before us for a moment only.
CREATE FUNCTION awa.lock_storage() RETURNS awa.storage_transition_state LANGUAGE plpgsql
SET search_path = pg_catalog SET lock_timeout = '1s' AS $$
DECLARE s awa.storage_transition_state; v_holders text;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'this needs a transaction that is read committed: an older snapshot would not see what was written before the lock'
            USING ERRCODE = 'active_sql_transaction';
    END IF;
    LOCK TABLE awa.storage_transition_state IN EXCLUSIVE MODE;
    SELECT x.* INTO s FROM awa.storage_transition_state x FOR UPDATE;
    RETURN s;
EXCEPTION WHEN lock_not_available THEN
    SELECT string_agg(DISTINCT l.pid::text, ', ') INTO v_holders FROM pg_locks l
    WHERE l.relation = 'awa.storage_transition_state'::regclass AND l.granted AND l.mode <> 'AccessShareLock' AND l.pid <> pg_backend_pid();
    RAISE EXCEPTION 'a transaction that has written jobs is still open (server pid %): wait for it or end it', coalesce(v_holders, 'unknown')
        USING ERRCODE = 'lock_not_available';
END $$;

-- Jobs that the canonical plane still has to see through. What has ended there is history and holds nothing up.
CREATE FUNCTION awa.canonical_backlog_by_state() RETURNS TABLE (state text, jobs bigint) LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
BEGIN
    RETURN QUERY SELECT h.state::text, count(*) FROM awa.jobs_hot h
                 WHERE h.state IN ('available', 'running', 'waiting_external') GROUP BY h.state
                 UNION ALL SELECT d.state::text, count(*) FROM awa.scheduled_jobs d GROUP BY d.state ORDER BY 1;
END $$;

CREATE FUNCTION awa.canonical_live_backlog() RETURNS bigint LANGUAGE sql SET search_path = pg_catalog AS $$
    SELECT coalesce(sum(b.jobs), 0)::bigint FROM awa.canonical_backlog_by_state() b
$$;

-- What the queue plane holds that going back would strand. Ended jobs and dead letters are read, and run again, in every state.
CREATE FUNCTION awa.queue_plane_rows() RETURNS TABLE (name text, rows bigint) LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    RETURN QUERY SELECT c.name, c.rows FROM (
        SELECT 'ready', count(*) FROM awa_queue.ready UNION ALL SELECT 'parked_ready', count(*) FROM awa_queue.parked_ready
        UNION ALL SELECT 'leases', count(*) FROM awa_queue.leases UNION ALL SELECT 'deferred_jobs', count(*) FROM awa_queue.deferred_jobs
        UNION ALL SELECT 'done', count(*) FROM awa_queue.done) c (name, rows) WHERE c.rows > 0;
END $$;

-- What a live process can do: run the queue plane, only drain the canonical one, or only know that one (an older release).
CREATE FUNCTION awa.storage_runtimes() RETURNS TABLE (id uuid, role text, capability text, described text) LANGUAGE sql STABLE
SET search_path = pg_catalog AS $$
    SELECT i.id, i.role, coalesce(i.details ->> 'storage', CASE i.role WHEN 'worker' THEN 'canonical' ELSE 'none' END),
           format('%s %s on %s', i.role, i.pid, i.hostname)
    FROM awa.instances i WHERE i.dead_at IS NULL AND i.last_beat_at + i.stale_after >= clock_timestamp()
$$;

-- Why a step would be refused now; nothing: it would not be. Its gate and `storage status` ask the same question.
CREATE FUNCTION awa.storage_blockers(p_step text) RETURNS SETOF text LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    v_state text; v_prepared text; v_schema text := awa.storage_schema(); v_names text; v_count bigint;
BEGIN
    SELECT s.state, s.prepared_engine INTO v_state, v_prepared FROM awa.storage_status() s;
    -- In the wrong state the state is all there is to say.
    IF p_step = 'enter_mixed_transition' AND v_state <> 'prepared' THEN
        RETURN NEXT format('the state is %s: %s', v_state, CASE v_state WHEN 'canonical' THEN 'prepare an engine first'
                           ELSE 'the transition has been entered already' END);
        RETURN;
    ELSIF p_step = 'finalize' AND v_state <> 'mixed_transition' THEN
        RETURN NEXT format('the state is %s: %s', v_state, CASE v_state WHEN 'active' THEN 'the transition has been finalized already'
                           ELSE 'enter the mixed transition first' END);
        RETURN;
    ELSIF p_step = 'abort' AND v_state = 'active' THEN
        RETURN NEXT 'the state is active: the queue plane is final';
        RETURN;
    END IF;
    IF p_step IN ('enter_mixed_transition', 'finalize') THEN
        IF v_prepared <> 'queue_storage' THEN
            RETURN NEXT format('the prepared engine is %s: this release runs queue_storage', v_prepared);
        END IF;
        SELECT string_agg(r.described, ', ' ORDER BY r.described) INTO v_names FROM awa.storage_runtimes() r WHERE r.capability = 'canonical';
        IF v_names IS NOT NULL THEN
            RETURN NEXT format('live processes know only the canonical plane (%s): upgrade or stop them', v_names);
        END IF;
    END IF;
    IF p_step = 'enter_mixed_transition' THEN
        IF to_regclass(format('%I.ready', v_schema)) IS NULL OR to_regclass(format('%I.deferred_jobs', v_schema)) IS NULL THEN
            RETURN NEXT format('schema %s has no queue plane: run the migrations, or prepare that schema', v_schema);
        END IF;
        IF NOT EXISTS (SELECT FROM awa.storage_runtimes() r WHERE r.role = 'worker' AND r.capability = 'queue_storage') THEN
            RETURN NEXT 'no live worker runs the queue plane: start one of this release';
        END IF;
    ELSIF p_step = 'finalize' THEN
        SELECT sum(b.jobs), string_agg(b.jobs || ' ' || b.state, ', ') INTO v_count, v_names FROM awa.canonical_backlog_by_state() b;
        IF v_count > 0 THEN
            RETURN NEXT format('the canonical plane has %s live jobs (%s): wait until they have moved or ended', v_count, v_names);
        END IF;
    ELSIF p_step = 'abort' AND v_state = 'mixed_transition' THEN
        SELECT sum(q.rows), string_agg(q.rows || ' ' || q.name, ', ') INTO v_count, v_names FROM awa.queue_plane_rows() q;
        IF v_count > 0 THEN
            RETURN NEXT format('the queue plane holds %s rows (%s): going back would strand them, so finalize', v_count, v_names);
        END IF;
        SELECT string_agg(r.described, ', ' ORDER BY r.described) INTO v_names FROM awa.storage_runtimes() r
        WHERE r.role = 'worker' AND r.capability = 'queue_storage';
        IF v_names IS NOT NULL THEN
            RETURN NEXT format('live workers run the queue plane (%s): stop them', v_names);
        END IF;
    END IF;
END $$;

CREATE FUNCTION awa.open_storage_gate(p_step text) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE v_blockers text;
BEGIN
    SELECT string_agg(b, '; ') INTO v_blockers FROM awa.storage_blockers(p_step) b;
    IF v_blockers IS NOT NULL THEN
        RAISE EXCEPTION '%', v_blockers USING ERRCODE = 'object_not_in_prerequisite_state', CONSTRAINT = 'awa_storage_gate';
    END IF;
END $$;

-- Name the engine to move to. Nothing moves yet. Repeating it changes nothing.
CREATE FUNCTION awa.storage_prepare(p_engine text, p_details jsonb DEFAULT '{}') RETURNS awa.storage_state LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    s awa.storage_transition_state := awa.lock_storage();
    v_schema text := awa.storage_schema();
    v_details jsonb := coalesce(p_details, '{}');
BEGIN
    IF coalesce(btrim(p_engine), '') = '' THEN
        RAISE EXCEPTION 'name the engine to prepare: queue_storage' USING ERRCODE = 'invalid_parameter_value';
    ELSIF p_engine NOT IN ('queue_storage', 'canonical') THEN
        RAISE EXCEPTION 'there is no storage engine %: this release has queue_storage', left(p_engine, 60)
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF (SELECT c.active_engine FROM awa.storage_status() c) = p_engine THEN
        RAISE EXCEPTION 'the engine % is active already: there is nothing to prepare', p_engine USING ERRCODE = 'invalid_parameter_value';
    ELSIF s.state NOT IN ('canonical', 'prepared') THEN
        RAISE EXCEPTION 'the state is %: an engine is prepared before that', s.state
            USING ERRCODE = 'object_not_in_prerequisite_state', CONSTRAINT = 'awa_storage_gate';
    ELSIF jsonb_typeof(v_details) <> 'object' THEN
        RAISE EXCEPTION 'details must be a JSON object' USING ERRCODE = 'invalid_parameter_value';
    ELSIF coalesce(v_details ->> 'schema', v_schema) <> v_schema THEN
        RAISE EXCEPTION 'the queue plane is in schema %, not in %: prepare that schema first', v_schema, left(v_details ->> 'schema', 63)
            USING ERRCODE = 'object_not_in_prerequisite_state', CONSTRAINT = 'awa_storage_gate';
    END IF;
    -- Always recorded, and what the mover was told stays.
    v_details := awa.mover_settings(s.details) || v_details || jsonb_build_object('schema', v_schema);
    IF s.state <> 'prepared' OR s.prepared_engine <> p_engine OR s.details <> v_details THEN
        UPDATE awa.storage_transition_state x SET state = 'prepared', prepared_engine = p_engine, details = v_details,
            transition_epoch = x.transition_epoch + 1, updated_at = clock_timestamp(),
            entered_at = CASE WHEN x.state = 'prepared' THEN x.entered_at ELSE clock_timestamp() END;
    END IF;
    RETURN awa.storage_status();
END $$;

CREATE FUNCTION awa.mover_settings(p_details jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE SET search_path = pg_catalog AS $$
    SELECT coalesce(jsonb_object_agg(d.key, d.value), '{}') FROM jsonb_each(p_details) d WHERE d.key LIKE 'mover\_%'
$$;

-- From here on new jobs go to the queue plane, and what the canonical plane has leaves it.
CREATE FUNCTION awa.storage_enter_mixed_transition() RETURNS awa.storage_state LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    PERFORM awa.lock_storage();
    PERFORM awa.open_storage_gate('enter_mixed_transition');
    UPDATE awa.storage_transition_state x SET state = 'mixed_transition', transition_epoch = x.transition_epoch + 1,
        details = x.details || jsonb_build_object('schema', awa.storage_schema()),
        entered_at = clock_timestamp(), updated_at = clock_timestamp();
    RETURN awa.storage_status();
END $$;

-- The canonical plane is empty, and nobody can fill it any more: what still could holds the lock that this waits for.
CREATE FUNCTION awa.storage_finalize() RETURNS awa.storage_state LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    PERFORM awa.lock_storage();
    PERFORM awa.open_storage_gate('finalize');
    UPDATE awa.storage_transition_state x SET state = 'active', current_engine = x.prepared_engine, prepared_engine = NULL,
        transition_epoch = x.transition_epoch + 1, entered_at = clock_timestamp(), updated_at = clock_timestamp(),
        finalized_at = clock_timestamp();
    RETURN awa.storage_status();
END $$;

-- Back to canonical, as long as that strands nothing. Where nothing was prepared there is nothing to do.
CREATE FUNCTION awa.storage_abort() RETURNS awa.storage_state LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE s awa.storage_transition_state := awa.lock_storage();
BEGIN
    IF s.state <> 'canonical' THEN
        PERFORM awa.open_storage_gate('abort');
        UPDATE awa.storage_transition_state x SET state = 'canonical', prepared_engine = NULL,
            transition_epoch = x.transition_epoch + 1, details = jsonb_build_object('schema', awa.storage_schema()),
            entered_at = clock_timestamp(), updated_at = clock_timestamp();
    END IF;
    RETURN awa.storage_status();
END $$;

-- The mover takes deferred, parked and ready jobs over while the transition is mixed. It can stand still, or go slowly (rows per
-- second; NULL: as fast as it can).
CREATE FUNCTION awa.storage_pause_mover(p_paused boolean) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    PERFORM awa.lock_storage();
    UPDATE awa.storage_transition_state x SET updated_at = clock_timestamp(),
        details = x.details || jsonb_build_object('mover_paused', p_paused);
END $$;

CREATE FUNCTION awa.storage_throttle_mover(p_rows_per_second float8) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    IF p_rows_per_second IS NOT NULL AND NOT p_rows_per_second BETWEEN 0.001 AND 1e9 THEN
        RAISE EXCEPTION 'rows per second must lie between 0.001 and 1e9' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM awa.lock_storage();
    UPDATE awa.storage_transition_state x SET updated_at = clock_timestamp(),
        details = x.details - 'mover_rows_per_second'
                  || CASE WHEN p_rows_per_second IS NULL THEN '{}' ELSE jsonb_build_object('mover_rows_per_second', p_rows_per_second) END;
END $$;

-- Give the queue plane another schema. Function bodies name it, so they are made again with the other name; tables, indexes, triggers
-- and grants know each other by number and stay as they are. False: it is there already.
CREATE FUNCTION awa.storage_prepare_schema(p_schema text) RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog
SET check_function_bodies = off AS $$
DECLARE
    s awa.storage_transition_state := awa.lock_storage();
    v_from text := awa.storage_schema();
    v_fault text;
    v_definition text;
BEGIN
    IF p_schema = v_from THEN
        RETURN false;
    ELSIF p_schema IS NULL OR p_schema !~ '^[a-z][a-z0-9_]{2,49}$' OR quote_ident(p_schema) <> p_schema OR p_schema LIKE 'pg\_%' THEN
        RAISE EXCEPTION 'the name of the schema must be 3 to 50 of a-z, 0-9 and _, begin with a letter, and be no word of SQL'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    v_fault := CASE
        WHEN v_from <> 'awa_queue' THEN format('the queue plane has been given schema %s already', v_from)
        WHEN to_regnamespace(p_schema) IS NOT NULL THEN format('there is a schema %s already', p_schema)
        WHEN s.state = 'mixed_transition' THEN 'the state is mixed_transition: jobs are on their way to the queue plane'
        WHEN EXISTS (SELECT FROM awa.queue_plane_rows()) THEN 'the queue plane has jobs'
        WHEN EXISTS (SELECT FROM awa.storage_runtimes()) THEN format('live processes use the queue plane under its name (%s): stop them',
            (SELECT string_agg(r.described, ', ') FROM awa.storage_runtimes() r)) END;
    IF v_fault IS NOT NULL THEN
        RAISE EXCEPTION '%', v_fault USING ERRCODE = 'object_not_in_prerequisite_state', CONSTRAINT = 'awa_storage_gate';
    END IF;
    EXECUTE format('ALTER SCHEMA %I RENAME TO %I', v_from, p_schema);
    FOR v_definition IN
        SELECT pg_get_functiondef(p.oid) FROM pg_proc p
        WHERE p.pronamespace IN ('awa'::regnamespace, p_schema::regnamespace) AND p.prokind IN ('f', 'p') AND position(v_from || '.' IN p.prosrc) > 0
    LOOP
        EXECUTE replace(v_definition, v_from || '.', p_schema || '.');
    END LOOP;
    UPDATE awa.storage_transition_state x SET details = x.details || jsonb_build_object('schema', p_schema), updated_at = clock_timestamp(),
        transition_epoch = x.transition_epoch + 1;
    RETURN true;
END $$;

-- Callbacks for sessions of other people, who cannot know in which schema the queue plane is.
CREATE FUNCTION awa.open_callback(p_callback uuid) RETURNS jsonb LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    RETURN awa_queue.open_callback(p_callback);
END $$;

CREATE FUNCTION awa.unless_followed(p_answer jsonb, p_followed text[]) RETURNS jsonb LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    RETURN awa_queue.unless_followed(p_answer, p_followed);
END $$;

CREATE FUNCTION awa.complete_together(
    p_callbacks uuid[], p_payloads text[], p_followed text[], OUT completed bigint[], OUT answers text[], OUT is_left boolean[]
) LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    SELECT t.completed, t.answers, t.is_left INTO completed, answers, is_left
    FROM awa_queue.complete_together(p_callbacks, p_payloads, p_followed) t;
END $$;
