"""The commands of ``fastflow``, a file for each group. Heavy imports wait until a command runs."""
