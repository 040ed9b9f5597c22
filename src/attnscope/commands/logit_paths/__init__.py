"""`attnscope.logit_paths`: why one head looks from one token to another."""
