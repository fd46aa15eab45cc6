"""Stage 4: one Analysis as terminal text, markdown, JSON or a picture."""
