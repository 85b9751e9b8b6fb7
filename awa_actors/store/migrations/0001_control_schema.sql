-- The control schema: what both storage planes share, and the small tables of the runtime.

CREATE TYPE awa.job_state AS ENUM
    ('scheduled', 'available', 'running', 'completed', 'retryable', 'failed', 'cancelled', 'waiting_external');

-- One sequence numbers the jobs of both planes: a job keeps its id when it changes plane.
-- It also numbers positions, so a job that becomes available again queues behind those that came before.
CREATE SEQUENCE awa.job_id_seq AS bigint;

CREATE TABLE awa.job_unique_claims (
    unique_key bytea NOT NULL CONSTRAINT idx_awa_jobs_unique PRIMARY KEY,
    job_id     bigint NOT NULL
);

-- Settings of a queue. A queue needs no row here to exist.
CREATE TABLE awa.queues (
    queue                     text PRIMARY KEY CHECK (octet_length(queue) BETWEEN 1 AND 200),
    paused                    boolean NOT NULL DEFAULT false,
    paused_at                 timestamptz,
    paused_by                 text,
    paused_until              timestamptz,
    shards                    smallint NOT NULL DEFAULT 1 CHECK (shards BETWEEN 1 AND 64),
    lanes                     smallint NOT NULL DEFAULT 1,   -- how many shards claims look at: the most there ever were
    override_poll_interval_ms integer CHECK (override_poll_interval_ms > 0),
    override_claim_batch      integer CHECK (override_claim_batch > 0),
    override_rate_limit       float8 CHECK (override_rate_limit > 0),
    override_deadline_ms      bigint CHECK (override_deadline_ms >= 0),
    overrides_updated_at      timestamptz,
    completed_retention       interval,
    failed_retention          interval,
    dlq_enabled               boolean,
    dlq_retention             interval
);

-- Jobs stay in the shard they were put in, so claims go on looking there when a queue gets fewer shards.
CREATE FUNCTION awa.keep_lanes() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    NEW.lanes := greatest(NEW.shards, NEW.lanes);
    RETURN NEW;
END $$;
CREATE TRIGGER keep_lanes BEFORE INSERT OR UPDATE ON awa.queues FOR EACH ROW EXECUTE FUNCTION awa.keep_lanes();

-- One row per process start. An attempt is alive while its instance is: one small write per process and beat,
-- not one per attempt. `dead_at` is set once by whoever finds the beat too old; there is no way back for this id.
CREATE TABLE awa.instances (
    id            uuid PRIMARY KEY,
    role          text NOT NULL,
    hostname      text NOT NULL,
    pid           integer NOT NULL,
    version       text NOT NULL,
    state         text NOT NULL DEFAULT 'running',
    started_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_beat_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    stale_after   interval NOT NULL,
    dead_at       timestamptz,
    kinds         text[] NOT NULL DEFAULT '{}',
    queues        jsonb NOT NULL DEFAULT '{}',
    lanes         jsonb NOT NULL DEFAULT '{}',
    details       jsonb NOT NULL DEFAULT '{}'
) WITH (fillfactor = 50);

-- The lease of the maintenance leader. A renewal is a compare-and-swap on (holder, term).
CREATE SEQUENCE awa.leadership_term_seq AS bigint;
CREATE TABLE awa.leadership (
    name             text PRIMARY KEY,
    holder           uuid,
    term             bigint NOT NULL,
    expires_at       timestamptz NOT NULL,
    backend_pid      integer,
    backend_start    timestamptz,
    sessions_matter  boolean NOT NULL DEFAULT true,
    acquired_at      timestamptz NOT NULL,
    renewed_at       timestamptz NOT NULL,
    resign_requested boolean NOT NULL DEFAULT false
) WITH (fillfactor = 50);

-- Who sleeps and wants to be woken: a producer notifies only a queue that is marked here.
CREATE TABLE awa.sleepers (
    name  text PRIMARY KEY,
    until timestamptz NOT NULL
) WITH (fillfactor = 50);

-- What dashboards read: one row per queue and per kind, written by the admin refresh lane.
CREATE TABLE awa.queue_stats (
    queue               text PRIMARY KEY,
    available           bigint NOT NULL,
    running             bigint NOT NULL,
    scheduled           bigint NOT NULL,
    retryable           bigint NOT NULL,
    waiting_external    bigint NOT NULL,
    failed              bigint NOT NULL,
    cancelled           bigint NOT NULL,
    completed_last_hour bigint NOT NULL,
    dead_letters        bigint NOT NULL,
    oldest_ready_at     timestamptz,
    refreshed_at        timestamptz NOT NULL
);
CREATE TABLE awa.kind_stats (
    kind                text PRIMARY KEY,
    live                bigint NOT NULL,
    failed              bigint NOT NULL,
    completed_last_hour bigint NOT NULL,
    queues              text[] NOT NULL,
    refreshed_at        timestamptz NOT NULL
);

-- Where jobs live and how far a move between planes has come; a fresh install is active at once.
CREATE TABLE awa.storage_transition_state (
    singleton        boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    current_engine   text NOT NULL CHECK (btrim(current_engine) <> ''),
    prepared_engine  text CHECK (btrim(prepared_engine) <> ''),
    state            text NOT NULL CHECK (state IN ('canonical', 'prepared', 'mixed_transition', 'active')),
    transition_epoch bigint NOT NULL DEFAULT 0,
    details          jsonb NOT NULL DEFAULT '{}',
    entered_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    finalized_at     timestamptz,
    CHECK (state NOT IN ('prepared', 'mixed_transition') OR prepared_engine IS NOT NULL)
);
INSERT INTO awa.storage_transition_state (current_engine, state, details, finalized_at)
VALUES ('queue_storage', 'active', '{"schema": "awa_queue"}', clock_timestamp());

-- The channel on which a queue's wake-ups travel: names too long for a channel, or reserved, are hashed.
CREATE FUNCTION awa.queue_channel(p_queue text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog AS $$
    SELECT CASE WHEN octet_length(p_queue) <= 59 AND p_queue NOT IN ('cancel', 'leader', 'storage', 'callback', 'due')
                THEN 'awa:' || p_queue ELSE 'awa#' || md5(p_queue) END
$$;

-- Wake whoever waits on a name, if anybody said so. `SET awa.notify = off` (session, role or database) turns it off:
-- for prepared transactions, and where the commit lock of NOTIFY costs more than a poll.
CREATE FUNCTION awa.wake(p_name text, p_channel text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
BEGIN
    IF coalesce(current_setting('awa.notify', true), '') <> 'off'
       AND EXISTS (SELECT FROM awa.sleepers s WHERE s.name = p_name AND s.until > clock_timestamp()) THEN
        PERFORM pg_notify(p_channel, '');
    END IF;
END $$;

CREATE FUNCTION awa.state_bit(p_state awa.job_state) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog AS $$
    SELECT CASE p_state WHEN 'scheduled' THEN 0 WHEN 'available' THEN 1 WHEN 'running' THEN 2 WHEN 'completed' THEN 3
                        WHEN 'retryable' THEN 4 WHEN 'failed' THEN 5 WHEN 'cancelled' THEN 6 ELSE 7 END
$$;
