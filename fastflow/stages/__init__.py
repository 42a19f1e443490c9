"""The stages of a model as data: pooling, calibration, truncation, and the storage of finished vectors."""
