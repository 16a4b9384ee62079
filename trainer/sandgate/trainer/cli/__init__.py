"""The `sandgate` command: a module for each of its commands; `command` puts them together."""
