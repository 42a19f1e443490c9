"""Output files of every format, grown under a temporary name until they are whole."""
