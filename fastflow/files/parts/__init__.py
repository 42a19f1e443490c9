"""Parts of one run that several machines make: manifests, status, merging."""
