-- What a program may read the config API with, for any user. Of the token itself only a hash is kept.
CREATE TABLE mcp_service_tokens (
    id         VARCHAR(32) NOT NULL PRIMARY KEY,
    name       VARCHAR(64) NOT NULL UNIQUE,
    hash       VARCHAR(64) NOT NULL,
    is_admin   BOOLEAN NOT NULL DEFAULT FALSE,
    created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 /*!80017 COLLATE utf8mb4_0900_bin */ /*M!100200 COLLATE utf8mb4_nopad_bin */;
