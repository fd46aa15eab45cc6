"""Records and declared tables that the packages hand to one another."""
