"""A run in parts (shards) on several machines: manifests, status, merging."""
