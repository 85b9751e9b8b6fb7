-- The outbox of rescues, and follow-ups that are declared in the database.

-- Specs whose rescues must not lose their follow-ups. Declared here by whoever has them, so that a leader without any
-- registry writes the rows too.
CREATE TABLE awa.outbox_kinds (
    kind        text NOT NULL,
    spec        text NOT NULL,
    declared_by text NOT NULL,
    declared_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (kind, spec)
);

-- One row per rescue and spec, written by the rescue's own transaction, without any user code. `tries` is counted before
-- the spec is evaluated: one that ends its process is counted too.
CREATE TABLE awa.rescue_outbox (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind       text NOT NULL,
    spec       text NOT NULL,
    job        jsonb NOT NULL,
    reason     text NOT NULL,
    tries      integer NOT NULL DEFAULT 0,
    error      text,
    next_try   timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX rescue_outbox_next ON awa.rescue_outbox (spec, next_try);

-- Called by every rescue with the jobs as they landed, `rescue_reason` among their fields. Whatever goes wrong here, the
-- rescue stands: then the row is missing, and the server's log says so.
CREATE FUNCTION awa.write_outbox(p_rescued jsonb[]) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM awa.outbox_kinds) THEN
        RETURN;
    END IF;
    BEGIN
        INSERT INTO awa.rescue_outbox (kind, spec, job, reason)
        SELECT k.kind, k.spec, r.job - 'rescue_reason', r.job ->> 'rescue_reason'
        FROM unnest(p_rescued) AS r (job) JOIN awa.outbox_kinds k ON k.kind = r.job ->> 'kind';
    EXCEPTION WHEN OTHERS THEN
        RAISE WARNING 'the outbox rows of % rescues could not be written: %', cardinality(p_rescued), SQLERRM;
    END;
END $$;

-- Follow-ups declared as data: every process that moves a job of `kind` enqueues them, also one that has no code for it.
-- Owned by an application; a higher version replaces a lower one, never the other way round.
CREATE TABLE awa.follow_up_specs (
    application text NOT NULL CHECK (length(application) BETWEEN 1 AND 200),
    name        text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
    version     integer NOT NULL CHECK (version >= 1),
    kind        text NOT NULL CHECK (length(kind) BETWEEN 1 AND 200),
    outcome     text NOT NULL CHECK (outcome IN ('completed', 'retried', 'exhausted', 'cancelled', 'waiting_for_callback', 'rescued')),
    definition  jsonb NOT NULL,
    declared_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (application, name)
);
CREATE INDEX follow_up_specs_trigger ON awa.follow_up_specs (kind, outcome);
