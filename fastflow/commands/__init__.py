"""The commands of ``fastflow``; heavy imports wait until a command runs."""
