-- What a program may read the config API with, for any user. Of the token itself only a hash is kept.
CREATE TABLE mcp_service_tokens (
    id         VARCHAR(32) NOT NULL PRIMARY KEY,
    name       VARCHAR(64) NOT NULL UNIQUE,
    hash       VARCHAR(64) NOT NULL,
    is_admin   BOOLEAN NOT NULL DEFAULT 0,
    created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP
);
