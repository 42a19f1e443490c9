"""Studies of quality, a script and a page each; they are no part of the wheel."""
