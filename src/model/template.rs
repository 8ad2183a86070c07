//! Placeholders: `${user.FIELD}`, `${NAME}` in headers, `$${` for a literal `${`.
