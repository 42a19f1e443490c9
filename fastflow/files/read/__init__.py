"""Texts, records and vectors from files of every format."""
