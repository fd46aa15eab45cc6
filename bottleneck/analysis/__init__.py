"""Stage 3: floors and bounds per kernel, the ledger, idle causes, ranks, the verdict."""
