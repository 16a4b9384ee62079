"""SGLang: its native API (`/generate`) behind the pool, and its controls."""
