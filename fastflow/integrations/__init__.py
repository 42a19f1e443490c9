"""fastflow inside other systems; each module needs the library that it is for."""
