"""What the stages need of the machine: files here and in stores, kept records, temporary memory, worker processes."""
