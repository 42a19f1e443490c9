"""Stages of a model as data, and operations on finished vectors."""
