//! Floor 1: the internal API `/internal/mcp/config` over the store.
