"""fastflow inside other systems; each module needs the extra of its name."""
