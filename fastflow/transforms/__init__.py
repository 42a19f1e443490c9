"""Stages of a model after its encoder, as data, and operations on finished vectors."""
