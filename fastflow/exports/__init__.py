"""Models in the formats of other libraries: ``fastflow export``."""
