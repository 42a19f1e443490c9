"""fastflow inside other systems; each module needs its library."""
