"""Pictures in conversations: where they come from, what a model makes of them, what a record keeps."""
