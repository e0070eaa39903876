"""What a server does besides answering prompts greedily, with CP on: one CP server for all of it, one reference."""
