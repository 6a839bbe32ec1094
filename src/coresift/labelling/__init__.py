"""A labelling project: a folder with a pool, a ledger of everything that happened, and what is asked next."""
