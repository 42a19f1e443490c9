"""The HTTP server; needs the extra ``serve``."""
