"""Stage 2: FLOPs and bytes of every op call, from its recorded shapes."""
