"""Types that gateway, operator, sandbox and trainer share: manifests, records, errors, keys. Standard library only."""
