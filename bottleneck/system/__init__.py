"""Files here and in stores, kept records, temporary memory and worker processes, for all stages; knows no record."""
