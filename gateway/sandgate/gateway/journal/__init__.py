"""Durable records of sessions: SQLite, Postgres or memory; group commit, checksums, record kinds."""
