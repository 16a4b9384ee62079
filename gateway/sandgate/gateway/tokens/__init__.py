"""A checkpoint's tokens: tokenizer, chat templates, bridge, parsers of reasoning and tool calls."""
