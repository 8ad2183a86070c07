-- FALSE: the server is started without the sandbox that keeps it from reading and signalling the others.
ALTER TABLE mcp_servers ADD COLUMN sandbox BOOLEAN NOT NULL DEFAULT TRUE;
