-- Who changed what; never a value. It outlives what it speaks of, so it refers to nothing.
CREATE TABLE mcp_audit (
    number      INTEGER PRIMARY KEY AUTOINCREMENT,
    made_at     TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    actor       VARCHAR(255) NOT NULL,
    action      VARCHAR(32) NOT NULL,
    server_id   VARCHAR(32) NOT NULL,
    server_name VARCHAR(64) NOT NULL,
    user_id     VARCHAR(255) NOT NULL DEFAULT '',
    fields      TEXT NOT NULL
);
