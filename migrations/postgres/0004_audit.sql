-- Who changed what; never a value. It outlives what it speaks of, so it refers to nothing.
CREATE TABLE mcp_audit (
    number      BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    made_at     TIMESTAMP(0) NOT NULL DEFAULT (now() AT TIME ZONE 'UTC'),
    actor       VARCHAR(255) COLLATE "C" NOT NULL,
    action      VARCHAR(32) COLLATE "C" NOT NULL,
    server_id   VARCHAR(32) COLLATE "C" NOT NULL,
    server_name VARCHAR(64) COLLATE "C" NOT NULL,
    user_id     VARCHAR(255) COLLATE "C" NOT NULL DEFAULT '',
    fields      TEXT COLLATE "C" NOT NULL
);
