"""The commands of ``fastflow``, a file for each group of them. Heavy imports wait until a command runs."""
