"""Sessions and model calls behind HTTP: admission, prompts, sampling, keys, task queue, fair threads."""
