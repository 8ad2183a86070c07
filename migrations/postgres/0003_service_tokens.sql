-- What a program may read the config API with, for any user. Of the token itself only a hash is kept.
CREATE TABLE mcp_service_tokens (
    id         VARCHAR(32) COLLATE "C" NOT NULL PRIMARY KEY,
    name       VARCHAR(64) COLLATE "C" NOT NULL UNIQUE,
    hash       VARCHAR(64) COLLATE "C" NOT NULL,
    is_admin   BOOLEAN NOT NULL DEFAULT FALSE,
    created_at TIMESTAMP(0) NOT NULL DEFAULT (now() AT TIME ZONE 'UTC')
);
