-- Who changed what; never a value. It outlives what it speaks of, so it refers to nothing.
CREATE TABLE mcp_audit (
    number      BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    made_at     TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    actor       VARCHAR(255) NOT NULL,
    action      VARCHAR(32) NOT NULL,
    server_id   VARCHAR(32) NOT NULL,
    server_name VARCHAR(64) NOT NULL,
    user_id     VARCHAR(255) NOT NULL DEFAULT '',
    fields      MEDIUMTEXT NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 /*!80017 COLLATE utf8mb4_0900_bin */ /*M!100200 COLLATE utf8mb4_nopad_bin */;
