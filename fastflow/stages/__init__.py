"""The stages of a model as data: pooling, calibration, truncation, and what becomes of finished vectors."""
