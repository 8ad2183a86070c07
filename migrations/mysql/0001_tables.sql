-- What is compared is compared byte by byte, trailing blanks included; MySQL and MariaDB have other
-- names for that collation, and each skips the comment that is meant for the other.
CREATE TABLE mcp_servers (
    id                   VARCHAR(32) NOT NULL PRIMARY KEY,
    name                 VARCHAR(64) NOT NULL UNIQUE,
    display_name         VARCHAR(255),
    description          MEDIUMTEXT,
    transport_type       ENUM('stdio', 'http', 'sse', 'statelessHttp') NOT NULL DEFAULT 'stdio',
    command              MEDIUMTEXT,
    args                 MEDIUMTEXT,
    env_template         MEDIUMTEXT,
    url                  MEDIUMTEXT,
    headers              MEDIUMTEXT,
    is_public            BOOLEAN NOT NULL DEFAULT FALSE,
    is_enabled           BOOLEAN NOT NULL DEFAULT TRUE,
    requires_credentials BOOLEAN NOT NULL DEFAULT FALSE,
    credential_fields    MEDIUMTEXT,
    isolation            ENUM('shared', 'user', 'session'),
    tool_meta            MEDIUMTEXT,
    tool_display         MEDIUMTEXT,
    created_at           TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    updated_at           TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 /*!80017 COLLATE utf8mb4_0900_bin */ /*M!100200 COLLATE utf8mb4_nopad_bin */;

-- The system's defaults: one row a server.
CREATE TABLE mcp_credentials (
    id            VARCHAR(32) NOT NULL PRIMARY KEY,
    mcp_server_id VARCHAR(32) NOT NULL,
    credentials   MEDIUMTEXT NOT NULL,
    is_enabled    BOOLEAN NOT NULL DEFAULT TRUE,
    created_at    TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    updated_at    TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    UNIQUE (mcp_server_id),
    FOREIGN KEY (mcp_server_id) REFERENCES mcp_servers (id) ON DELETE CASCADE
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 /*!80017 COLLATE utf8mb4_0900_bin */ /*M!100200 COLLATE utf8mb4_nopad_bin */;

CREATE TABLE mcp_user_credentials (
    id            VARCHAR(32) NOT NULL PRIMARY KEY,
    user_id       VARCHAR(255) NOT NULL,
    mcp_server_id VARCHAR(32) NOT NULL,
    credentials   MEDIUMTEXT NOT NULL,
    is_enabled    BOOLEAN NOT NULL DEFAULT TRUE,
    created_at    TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    updated_at    TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    UNIQUE (user_id, mcp_server_id),
    INDEX mcp_user_credentials_server (mcp_server_id),
    FOREIGN KEY (mcp_server_id) REFERENCES mcp_servers (id) ON DELETE CASCADE
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 /*!80017 COLLATE utf8mb4_0900_bin */ /*M!100200 COLLATE utf8mb4_nopad_bin */;

-- user_scope: the user whose connection listed the tool, '' for a shared one.
CREATE TABLE mcp_tools_cache (
    id            VARCHAR(32) NOT NULL PRIMARY KEY,
    mcp_server_id VARCHAR(32) NOT NULL,
    user_scope    VARCHAR(255) NOT NULL DEFAULT '',
    tool_name     VARCHAR(255) NOT NULL,
    description   MEDIUMTEXT,
    input_schema  MEDIUMTEXT,
    tool          MEDIUMTEXT NOT NULL,
    created_at    TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    updated_at    TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    UNIQUE (mcp_server_id, user_scope, tool_name),
    FOREIGN KEY (mcp_server_id) REFERENCES mcp_servers (id) ON DELETE CASCADE
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 /*!80017 COLLATE utf8mb4_0900_bin */ /*M!100200 COLLATE utf8mb4_nopad_bin */;
