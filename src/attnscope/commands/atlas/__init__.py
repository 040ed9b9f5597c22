"""`attnscope atlas`: attention in real models, and the reference ranges that come from them."""
