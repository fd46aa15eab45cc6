"""Pictures of an analysis, a comparison and a sweep, drawn with matplotlib."""
