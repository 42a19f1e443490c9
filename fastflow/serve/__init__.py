"""The server: OpenAI's and TEI's routes in front of one Runtime. Needs the extra ``serve``."""
