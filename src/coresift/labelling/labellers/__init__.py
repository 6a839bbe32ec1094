"""Exchange batches and answers with the people who label: one module for each source of labels."""
