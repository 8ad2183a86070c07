-- What is compared is compared byte by byte, whatever the collation of the database; times are UTC.
CREATE TABLE mcp_servers (
    id                   VARCHAR(32) COLLATE "C" NOT NULL PRIMARY KEY,
    name                 VARCHAR(64) COLLATE "C" NOT NULL UNIQUE,
    display_name         VARCHAR(255),
    description          TEXT,
    transport_type       VARCHAR(16) NOT NULL DEFAULT 'stdio'
                         CHECK (transport_type IN ('stdio', 'http', 'sse', 'statelessHttp')),
    command              TEXT,
    args                 TEXT,
    env_template         TEXT,
    url                  TEXT,
    headers              TEXT,
    is_public            BOOLEAN NOT NULL DEFAULT FALSE,
    is_enabled           BOOLEAN NOT NULL DEFAULT TRUE,
    requires_credentials BOOLEAN NOT NULL DEFAULT FALSE,
    credential_fields    TEXT,
    isolation            VARCHAR(16) CHECK (isolation IN ('shared', 'user', 'session')),
    tool_meta            TEXT,
    tool_display         TEXT,
    created_at           TIMESTAMP(0) NOT NULL DEFAULT (now() AT TIME ZONE 'UTC'),
    updated_at           TIMESTAMP(0) NOT NULL DEFAULT (now() AT TIME ZONE 'UTC')
);

-- The system's defaults: one row a server.
CREATE TABLE mcp_credentials (
    id            VARCHAR(32) COLLATE "C" NOT NULL PRIMARY KEY,
    mcp_server_id VARCHAR(32) COLLATE "C" NOT NULL REFERENCES mcp_servers (id) ON DELETE CASCADE,
    credentials   TEXT NOT NULL,
    is_enabled    BOOLEAN NOT NULL DEFAULT TRUE,
    created_at    TIMESTAMP(0) NOT NULL DEFAULT (now() AT TIME ZONE 'UTC'),
    updated_at    TIMESTAMP(0) NOT NULL DEFAULT (now() AT TIME ZONE 'UTC'),
    UNIQUE (mcp_server_id)
);

CREATE TABLE mcp_user_credentials (
    id            VARCHAR(32) COLLATE "C" NOT NULL PRIMARY KEY,
    user_id       VARCHAR(255) COLLATE "C" NOT NULL,
    mcp_server_id VARCHAR(32) COLLATE "C" NOT NULL REFERENCES mcp_servers (id) ON DELETE CASCADE,
    credentials   TEXT NOT NULL,
    is_enabled    BOOLEAN NOT NULL DEFAULT TRUE,
    created_at    TIMESTAMP(0) NOT NULL DEFAULT (now() AT TIME ZONE 'UTC'),
    updated_at    TIMESTAMP(0) NOT NULL DEFAULT (now() AT TIME ZONE 'UTC'),
    UNIQUE (user_id, mcp_server_id)
);

CREATE INDEX mcp_user_credentials_server ON mcp_user_credentials (mcp_server_id);

-- user_scope: the user whose connection listed the tool, '' for a shared one.
CREATE TABLE mcp_tools_cache (
    id            VARCHAR(32) COLLATE "C" NOT NULL PRIMARY KEY,
    mcp_server_id VARCHAR(32) COLLATE "C" NOT NULL REFERENCES mcp_servers (id) ON DELETE CASCADE,
    user_scope    VARCHAR(255) COLLATE "C" NOT NULL DEFAULT '',
    tool_name     VARCHAR(255) COLLATE "C" NOT NULL,
    description   TEXT,
    input_schema  TEXT,
    tool          TEXT NOT NULL,
    created_at    TIMESTAMP(0) NOT NULL DEFAULT (now() AT TIME ZONE 'UTC'),
    updated_at    TIMESTAMP(0) NOT NULL DEFAULT (now() AT TIME ZONE 'UTC'),
    UNIQUE (mcp_server_id, user_scope, tool_name)
);
